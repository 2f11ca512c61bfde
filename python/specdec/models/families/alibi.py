"""BLOOM, MPT and Falcon: scores that fall with the distance (ALiBi); most Falcons have rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specdec.fields import Fields
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, fused_heads, fused_rows, named
from specdec.models.families.gpt import gpt_like
from specdec.models.families.llama import rotary
from specdec.models.number_formats import rounded_to_bf16, widened

__all__ = ["FAMILIES"]

_LAYER = "transformer.h.{i}"
_BLOOM_TENSORS = {
    **named(
        token_embedding="transformer.word_embeddings.weight",
        embedding_norm="transformer.word_embeddings_layernorm",
        attn_norm=f"{_LAYER}.input_layernorm",
        attn_out=f"{_LAYER}.self_attention.dense",
        mlp_norm=f"{_LAYER}.post_attention_layernorm",
        mlp_up=f"{_LAYER}.mlp.dense_h_to_4h",
        mlp_down=f"{_LAYER}.mlp.dense_4h_to_h",
        output_norm="transformer.ln_f",
        head="lm_head.weight",
    ),
    **fused_heads(f"{_LAYER}.self_attention.query_key_value"),
}
_BLOCK = "transformer.blocks.{i}"
_MPT_TENSORS = {
    **named(
        token_embedding="transformer.wte.weight",
        attn_norm=f"{_BLOCK}.norm_1",
        attn_out=f"{_BLOCK}.attn.out_proj",
        mlp_norm=f"{_BLOCK}.norm_2",
        mlp_up=f"{_BLOCK}.ffn.up_proj",
        mlp_down=f"{_BLOCK}.ffn.down_proj",
        output_norm="transformer.norm_f",
        head="lm_head.weight",
    ),
    **fused_rows(f"{_BLOCK}.attn.Wqkv"),
}


def _slopes(n_head: int) -> list[float]:
    """ALiBi's slopes (arXiv 2108.12409): a geometric series; for other than powers of two, of two of them."""
    power = 2 ** math.floor(math.log2(n_head))
    base = 2.0 ** -(8.0 / power)
    slopes = [base**i for i in range(1, power + 1)]
    between = 2.0 ** -(4.0 / power)
    slopes += [between**i for i in range(1, 2 * (n_head - power), 2)]
    return slopes


def _mpt_slopes(n_head: int, bias_max: int) -> list[float]:
    """The same where the series is always that of the next power of two, its odd places first."""
    power = 2 ** math.ceil(math.log2(n_head))
    slopes = [2.0 ** -(i * bias_max / power) for i in range(1, power + 1)]
    return slopes if power == n_head else (slopes[1::2] + slopes[::2])[:n_head]


def _name(fields: Fields, one: str, other: str) -> str:
    """Which of two names a size has in this file."""
    return other if fields.has(other) and not fields.has(one) else one


def _read_bloom(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    fields.require(
        "apply_residual_connection_post_layernorm", False, because="the stream goes on without norms"
    )
    sizes = reader.sizes(
        d_model=_name(fields, "hidden_size", "n_embed"),
        n_head=_name(fields, "n_head", "num_attention_heads"),
        n_layer=_name(fields, "n_layer", "num_hidden_layers"),
        n_kv_head=None,
        d_ff="n_inner",
        default_d_ff=4,
        d_head=None,
    )
    return gpt_like(
        sizes,
        n_ctx=reader.context("seq_length", default=2048),
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        activation="gelu_tanh",
        tied=fields.boolean("tie_word_embeddings", default=True),
        embedding_norm=True,
        alibi=_slopes(sizes["n_head"]),
    )


def _read_mpt(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    attention = ConfigReader(fields.object("attn_config") or fields.empty("attn_config"))
    inner = attention.fields
    inner.require("alibi", True, because="positions are those of ALiBi")
    inner.require("attn_type", "multihead_attention", because="each head has keys and values")
    inner.require("qk_ln", False, because="queries and keys have no norms")
    inner.require("prefix_lm", False, because="a decoder attends to what came before")
    fields.require("no_bias", True, because="MPT has no biases")
    fields.require("logit_scale", None, because="logits have no factor")
    fields.require("expansion_ratio", 4, because="the feed-forward is four times as wide")
    sizes = reader.sizes(
        d_model="d_model", n_head="n_heads", n_layer="n_layers", n_kv_head=None, d_ff="d_ff", default_d_ff=4,
        d_head=None,
    )  # fmt: skip
    scale = attention.optional_number("softmax_scale")
    return gpt_like(
        sizes,
        n_ctx=reader.context("max_seq_len", default=2048),
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        norm_bias=False,
        activation="gelu",
        tied=fields.boolean("tie_word_embeddings", default=True),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        alibi=_mpt_slopes(sizes["n_head"], inner.integer("alibi_bias_max", default=8)),
        qkv_limit=attention.optional_number("clip_qkv"),
        **({"score_scales": [scale] * sizes["n_layer"]} if scale else {}),
    )


_FALCON_TWO_NORMS = _BLOOM_TENSORS | named(attn_norm=f"{_LAYER}.ln_attn", mlp_norm=f"{_LAYER}.ln_mlp")


def _falcon_parallel(reader: ConfigReader) -> str:
    fields = reader.fields
    new = fields.boolean("new_decoder_architecture", default=False)
    fields.skip("num_ln_in_parallel_attn", "multi_query")  # where the others decide
    if not fields.boolean("parallel_attn", default=True):
        if new:
            raise fields.unsupported("parallel_attn", "true: the new architecture is parallel")
        return "no"
    n_norms = fields.integer("num_ln_in_parallel_attn", maximum=2, default=2 if new else 1)
    if n_norms == 2 and not new:
        raise fields.unsupported("num_ln_in_parallel_attn", "1, or the new architecture")
    return "two_norms" if n_norms == 2 else "one_norm"


def _read_falcon(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    new = fields.boolean("new_decoder_architecture", default=False)
    sizes = reader.sizes(
        d_model=_name(fields, "hidden_size", "n_embed"),
        n_kv_head="num_kv_heads",
        d_ff="ffn_hidden_size",
        default_d_ff=4,
        d_head=None,
    )
    if not new:
        one = fields.boolean("multi_query", default=True)
        sizes["n_kv_head"] = 1 if one else sizes["n_head"]
    bias = fields.boolean("bias", default=False)
    if fields.boolean("alibi", default=False):
        fields.skip("rope_parameters", "rope_scaling", "rope_theta")
        # transformers rounds the slopes to bf16 and scales them as scores.
        rounded = [_to_bf16(slope) for slope in _slopes(sizes["n_head"])]
        positions = {
            "n_ctx": reader.context(default=2048),
            "alibi": [slope * sizes["d_head"] ** -0.5 for slope in rounded],
        }
    else:
        positions = rotary(reader.rotation(sizes["d_head"]))
    return gpt_like(
        sizes,
        **positions,
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        activation=reader.activation("activation", "gelu"),
        tied=fields.boolean("tie_word_embeddings", default=True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        parallel=_falcon_parallel(reader),
    )


def _to_bf16(value: float) -> float:
    return float(widened(rounded_to_bf16(np.array([value], np.float32)), "bf16")[0])


def _falcon_tensors(config: Any) -> Any:
    return _FALCON_TWO_NORMS if config["parallel"] == "two_norms" else _BLOOM_TENSORS


FAMILIES = {
    "BloomForCausalLM": Family(
        _read_bloom,
        _BLOOM_TENSORS,
        prefix="transformer.",
        harmless=(
            "attention_softmax_in_fp32",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "offset_alibi",
            "skip_bias_add",
            "skip_bias_add_qkv",
            "slow_but_exact",
        ),
    ),
    "MptForCausalLM": Family(
        _read_mpt,
        _MPT_TENSORS,
        prefix="transformer.",
        harmless=(
            "attn_impl",  # of attn_config, as the next three
            "attn_pdrop",
            "attn_uses_sequence_id",
            "is_encoder_decoder",
            "embedding_fraction",
            "init_config",
            "init_device",
            "learned_pos_emb",
            "norm_type",
            "tokenizer_name",
            "verbose",
        ),
    ),
    "FalconForCausalLM": Family(
        _read_falcon,
        _falcon_tensors,
        prefix="transformer.",
        harmless=("apply_residual_connection_post_layernorm",),
    ),
}
