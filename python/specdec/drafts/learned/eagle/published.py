"""Published drafts on hidden states of a target, whatever their layout is, and native heads.

A draft's configuration becomes that of a model of the core with features; one table for each layout says
which tensor of the core is which of the file's. Weights in pickles (``pytorch_model.bin``) are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.fields import Fields, as_json, read_json_object
from specdec.models.checkpoints import CanonicalTensor
from specdec.models.checkpoints.safetensors_file import StoredTensor, open_weights
from specdec.models.families import FAMILIES, ConfigReader
from specdec.models.model import Model
from specdec.models.number_formats import Dtype

_BLOCKS: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_IGNORED: Final = re.compile(r"^t2d$|rotary_emb\.inv_freq$|^verifier_(norm|lm_head)\.weight$")


@dataclass(frozen=True)
class Entry:
    """A tensor of the core: the file's names, the shape of each, and how it is made of them."""

    names: list[str]
    shapes: list[tuple[int, ...]]
    take: Callable[[list[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class PublishedDraft:
    """A draft as its files have it, checked, its weights still in them."""

    path: Path
    kind: str  # "EAGLE-1", "EAGLE-3" or "MTP"
    config: dict[str, Any]  # canonical, of a model with features
    layers: tuple[int, ...]  # hidden states of the target that make a feature, in this order
    tokens: NDArray[np.int32] | None  # [n_draft_vocab] the target's token of each; None: they are the same
    normed_feedback: bool  # later steps read the output of the draft's last norm
    dtype: Dtype  # the default number format
    _entries: Mapping[str, Entry]
    _held: Mapping[str, StoredTensor]

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that it is read from."""
        return self.path / "config.json", *sorted({tensor.file for tensor in self._held.values()})

    def tensors(self) -> Iterator[CanonicalTensor]:
        """Return every weight once, read in turn."""
        for name, entry in self._entries.items():
            held = [self._held[stored] for stored in entry.names]
            yield name, entry.take([tensor.array() for tensor in held]), held[0].format


def block_config(fields: Fields, architecture: str | None = None) -> dict[str, Any]:
    """Return the canonical configuration of the draft's layers, as its family has them."""
    if architecture is None:
        architecture = fields.choice("model_type", _BLOCKS, default="llama")
    reader = ConfigReader(fields)
    config = FAMILIES[architecture].read_config(reader)
    if architecture == "LlamaForCausalLM":
        kinds = reader.layer_types(config["n_layer"], ["full_attention"] * config["n_layer"])
        config |= reader.windows(kinds)
    return config


def joined_config(target: Model) -> dict[str, Any]:
    """Return what EAGLE-1 and native heads share: one hidden state of the target, its head and context."""
    joined = {"n_ctx": target.config.n_ctx, "features": "joined", "feature_width": target.config.d_model}
    return joined | {"shared_head": True, "tied": False} | head_config(target)


def head_config(target: Model) -> dict[str, Any]:
    """Return the scaling of the logits of the target's head."""
    return {name: target.config[name] for name in ("logit_scale", "logit_softcap")}


_LAYER: Final = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_out": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm", "mlp_gate": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj", "mlp_down": "mlp.down_proj",
}  # fmt: skip
_OUTSIDE: Final = {
    "token_embedding": "embed_tokens.weight", "head": "lm_head.weight", "feature_projection": "fc"
}  # fmt: skip


def entries_of(
    path: Path, config: dict[str, Any], table: Mapping[str, str], joined: Mapping[str, list[str]]
) -> dict[str, Entry]:
    """Return where each tensor of the core comes from.

    `table`: names outside the layers, without suffix, and the file's; `joined`: vectors that are in pieces.
    """
    try:
        shapes = _core.tensor_shapes(config)
    except ValueError as error:  # the core's checks name the field of the canonical configuration
        raise CheckpointError(f"{path / 'config.json'}: {error}") from error
    entries: dict[str, Entry] = {}
    for canonical, shape in shapes.items():
        if canonical in joined:
            pieces = [f"{name}.weight" for name in joined[canonical]]
            each = (shape[0] // len(pieces),)
            entries[canonical] = Entry(pieces, [each] * len(pieces), np.concatenate)
            continue
        base = canonical.removesuffix(".weight").removesuffix(".bias")
        suffix = canonical[len(base) :]
        if base.startswith("layers."):
            _, layer, base = base.split(".", 2)
            stored = f"layers.{layer}.{_LAYER[base]}{suffix}"
        else:
            stored = (_OUTSIDE | dict(table))[base] + suffix
        entries[canonical] = Entry([stored], [shape], lambda arrays: arrays[0])
    return entries


def matched(
    path: Path, kind: str, config: dict[str, Any], entries: dict[str, Entry],
    held: Mapping[str, StoredTensor], layers: tuple[int, ...], tokens: NDArray[np.int32] | None,
    normed_feedback: bool,
) -> PublishedDraft:  # fmt: skip
    """Make the draft, once its tensors are known to be there in the right shape, and no others."""
    used: list[StoredTensor] = []
    known = {"d2t"}
    for entry in entries.values():
        for name, shape in zip(entry.names, entry.shapes, strict=True):
            if name not in held:
                expected = f"expected it with shape {list(shape)}"
                raise CheckpointError(f"{path}: tensor '{name}' is missing; {expected}")
            tensor = held[name]
            if tensor.shape != tuple(shape):
                where, found = f"{tensor.file}: tensor '{tensor.name}'", as_json(list(tensor.shape))
                raise CheckpointError(f"{where} has shape {found}; expected {list(shape)}")
            tensor.check()
            used.append(tensor)
            known.add(name)
    unknown = sorted(held[name].name for name in held if name not in known and not _IGNORED.search(name))
    if unknown:
        names = ", ".join(map(repr, unknown[:5]))
        unused = f"holds tensors that its config.json leaves without use: {names}"
        raise UnsupportedModelError(f"{path}: {unused}; expected only those of {kind}")
    formats = {tensor.format for tensor in used if len(tensor.shape) == 2}
    dtype: Dtype = "bf16" if formats == {"bf16"} else "f32"
    return PublishedDraft(path, kind, config, layers, tokens, normed_feedback, dtype, entries, held)


_NATIVE: Final = {"MiMoForCausalLM": "model.mtp_layers.0."}
"""Families that bring a head for multi-token prediction: architecture, and where its tensors are."""


def open_native_head(target: Model) -> PublishedDraft:
    """Open the head for multi-token prediction in the target's own folder, such as MiMo's."""
    path, prefix = target.path, _NATIVE.get(target.architecture)
    file = path / "config.json"
    if prefix is None:
        found = f"{target.architecture}, which has no head for multi-token prediction that is read"
        raise UnsupportedModelError(f"{path} is a {found}; expected one of {', '.join(_NATIVE)}")
    fields = Fields(read_json_object(file), file)
    n_heads = fields.integer("num_nextn_predict_layers", minimum=0, default=0)
    if n_heads != 1:
        raise fields.unsupported("num_nextn_predict_layers", "1: one head, which reads what it wrote")
    config = block_config(fields.replaced(num_hidden_layers=1), target.architecture)
    config |= joined_config(target) | {"feature_norms": True, "shared_embedding": True}
    stored = {name: tensor for name, tensor in open_weights(path).items() if name.startswith(prefix)}
    table = {
        "token_norm": "token_layernorm", "feature_norm": "hidden_layernorm",
        "output_norm": "final_layernorm", "feature_projection": "input_proj",
    }  # fmt: skip
    held = {}
    for name, tensor in stored.items():
        name = name.removeprefix(prefix)
        held[name if name.startswith(tuple(table.values())) else f"layers.0.{name}"] = tensor
    entries = entries_of(path, config, table, {})
    projection = entries["feature_projection.weight"]
    entries["feature_projection.weight"] = Entry(projection.names, projection.shapes, _swapped)
    layers = (target.config.n_layer + 1,)
    return matched(path, "MTP", config, entries, held, layers, None, normed_feedback=True)


def _swapped(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Columns for feature and embedding in the order of the core: the embedding's first."""
    half = arrays[0].shape[1] // 2
    return np.concatenate([arrays[0][:, half:], arrays[0][:, :half]], axis=1)
