"""Phi 1 and 2 (parallel halves, biases), Phi 3, 3.5 and 4-mini (fused matrices, LongRoPE)."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, Half, fused_rows, named
from specdec.models.families.gpt import gpt_like
from specdec.models.families.llama import LLAMA_TENSORS, llama_like, rotary

__all__ = ["FAMILIES"]

_LAYER = "model.layers.{i}"

_PHI_TENSORS = LLAMA_TENSORS | named(
    attn_out=f"{_LAYER}.self_attn.dense",
    mlp_up=f"{_LAYER}.mlp.fc1",
    mlp_down=f"{_LAYER}.mlp.fc2",
    output_norm="model.final_layernorm",
    head_bias="lm_head.bias",
)

_PHI3_TENSORS = LLAMA_TENSORS | {
    **fused_rows(f"{_LAYER}.self_attn.qkv_proj"),
    "mlp_gate": Half(f"{_LAYER}.mlp.gate_up_proj", 0),
    "mlp_up": Half(f"{_LAYER}.mlp.gate_up_proj", 1),
}


def _read_phi(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes()
    fields.require("qk_layernorm", False, because="norms of queries and keys have no biases")
    return gpt_like(
        sizes,
        **rotary(reader.rotation(sizes["d_head"], partial=True, fraction=0.5)),
        norm_eps=fields.number("layer_norm_eps", default=1e-5),
        activation=reader.activation("hidden_act", "gelu_new"),
        tied=fields.boolean("tie_word_embeddings", default=False),
        head_bias=True,
        parallel="one_norm",
    )


def _read_phi3(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes()
    turning = reader.rotation(
        sizes["d_head"],
        partial=True,
        original_n_ctx=fields.integer("original_max_position_embeddings", default=4096),
        # Former files call LongRoPE "su" or "yarn".
        kinds={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
    )
    return llama_like(
        reader, sizes=sizes, turning=(turning,), norm_eps=1e-5, **reader.windows(["sliding_attention"])
    )


FAMILIES = {
    "PhiForCausalLM": Family(_read_phi, _PHI_TENSORS),
    "Phi3ForCausalLM": Family(_read_phi3, _PHI3_TENSORS, harmless=("full_attn_mod", "interpolate_factor")),
}
