"""Cohere (Command R) 1 and 2: parallel halves, LayerNorm without biases, interleaved rotary positions."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, Interleaved, InterleavedNorms
from specdec.models.families.llama import LLAMA_TENSORS, llama_like

__all__ = ["FAMILIES"]

_TENSORS = LLAMA_TENSORS | {
    "attn_q": Interleaved("model.layers.{i}.self_attn.q_proj"),
    "attn_k": Interleaved("model.layers.{i}.self_attn.k_proj"),
    "attn_q_norm": InterleavedNorms("model.layers.{i}.self_attn.q_norm"),
    "attn_k_norm": InterleavedNorms("model.layers.{i}.self_attn.k_norm"),
}


def _cohere(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    fields = reader.fields
    bias = fields.boolean("attention_bias", default=False)
    return llama_like(
        reader,
        tied=True,
        norm="layer",
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        norm_bias=False,
        parallel="one_norm",
        qkv_bias=bias,
        out_bias=bias,
        logit_scale=fields.number("logit_scale", default=0.0625),
        **switches,
    )


def _read_cohere(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes()
    return _cohere(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], theta=500_000.0),),
        qk_norm="each_head" if reader.fields.boolean("use_qk_norm", default=False) else "none",
    )


def _read_cohere2(reader: ConfigReader) -> dict[str, Any]:
    """Windows with rotary positions, and every fourth layer without either."""
    sizes = reader.sizes()
    period = reader.fields.integer("sliding_window_pattern", default=4)
    kinds = reader.layer_types(sizes["n_layer"], reader.alternating(sizes["n_layer"], period))
    return _cohere(
        reader,
        sizes=sizes,
        rotations=[0 if kind == "sliding_attention" else -1 for kind in kinds],
        **reader.windows(kinds, default=4096),
    )


FAMILIES = {
    "CohereForCausalLM": Family(_read_cohere, _TENSORS),
    "Cohere2ForCausalLM": Family(
        _read_cohere2,
        _TENSORS,
        harmless=(
            "layer_switch",
            "order_of_interleaved_layers",
            "position_embedding_type",
            "rotary_pct",
            "use_embedding_sharing",
            "use_gated_activation",
            "use_parallel_block",
            "use_parallel_embedding",
        ),
    ),
}
