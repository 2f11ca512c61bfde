"""StableLM and StarCoder 2: LayerNorm with rotary positions."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, HeadNorms, named
from specdec.models.families.llama import LLAMA_TENSORS, llama_like

__all__ = ["FAMILIES"]

_STABLELM_TENSORS = LLAMA_TENSORS | {
    "attn_q_norm": HeadNorms("model.layers.{i}.self_attn.q_layernorm.norms", "n_head"),
    "attn_k_norm": HeadNorms("model.layers.{i}.self_attn.k_layernorm.norms", "n_kv_head"),
}
_STARCODER2_TENSORS = LLAMA_TENSORS | named(
    mlp_up="model.layers.{i}.mlp.c_fc", mlp_down="model.layers.{i}.mlp.c_proj"
)


def _read_stablelm(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=32, d_head=None)
    parallel = fields.boolean("use_parallel_residual", default=False)
    per_head = fields.boolean("qk_layernorm", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.25),),
        norm="layer",
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        qkv_bias=fields.boolean("use_qkv_bias", default=False),
        qk_norm="each_head" if per_head else "none",
        parallel="one_norm" if parallel else "no",
    )


def _read_starcoder2(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    bias = fields.boolean("use_bias", default=True)
    return llama_like(
        reader,
        sizes=reader.sizes(absent_kv_head=2),
        tied=True,
        norm="layer",
        eps_field="norm_epsilon",
        norm_eps=1e-5,
        activation=reader.activation("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        **reader.windows(["sliding_attention"]),
    )


FAMILIES = {
    "StableLmForCausalLM": Family(_read_stablelm, _STABLELM_TENSORS),
    "Starcoder2ForCausalLM": Family(
        _read_starcoder2,
        _STARCODER2_TENSORS,
        harmless=(
            "activation_function",  # and others that the class ignores
            "attention_softmax_in_fp32",
            "layer_norm_epsilon",
            "mlp_type",
            "norm_type",
            "scale_attention_softmax_in_fp32",
            "scale_attn_weights",
        ),
    ),
}
