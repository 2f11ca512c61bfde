"""Multi-token prediction (MTP) blocks: where model files keep them, and how they read their inputs.

An MTP block (arXiv 2404.19737, 2412.19437) is a layer of the target with norms of a token's embedding and of
the target's hidden state before it, a projection of both, and a norm before the target's head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from specdec.models.families.family import Config, Family, MtpLayout, Named, Source, plus_one
from specdec.models.model_config import ModelConfig

_NEXTN: Final = ("num_nextn_predict_layers", "num_mtp_layers")

MIMO: Final = MtpLayout(
    _NEXTN, "model.mtp_layers.0.", ".token_layernorm", ".hidden_layernorm", ".input_proj", ".final_layernorm",
    root="model.mtp_layers.", features_first=True,
)  # fmt: skip
QWEN: Final = MtpLayout(
    ("mtp_num_hidden_layers",), "mtp.layers.0.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden",
    "mtp.fc", "mtp.norm", root="mtp.", norm=plus_one,
)  # fmt: skip
EXAONE: Final = replace(QWEN, counts=_NEXTN, norm=Named, dense=True, first=True)
ERNIE: Final = MtpLayout(
    _NEXTN, "model.mtp_block.0.", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0",
    "model.mtp_linear_proj.0", "model.norm", root="model.mtp_", dense=True,
)  # fmt: skip
"""Layouts whose last norm is the target's."""
DEEPSEEK: Final = MtpLayout(
    _NEXTN, "model.layers.{n}.", ".enorm", ".hnorm", ".eh_proj", ".shared_head.norm",
    copies=(".embed_tokens.weight", ".shared_head.head.weight"),
)  # fmt: skip
"""DeepSeek V3, GLM 4.5 and others."""
HUNYUAN: Final = replace(
    DEEPSEEK, output_norm=".final_layernorm",
    copies=(".embed_tokens.weight", ".shared_head.weight", ".shared_head.head.weight"),
)  # fmt: skip
GGUF: Final = MtpLayout(
    _NEXTN, "blk.{n}.", ".nextn.enorm", ".nextn.hnorm", ".nextn.eh_proj", ".nextn.shared_head_norm",
    copies=(".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight"), layer="blk.0.",
)  # fmt: skip
"""All architectures of GGUF files, whose converter orders columns and adds 1 to norms."""

LAYOUTS: Final[Mapping[str, MtpLayout]] = {
    "MiMo": MIMO, "Qwen": QWEN, "DeepSeek": DEEPSEEK, "ERNIE": ERNIE, "Hunyuan": HUNYUAN, "EXAONE": EXAONE,
    "GGUF": GGUF,
}  # fmt: skip


def block_config(layout: MtpLayout, config: ModelConfig) -> dict[str, Any]:
    """Return the canonical configuration of a block: a layer with attention of the target, and features."""
    found = config.alone(0 if layout.first else config.last_attention)
    if layout.dense:
        found = {name: value for name, value in found.items() if name != "mixtures"} | {"n_experts": 0}
    return found | {
        "features": "joined", "feature_width": config.d_model, "feature_norms": True,
        "shared_head": True, "shared_embedding": True, "tied": False,
    }  # fmt: skip


def block_sources(
    family: Family, config: Config, n_layer: int, held: Callable[[str], bool] = lambda name: False
) -> list[Source]:
    """Return the sources of the block of a target with `n_layer` layers; see `Family.sources`."""
    layout = family.mtp
    assert layout is not None
    own = layout.block.format(n=n_layer)

    def full(name: str) -> str:
        return own + name.removeprefix(layout.layer) if name.startswith(layout.layer) else name

    table = family.tensors(config) if callable(family.tensors) else family.tensors
    named = replace(family, tensors={**table, **layout.entries()})
    found = named.sources(config, lambda name: held(full(name)))
    return [replace(one, stored=[full(name) for name in one.stored]) for one in found]


def held_names(layout: MtpLayout, n_layer: int, names: Iterable[str]) -> list[str]:
    """Return the names of the tensors of the first block, without copies of the target's."""
    own, roots = layout.block.format(n=n_layer), layout.roots(n_layer, 1)
    copies = {own + copy[1:] for copy in layout.copies}
    return [name for name in names if name.startswith(roots) and name not in copies]
