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


def _gemma(reader: ConfigReader, absent_kv_head: int, **switches: Any) -> dict[str, Any]:
    fields = reader.fields
    fields.require("use_bidirectional_attention", False, because="a decoder attends to what came before")
    sizes = reader.sizes(absent_kv_head=absent_kv_head, default_d_head=256)
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
    for name in ("hidden_activation", "hidden_act"):
        if reader.fields.raw(name) is not None:
            return _gemma(reader, 16, activation=reader.fields.choice(name, names))
    return _gemma(reader, 16, activation="gelu_tanh")


def _gemma2(reader: ConfigReader, period: int, **switches: Any) -> dict[str, Any]:
    """What Gemma 2 and 3 share; windows in all layers but every ``period``-th."""
    fields = reader.fields
    n_layer = fields.integer("num_hidden_layers", maximum=10_000)
    kinds = reader.layer_types(n_layer, reader.alternating(n_layer, period))
    scale = fields.number("query_pre_attn_scalar", default=256.0) ** -0.5
    if "turned" in switches:
        full, sliding = switches.pop("turned")
        switches["turning"] = (full, sliding)
        switches["rotations"] = [0 if kind == "full_attention" else 1 for kind in kinds]
    return _gemma(
        reader,
        4,
        norm_place="both",
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        score_scales=[scale] * n_layer,
        attn_softcap=reader.optional_number("attn_logit_softcapping"),
        logit_softcap=reader.optional_number("final_logit_softcapping"),
        **reader.windows(kinds, default=4096),
        **switches,
    )


def _read_gemma2(reader: ConfigReader) -> dict[str, Any]:
    config = _gemma2(reader, 2)
    for name, canonical, default in (
        ("attn_logit_softcapping", "attn_softcap", 50.0),
        ("final_logit_softcapping", "logit_softcap", 30.0),
    ):
        if not reader.fields.has(name):
            config[canonical] = default
    return config


def _read_gemma3(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    d_head = fields.integer("head_dim", minimum=2, maximum=65_536, default=256)
    full = reader.rotation(d_head, layer_type="full_attention", theta=1_000_000.0)
    sliding = reader.rotation(
        d_head, layer_type="sliding_attention", theta_name="rope_local_base_freq", scaled=False
    )
    period = fields.integer("sliding_window_pattern", default=6)
    return _gemma2(reader, period, qk_norm="head", turned=(full, sliding))


FAMILIES = {
    "GemmaForCausalLM": Family(_read_gemma, _GEMMA_TENSORS),
    "Gemma2ForCausalLM": Family(_read_gemma2, _GEMMA2_TENSORS),
    "Gemma3ForCausalLM": Family(_read_gemma3, _GEMMA2_TENSORS),
    "Gemma3ForConditionalGeneration": Family(_read_gemma3, _GEMMA2_TENSORS, **SEEING),
}
