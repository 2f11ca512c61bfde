"""OLMo 1 (LayerNorm without weights), OLMo 2 and 3 (norms of outputs, and of whole queries and keys)."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, named
from specdec.models.families.llama import LLAMA_TENSORS, llama_like

__all__ = ["FAMILIES"]

_OLMO2_TENSORS = LLAMA_TENSORS | named(
    attn_post_norm="model.layers.{i}.post_attention_layernorm",
    mlp_post_norm="model.layers.{i}.post_feedforward_layernorm",
)


def _read_olmo(reader: ConfigReader) -> dict[str, Any]:
    bias = reader.fields.boolean("attention_bias", default=False)
    return llama_like(
        reader,
        norm="layer",
        eps_field=None,
        norm_eps=1e-5,
        norm_weight=False,
        norm_bias=False,
        qkv_bias=bias,
        out_bias=bias,
        qkv_limit=reader.optional_number("clip_qkv"),
    )


def _olmo2(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    bias = reader.fields.boolean("attention_bias", default=False)
    return llama_like(
        reader, norm_eps=1e-5, norm_place="after", qk_norm="whole", qkv_bias=bias, out_bias=bias, **switches
    )


def _read_olmo3(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes()
    kinds = reader.layer_types(sizes["n_layer"], reader.alternating(sizes["n_layer"], 4))
    theta, d_head = 500_000.0, sizes["d_head"]
    full = reader.rotation(d_head, layer_type="full_attention", theta=theta)
    sliding = reader.rotation(d_head, layer_type="sliding_attention", theta=theta, scaled=False)
    return _olmo2(
        reader,
        sizes=sizes,
        turning=(full, sliding),
        rotations=[0 if kind == "full_attention" else 1 for kind in kinds],
        **reader.windows(kinds, default=4096),
    )


FAMILIES = {
    "OlmoForCausalLM": Family(_read_olmo, LLAMA_TENSORS),
    "Olmo2ForCausalLM": Family(_olmo2, _OLMO2_TENSORS),
    "Olmo3ForCausalLM": Family(_read_olmo3, _OLMO2_TENSORS),
}
