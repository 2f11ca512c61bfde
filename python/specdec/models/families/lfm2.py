"""LFM2 and LFM3: short convolutions instead of attention in most layers, and mixtures of experts."""

from __future__ import annotations

from typing import Any

from specdec.fields import MAX_INT
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import SEEING, Either, Family, Named, absent, named
from specdec.models.families.hybrid import convolution
from specdec.models.families.llama import llama_like, two_rotations
from specdec.models.families.moe import experts, mixture

_LAYER = "model.layers.{i}"

_TENSORS = {"mixer_conv": convolution(f"{_LAYER}.conv.conv.weight")} | named(
    _LAYER,
    token_embedding="model.embed_tokens.weight", output_norm="model.embedding_norm", head="lm_head.weight",
    attn_norm=".operator_norm", attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj",
    attn_v=".self_attn.v_proj", attn_q_norm=".self_attn.q_layernorm", attn_k_norm=".self_attn.k_layernorm",
    attn_out=".self_attn.out_proj", mixer_in=".conv.in_proj", mixer_conv_bias=".conv.conv.bias",
    mixer_out=".conv.out_proj", mlp_norm=".ffn_norm", mlp_gate=".feed_forward.w1", mlp_up=".feed_forward.w3",
    mlp_down=".feed_forward.w2",
)  # fmt: skip

_LFM3: dict[str, Named | Either] = {
    **_TENSORS,
    "attn_gate": Either((Named(f"{_LAYER}.self_attn.gate_proj"), Named(f"{_LAYER}.self_attn.g_proj"))),
    **named(
        _LAYER, attn_q_norm=".self_attn.q_norm", attn_k_norm=".self_attn.k_norm",
        attn_out=".self_attn.o_proj", attn_post_norm=".post_operator_norm", mlp_post_norm=".post_ffn_norm",
    ),
}  # fmt: skip

_FEED_FORWARD = f"{_LAYER}.feed_forward"
_MOE = _TENSORS | {
    **experts(f"{_FEED_FORWARD}.experts", "w1", "w3", "w2", together=f"{_FEED_FORWARD}.experts"),
    **named(_FEED_FORWARD, router=".gate", router_correction=".expert_bias"),
}


def _width(reader: ConfigReader, width: int) -> int:
    """Return the width of the MLP: two thirds of the declared one, times a factor, rounded up."""
    fields = reader.fields
    if not fields.boolean("block_auto_adjust_ff_dim", default=True):
        fields.skip("block_ffn_dim_multiplier", "block_multiple_of")
        return width
    width = int(2 * width / 3)
    if fields.has("block_ffn_dim_multiplier") and fields.raw("block_ffn_dim_multiplier") is None:
        fields.skip("block_multiple_of")
        return width
    whole: int = fields.integer("block_multiple_of", default=256)
    width = int(fields.number("block_ffn_dim_multiplier", default=1.0, maximum=MAX_INT) * width)
    return -(-width // whole) * whole


def _mixers(reader: ConfigReader, n_layer: int) -> dict[str, Any]:
    """Return which layers have convolutions, and what these are."""
    fields = reader.fields
    attending = fields.raw("full_attn_idxs")
    if fields.raw("layer_types") is None and attending is not None:
        attending = fields.integers("full_attn_idxs", maximum=n_layer - 1)
        layer_types = ["full_attention" if i in attending else "conv" for i in range(n_layer)]
    else:
        every = ["full_attention"] * n_layer
        layer_types = reader.layer_types(n_layer, every, names=("full_attention", "conv"))
    return _convolutions(reader, layer_types, 3)


def _convolutions(reader: ConfigReader, layer_types: list[str], width: int) -> dict[str, Any]:
    """Read the convolutions; `width` is the default."""
    fields = reader.fields
    bias = fields.boolean("conv_bias", default=False)
    return {
        "mixers": ["convolution" if one == "conv" else "attention" for one in layer_types],
        "conv_width": fields.integer("conv_L_cache", default=width, maximum=16),
        "conv_bias": bias,
        "mixer_bias": bias,
    }


def _read(
    reader: ConfigReader, sizes: dict[str, Any], mixers: dict[str, Any] | None = None, **switches: Any
) -> dict[str, Any]:
    """Read the fields that both versions share."""
    config = llama_like(
        reader, sizes=sizes, theta=1_000_000.0, tied=True, eps_field="norm_eps", norm_eps=1e-5,
        activation="silu", qk_norm="head", **(mixers or _mixers(reader, sizes["n_layer"])), **switches,
    )  # fmt: skip
    return config | {"tied": reader.fields.boolean("tie_embedding", default=config["tied"])}


def _lfm2(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    d_ff = "block_ff_dim" if fields.has("block_ff_dim") else "intermediate_size"
    fields.skip("intermediate_size")
    sizes = reader.sizes(absent_kv_head=8, d_ff=d_ff)
    return _read(reader, sizes | {"d_ff": _width(reader, sizes["d_ff"])})


def _lfm2_moe(reader: ConfigReader) -> dict[str, Any]:
    """Read LFM2 with experts, chosen by sigmoid scores and corrections."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=8)
    n_dense = fields.integer("num_dense_layers", minimum=0, default=2)
    return _read(
        reader, sizes, router="sigmoid", router_correction=fields.boolean("use_expert_bias", default=True),
        router_renormalize=fields.boolean("norm_topk_prob", default=True), router_eps=1e-6,
        routed_scale=fields.number("routed_scaling_factor", default=1.0),
        mixtures=[int(i >= n_dense) for i in range(sizes["n_layer"])],
        **mixture(reader, n_experts=32, n_chosen=4, d_expert="moe_intermediate_size", absent=1792),
    )  # fmt: skip


def _lfm3(reader: ConfigReader) -> dict[str, Any]:
    """Read LFM3: gates of heads, norms of outputs too, windows and RoPE by type of layer."""
    fields = reader.fields
    sizes = reader.sizes(absent_kv_head=4, default_d_head=128)
    n_layer = sizes["n_layer"]
    types = ("full_attention", "sliding_attention", "conv")
    default = [types[0] if i % 4 == 2 else types[1] if i % 4 == 0 and i else types[2] for i in range(n_layer)]
    layer_types = reader.layer_types(n_layer, default, names=types)
    sandwich = fields.boolean("use_sandwich_norm", default=True)
    gated = fields.boolean("use_attention_gate", default=True)
    return _read(
        reader, sizes, _convolutions(reader, layer_types, 7), bias=False,
        norm_position="both" if sandwich else "before", attn_gate="head" if gated else "none",
        **two_rotations(reader, sizes["d_head"], layer_types, 1_000_000.0, theta=10_000.0),
        **reader.windows(layer_types, default=256),
    )  # fmt: skip


_LFM3_ROPE = {
    "full_attention": {
        "rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}  # fmt: skip
_ABSENT = absent(2560, 12288, 32, 32, 65536, 128_000)
_HARMLESS = (
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
    "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta",
    "use_pos_enc",
)  # fmt: skip
_SEEING_HARMLESS = (
    *SEEING["harmless"], *_HARMLESS, "do_image_splitting", "downsample_factor", "encoder_patch_size",
    "max_image_tokens", "max_num_patches", "max_pixels_tolerance", "max_tiles", "min_image_tokens",
    "min_tiles", "projector_bias", "projector_hidden_size", "projector_use_layernorm", "tile_size",
    "use_image_special_tokens", "use_thumbnail",
)  # fmt: skip

FAMILIES = {
    "Lfm2ForCausalLM": Family(_lfm2, _TENSORS, "lfm2", _ABSENT, harmless=_HARMLESS),
    "Lfm2MoeForCausalLM": Family(
        _lfm2_moe, _MOE, "lfm2_moe", absent(2048, 7168, 32, 32, 65536, 128_000)
    ),
    "Lfm3ForCausalLM": Family(
        _lfm3, _LFM3, "lfm3", absent(2048, 7680, 24, 16, 128_000, 128_000) | {"rope_parameters": _LFM3_ROPE}
    ),
    "Lfm2VlForConditionalGeneration": Family(
        _lfm2, _TENSORS, "", _ABSENT, **SEEING | {"harmless": _SEEING_HARMLESS}
    ),
}  # fmt: skip
