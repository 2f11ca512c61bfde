"""Gemma 1, 2 and 3: scaled embeddings, norm weights stored less 1, norms of outputs, windows, soft caps."""

from __future__ import annotations

import math
from typing import Any

from specdec.models.families.config_reader import ACTIVATIONS, ConfigReader
from specdec.models.families.family import SEEING, Family, PlusOne
from specdec.models.families.llama import LLAMA_TENSORS, llama_like

__all__ = ["FAMILIES"]

_LAYER = "model.layers.{i}"

_GEMMA_TENSORS = LLAMA_TENSORS | {
    "attn_norm": PlusOne(f"{_LAYER}.input_layernorm"),
    "mlp_norm": PlusOne(f"{_LAYER}.post_attention_layernorm"),
    "output_norm": PlusOne("model.norm"),
}

_GEMMA2_TENSORS = _GEMMA_TENSORS | {
    "attn_post_norm": PlusOne(f"{_LAYER}.post_attention_layernorm"),
    "mlp_norm": PlusOne(f"{_LAYER}.pre_feedforward_layernorm"),
    "mlp_post_norm": PlusOne(f"{_LAYER}.post_feedforward_layernorm"),
    "attn_q_norm": PlusOne(f"{_LAYER}.self_attn.q_norm"),
    "attn_k_norm": PlusOne(f"{_LAYER}.self_attn.k_norm"),
}


def _sizes(reader: ConfigReader, absent_kv_head: int) -> dict[str, Any]:
    return reader.sizes(absent_kv_head=absent_kv_head, default_d_head=256)


def _gemma(reader: ConfigReader, sizes: dict[str, Any], **switches: Any) -> dict[str, Any]:
    """What all three share."""
    fields = reader.fields
    bias = fields.boolean("attention_bias", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        tied=True,
        qkv_bias=bias,
        out_bias=bias,
        embedding_scale=math.sqrt(sizes["d_model"]),
        **switches,
    )


def _read_gemma(reader: ConfigReader) -> dict[str, Any]:
    # "gelu" in the first files means the tanh form, as hidden_activation, which came later, says.
    names = {**ACTIVATIONS, "gelu": "gelu_tanh"}
    name = "hidden_activation" if reader.fields.raw("hidden_activation") is not None else "hidden_act"
    reader.fields.skip("hidden_act", "hidden_activation")
    activation = reader.fields.choice(name, names, default="gelu")
    return _gemma(reader, _sizes(reader, 16), activation=activation)


def _layer_types(reader: ConfigReader, sizes: dict[str, Any], period: int) -> list[str]:
    """Windows in all layers but every ``period``-th, unless the file says otherwise."""
    return reader.layer_types(sizes["n_layer"], reader.alternating(sizes["n_layer"], period))


def _gemma2(
    reader: ConfigReader,
    sizes: dict[str, Any],
    kinds: list[str],
    *,
    absent_softcaps: tuple[float, float] = (0.0, 0.0),
    **switches: Any,
) -> dict[str, Any]:
    """What Gemma 2 and 3 share; ``absent_softcaps`` of scores and logits are what absent fields mean."""
    fields = reader.fields
    of_scores, of_logits = absent_softcaps
    scale = fields.number("query_pre_attn_scalar", default=256.0) ** -0.5
    return _gemma(
        reader,
        sizes,
        norm_place="both",
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        score_scales=[scale] * sizes["n_layer"],
        attn_softcap=reader.optional_number("attn_logit_softcapping", of_scores),
        logit_softcap=reader.optional_number("final_logit_softcapping", of_logits),
        **reader.windows(kinds, default=4096),
        **switches,
    )


def _read_gemma2(reader: ConfigReader) -> dict[str, Any]:
    sizes = _sizes(reader, 4)
    return _gemma2(reader, sizes, _layer_types(reader, sizes, 2), absent_softcaps=(50.0, 30.0))


def _read_gemma3(reader: ConfigReader) -> dict[str, Any]:
    """Frequencies of their own in the layers with windows; norms of queries and keys."""
    sizes = _sizes(reader, 4)
    kinds = _layer_types(reader, sizes, reader.fields.integer("sliding_window_pattern", default=6))
    full = reader.rotation(sizes["d_head"], layer_type="full_attention", theta=1_000_000.0)
    sliding = reader.rotation(
        sizes["d_head"], layer_type="sliding_attention", theta_name="rope_local_base_freq", scaled=False
    )
    return _gemma2(
        reader,
        sizes,
        kinds,
        qk_norm="head",
        turning=(full, sliding),
        rotations=[0 if kind == "full_attention" else 1 for kind in kinds],
    )


FAMILIES = {
    "GemmaForCausalLM": Family(_read_gemma, _GEMMA_TENSORS),
    "Gemma2ForCausalLM": Family(_read_gemma2, _GEMMA2_TENSORS, harmless=("hidden_act",)),
    "Gemma3ForCausalLM": Family(_read_gemma3, _GEMMA2_TENSORS, harmless=("_sliding_window_pattern",)),
    "Gemma3ForConditionalGeneration": Family(_read_gemma3, _GEMMA2_TENSORS, **SEEING),
}
