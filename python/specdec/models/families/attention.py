"""Families with Llama's block and other attention: norms after RoPE, gates on its output."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Array, Config, Family, Named, Shape, absent, named
from specdec.models.families.llama import LLAMA, llama_like

_LAYER = "model.layers.{i}"


def half_of_heads(name: str, part: int) -> Named:
    """Return the entry of queries (part 0) or gates (1) in a matrix that alternates them head by head."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        heads = array.reshape(-1, 2, config["d_head"], *array.shape[1:])
        return heads[:, part].reshape(shape)

    return Named(name, view, lambda shape, _: (2 * shape[0], *shape[1:]))


def _turned_back(name: str) -> Named:
    """Return the entry of queries or keys rotated by negative angles: their halves are swapped."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        heads = array.reshape(-1, 2, config["d_head"] // 2, *array.shape[1:])
        return heads[:, ::-1].reshape(shape)

    return Named(name, view)


def _ones(name: str) -> Named:
    """Return the entry of norm weights that are not stored."""
    return Named(name, make=lambda shape: np.ones(shape, np.float32))


HUNYUAN = LLAMA | named(
    _LAYER, attn_q_norm=".self_attn.query_layernorm", attn_k_norm=".self_attn.key_layernorm"
)
_NANOCHAT = LLAMA | {
    **named(_LAYER, _turned_back, attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj"),
    **named(_LAYER, _ones, attn_q_norm=".self_attn.q_norm", attn_k_norm=".self_attn.k_norm"),
    **named(_LAYER, mlp_up=".mlp.fc1", mlp_down=".mlp.fc2"),
}


def hunyuan(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    """Read HunYuan 1: norms by head after RoPE; a constant alpha may scale its base."""
    sizes = reader.sizes()
    return llama_like(
        reader, sizes=sizes, turning=(reader.rotation(sizes["d_head"], alpha=True),), norm_eps=1e-5,
        bias=False, qk_norm="head", qk_norm_rotated=True, **switches,
    )  # fmt: skip


def _nanochat(reader: ConfigReader) -> dict[str, Any]:
    """Read nanochat: norms without weights, one of them after the embedding; no gate in the MLP."""
    return llama_like(
        reader, bias=False, qk_norm="head", qk_norm_rotated=True, norm_weight=False, embedding_norm=True,
        gated=False, activation=reader.activation("hidden_act", "relu2"),
        logit_softcap=reader.optional_number("final_logit_softcapping", 15.0),
    )  # fmt: skip


FAMILIES = {
    "HunYuanDenseV1ForCausalLM": Family(
        hunyuan, HUNYUAN, "hunyuan_v1_dense", absent(4096, 11008, 32, 32, 290943, 2048),
        harmless=("eod_token_id", "use_qk_norm"),
    ),
    "NanoChatForCausalLM": Family(
        _nanochat, _NANOCHAT, "nanochat", absent(768, 8192, 12, 6, 50304, 2048)
    ),
}  # fmt: skip
