"""GPT-NeoX (Pythia) and GPT-J: parallel halves of a layer, rotary positions in a part of each head."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, Interleaved, fused_heads, named
from specdec.models.families.gpt import GPT_TENSORS, gpt_like
from specdec.models.families.llama import rotary
from specdec.models.families.rotary import rotary_frequencies

__all__ = ["FAMILIES"]

_LAYER = "gpt_neox.layers.{i}"
_NEOX_TENSORS = {
    **named(
        token_embedding="gpt_neox.embed_in.weight",
        attn_norm=f"{_LAYER}.input_layernorm",
        attn_out=f"{_LAYER}.attention.dense",
        mlp_norm=f"{_LAYER}.post_attention_layernorm",
        mlp_up=f"{_LAYER}.mlp.dense_h_to_4h",
        mlp_down=f"{_LAYER}.mlp.dense_4h_to_h",
        output_norm="gpt_neox.final_layer_norm",
        head="embed_out.weight",
    ),
    **fused_heads(f"{_LAYER}.attention.query_key_value"),
}
_GPTJ_LAYER = "transformer.h.{i}"
_GPTJ_TENSORS = {
    **GPT_TENSORS,
    "attn_q": Interleaved(f"{_GPTJ_LAYER}.attn.q_proj"),
    "attn_k": Interleaved(f"{_GPTJ_LAYER}.attn.k_proj"),
    **named(
        attn_v=f"{_GPTJ_LAYER}.attn.v_proj",
        attn_out=f"{_GPTJ_LAYER}.attn.out_proj",
        mlp_up=f"{_GPTJ_LAYER}.mlp.fc_in",
        mlp_down=f"{_GPTJ_LAYER}.mlp.fc_out",
        head_bias="lm_head.bias",
    ),
}


def _read_neox(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(n_kv_head=None, d_head=None)
    turning = reader.rotation(
        sizes["d_head"], theta_name="rotary_emb_base", partial=True, fraction=0.25, fraction_name="rotary_pct"
    )
    bias = fields.boolean("attention_bias", default=True)
    parallel = fields.boolean("use_parallel_residual", default=True)
    return gpt_like(
        sizes,
        **rotary(turning),
        norm_eps=fields.number("layer_norm_eps", default=1e-5),
        activation=reader.activation("hidden_act", "gelu"),
        tied=fields.boolean("tie_word_embeddings", default=False),
        qkv_bias=bias,
        out_bias=bias,
        parallel="two_norms" if parallel else "no",
    )


def _read_gptj(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    sizes = reader.sizes(
        d_model="n_embd", n_head="n_head", n_layer="n_layer", n_kv_head=None, d_ff="n_inner", default_d_ff=4,
        d_head=None,
    )  # fmt: skip
    d_rotary = fields.integer("rotary_dim", minimum=2, maximum=sizes["d_head"], default=64)
    if d_rotary % 2:
        raise fields.error("rotary_dim", "an even number: rotary positions turn pairs")
    return gpt_like(
        sizes,
        n_ctx=reader.context("n_positions"),
        position="rotary",
        inv_freq=rotary_frequencies(d_rotary, 10_000.0),
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        activation=reader.activation("activation_function", "gelu_new"),
        tied=fields.boolean("tie_word_embeddings", default=False),
        qkv_bias=False,
        out_bias=False,
        head_bias=True,
        parallel="one_norm",
    )


FAMILIES = {
    "GPTNeoXForCausalLM": Family(_read_neox, _NEOX_TENSORS, prefix="gpt_neox.", head="embed_out"),
    "GPTJForCausalLM": Family(
        _read_gptj,
        _GPTJ_TENSORS,
        prefix="transformer.",
        harmless=("n_ctx", "rotary", "scale_attn_weights"),
    ),
}
