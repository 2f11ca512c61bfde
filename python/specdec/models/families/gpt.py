"""GPT-2, GPT-BigCode (StarCoder 1), GPT-Neo and OPT: learned positions, LayerNorm, biases."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, Offset, Transposed, fused_heads, fused_rows, named
from specdec.models.families.projected import settle_projections

__all__ = ["FAMILIES", "GPT_TENSORS", "gpt_like"]

_LAYER = "transformer.h.{i}"

GPT_TENSORS = named(
    token_embedding="transformer.wte.weight",
    position_embedding="transformer.wpe.weight",
    attn_norm=f"{_LAYER}.ln_1",
    mlp_norm=f"{_LAYER}.ln_2",
    mlp_up=f"{_LAYER}.mlp.c_fc",
    mlp_down=f"{_LAYER}.mlp.c_proj",
    output_norm="transformer.ln_f",
    head="lm_head.weight",
)
_GPT2_TENSORS = GPT_TENSORS | {
    **fused_rows(f"{_LAYER}.attn.c_attn", transposed=True),
    "attn_out": Transposed(f"{_LAYER}.attn.c_proj"),
    "mlp_up": Transposed(f"{_LAYER}.mlp.c_fc"),
    "mlp_down": Transposed(f"{_LAYER}.mlp.c_proj"),
}
_BIGCODE_TENSORS = GPT_TENSORS | {
    **fused_heads(f"{_LAYER}.attn.c_attn"),
    **named(attn_out=f"{_LAYER}.attn.c_proj"),
}
_NEO_TENSORS = GPT_TENSORS | named(
    attn_q=f"{_LAYER}.attn.attention.q_proj",
    attn_k=f"{_LAYER}.attn.attention.k_proj",
    attn_v=f"{_LAYER}.attn.attention.v_proj",
    attn_out=f"{_LAYER}.attn.attention.out_proj",
)
_OPT_LAYER = "model.decoder.layers.{i}"
_OPT_TENSORS = named(
    token_embedding="model.decoder.embed_tokens.weight",
    attn_norm=f"{_OPT_LAYER}.self_attn_layer_norm",
    attn_post_norm=f"{_OPT_LAYER}.self_attn_layer_norm",
    attn_q=f"{_OPT_LAYER}.self_attn.q_proj",
    attn_k=f"{_OPT_LAYER}.self_attn.k_proj",
    attn_v=f"{_OPT_LAYER}.self_attn.v_proj",
    attn_out=f"{_OPT_LAYER}.self_attn.out_proj",
    mlp_norm=f"{_OPT_LAYER}.final_layer_norm",
    mlp_post_norm=f"{_OPT_LAYER}.final_layer_norm",
    mlp_up=f"{_OPT_LAYER}.fc1",
    mlp_down=f"{_OPT_LAYER}.fc2",
    output_norm="model.decoder.final_layer_norm",
    head="lm_head.weight",
) | {"position_embedding": Offset("model.decoder.embed_positions.weight", 2)}


def gpt_like(sizes: dict[str, Any], **switches: Any) -> dict[str, Any]:
    """A GPT block: LayerNorm before each half, biases, a feed-forward without gate; with other switches."""
    config = {
        **sizes,
        "norm": "layer",
        "position": "none",
        "inv_freq": [],
        "gated": False,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "sliding_window": 0,
    }
    return config | switches


def _gpt2_sizes(reader: ConfigReader, n_kv_head: int | None = None) -> dict[str, Any]:
    sizes = reader.sizes(
        d_model="n_embd", n_head="n_head", n_layer="n_layer", n_kv_head=None, d_ff="n_inner", default_d_ff=4,
        d_head=None,
    )  # fmt: skip
    return sizes | {"n_kv_head": n_kv_head or sizes["n_head"]}


def _read_gpt2(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    fields.require("scale_attn_weights", True, because="attention is scaled by 1/sqrt(d_head)")
    fields.require("reorder_and_upcast_attn", False, because="there is one order of computation")
    sizes = _gpt2_sizes(reader)
    scales: dict[str, Any] = {}
    if fields.boolean("scale_attn_by_inverse_layer_idx", default=False):
        scales["score_scales"] = [sizes["d_head"] ** -0.5 / (i + 1) for i in range(sizes["n_layer"])]
    return gpt_like(
        sizes,
        n_ctx=reader.whole_context("n_positions"),
        position="learned",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        activation=reader.activation("activation_function", "gelu_new"),
        tied=fields.boolean("tie_word_embeddings", default=True),
        **scales,
    )


def _read_bigcode(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    fields.require("scale_attn_weights", True, because="attention is scaled by 1/sqrt(d_head)")
    one = fields.boolean("multi_query", default=True)
    return gpt_like(
        _gpt2_sizes(reader, 1 if one else None),
        n_ctx=reader.whole_context("n_positions"),
        position="learned",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        activation=reader.activation("activation_function", "gelu_pytorch_tanh"),
        tied=fields.boolean("tie_word_embeddings", default=True),
    )


def _neo_windows(reader: ConfigReader, n_layer: int) -> list[int]:
    """``attention_types``: groups of names, "global" or "local", each with how often it is repeated."""
    fields = reader.fields
    groups: Any = fields.raw("attention_types")
    names: list[str] = []
    if groups is None:
        groups = [[["global", "local"], n_layer // 2]]
    try:
        for kinds, times in groups:
            if not isinstance(times, int) or times * len(kinds) > n_layer:
                raise ValueError
            names += list(kinds) * times
        if len(names) != n_layer or not set(names) <= {"global", "local"}:
            raise ValueError
    except (TypeError, ValueError) as error:
        raise fields.error(
            "attention_types", f'groups of "global" and "local" for {n_layer} layers'
        ) from error
    window = fields.integer("window_size", default=256)
    return [window if name == "local" else 0 for name in names]


def _read_neo(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    sizes = reader.sizes(
        n_head="num_heads", n_layer="num_layers", n_kv_head=None, default_d_ff=4, d_head=None
    )
    windows = _neo_windows(reader, sizes["n_layer"])
    return gpt_like(
        sizes,
        n_ctx=reader.whole_context("max_position_embeddings"),
        position="learned",
        norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        activation=reader.activation("activation_function", "gelu_new"),
        tied=fields.boolean("tie_word_embeddings", default=True),
        qkv_bias=False,
        score_scales=[1.0] * sizes["n_layer"],
        sliding_window=max(windows),
        windows=windows,
    )


def _read_opt(reader: ConfigReader) -> dict[str, Any]:
    """OPT-350M has norms of the stream after each half, and embeddings that are projected."""
    fields = reader.fields
    before = fields.boolean("do_layer_norm_before", default=True)
    affine = fields.boolean("layer_norm_elementwise_affine", default=True)
    sizes = reader.sizes(n_kv_head=None, d_ff="ffn_dim", d_head=None)
    projected = fields.integer("word_embed_proj_dim", default=sizes["d_model"]) != sizes["d_model"]
    tied = fields.boolean("tie_word_embeddings", default=True)
    bias = fields.boolean("enable_bias", default=True)
    fields.skip("_remove_final_layer_norm")  # of a model that has one
    return gpt_like(
        sizes,
        n_ctx=reader.whole_context("max_position_embeddings"),
        position="learned",
        norm_eps=1e-5,
        norm_weight=affine,
        norm_bias=affine,
        norm_place="before" if before else "residual",
        output_norm=before and not fields.boolean("_remove_final_layer_norm", default=False),
        activation=reader.activation("activation_function", "relu"),
        tied=tied and not projected,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def _settled_opt(config: dict[str, Any], tensors: MutableMapping[str, Any]) -> dict[str, Any]:
    return settle_projections(
        config,
        tensors,
        table="model.decoder.embed_tokens.weight",
        head="lm_head.weight",
        project_in="model.decoder.project_in.weight",
        project_out="model.decoder.project_out.weight",
    )


FAMILIES = {
    "GPT2LMHeadModel": Family(_read_gpt2, _GPT2_TENSORS, prefix="transformer.", harmless=("n_ctx",)),
    "GPTBigCodeForCausalLM": Family(
        _read_bigcode,
        _BIGCODE_TENSORS,
        prefix="transformer.",
        harmless=(
            "attention_softmax_in_fp32",
            "num_key_value_heads",  # multi_query decides
            "scale_attention_softmax_in_fp32",
        ),
    ),
    "GPTNeoForCausalLM": Family(
        _read_neo, _NEO_TENSORS, prefix="transformer.", harmless=("attention_layers",)
    ),
    "OPTForCausalLM": Family(
        _read_opt, _OPT_TENSORS, renamed={"decoder.": "model.decoder."}, settled=_settled_opt
    ),
}
