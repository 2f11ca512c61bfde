"""Mixtures with the router of DeepSeek-V3: GLM-4.5, ERNIE 4.5, MiniMax-M2, dots.llm1 and others."""

from __future__ import annotations

import math
from typing import Any

from specdec.fields import REQUIRED
from specdec.models.families import mtp
from specdec.models.families.config_reader import LAYER_TYPES, ConfigReader
from specdec.models.families.family import Either, Family, Named, absent, interleaved, named, row
from specdec.models.families.llama import llama_like
from specdec.models.families.moe import MIXTRAL, QWEN, mixture, sparse_after

_MLP = "model.layers.{i}.mlp"
_ATTENTION = "model.layers.{i}.self_attn"


def _shared(*modules: str) -> dict[str, Named | Either]:
    """Return the entries of the shared expert under one of several names."""
    return {
        f"shared_expert.mlp_{part}": Either(
            tuple(Named(f"{_MLP}.{module}.{part}_proj") for module in modules)
        )
        for part in ("gate", "up", "down")
    }


def _correction(*names: str) -> dict[str, Named | Either]:
    return {"router_correction": Either(tuple(Named(_MLP + name) for name in names))}


_PLAIN = QWEN | _shared("shared_experts") | _correction(".gate.e_score_correction_bias")
_EXAONE = _PLAIN | _correction(".e_score_correction_bias", ".gate.e_score_correction_bias")
_HY = QWEN | {
    **_shared("shared_mlp", "shared_experts"),
    **_correction(".expert_bias", ".e_score_correction_bias"),
    "router": Either((Named(f"{_MLP}.router.gate"), Named(f"{_MLP}.gate"))),
}
_ERNIE = _PLAIN | {
    **named(_ATTENTION, interleaved, attn_q=".q_proj", attn_k=".k_proj"),
    "router_correction": row(f"{_MLP}.moe_statics.e_score_correction_bias"),
}
_AFMOE = _PLAIN | _correction(".expert_bias") | {
    **named(_ATTENTION, attn_gate=".gate_proj"),
    **named(_MLP, router=".router.gate"),
    **named("model.layers.{i}", attn_post_norm=".post_attention_layernorm", mlp_norm=".pre_mlp_layernorm",
            mlp_post_norm=".post_mlp_layernorm"),
}  # fmt: skip
_LAGUNA = QWEN | _shared("shared_expert", "shared_experts") | {
    **_correction(".experts.e_score_correction_bias", ".gate.e_score_correction_bias"),
    **named(_ATTENTION, attn_gate=".g_proj"),
}  # fmt: skip
_MINIMAX = MIXTRAL | named(router_correction="model.layers.{i}.block_sparse_moe.e_score_correction_bias")


def router(
    reader: ConfigReader, scale: str = "routed_scaling_factor", absent_scale: float = 1.0, norm: bool = True
) -> dict[str, Any]:
    """Read sigmoid scores, corrected in the choice, and groups; ``scale``: field of the weights' factor."""
    fields = reader.fields
    n_groups, n_chosen = fields.integer("n_group", default=1), fields.integer("topk_group", default=1)
    groups = {"n_expert_groups": n_groups, "n_groups_per_token": n_chosen} if n_groups > 1 else {}
    return groups | {
        "router": "sigmoid",
        "router_correction": True,
        "router_renormalize": fields.boolean("norm_topk_prob", default=norm),
        "router_eps": 1e-20,
        "routed_scale": fields.number(scale, default=absent_scale),
    }


def _glm(reader: ConfigReader) -> dict[str, Any]:
    """Read GLM-4.5 to 4.7: rotary positions in half of each head."""
    fields, sizes = reader.fields, reader.sizes()
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5,
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.5),),
        qkv_bias=fields.boolean("attention_bias", default=False),
        qk_norm="head" if fields.boolean("use_qk_norm", default=False) else "none",
        **router(reader), **sparse_after(reader, sizes["n_layer"], 1),
        **mixture(reader, n_experts=128, n_chosen=8, d_expert="moe_intermediate_size", absent=1408,
                  shared=("n_shared_experts", 1)),
    )  # fmt: skip


def _solar(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    fields.require("first_k_dense_replace", 0, because="every layer has experts")
    sizes = reader.sizes(absent_kv_head=8, d_ff="moe_intermediate_size", default_d_head=128)
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5,
        turning=(reader.rotation(sizes["d_head"], partial=True, theta=1_000_000.0),),
        qkv_bias=fields.boolean("attention_bias", default=False), **router(reader),
        **mixture(reader, n_experts=128, n_chosen=8, d_expert="moe_intermediate_size",
                  shared=("n_shared_experts", 1)),
    )  # fmt: skip


def _dots(reader: ConfigReader) -> dict[str, Any]:
    """Read dots.llm1: windows, if any, start at layer ``max_window_layers``."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=32)
    n_layer = sizes["n_layer"]
    windowed = not fields.has("sliding_window") or fields.raw("sliding_window") is not None
    first = fields.integer("max_window_layers", minimum=0, default=62)
    default = ["sliding_attention" if windowed and i >= first else "full_attention" for i in range(n_layer)]
    return llama_like(
        reader, sizes=sizes, bias=False, qk_norm="head", **router(reader, norm=False),
        **sparse_after(reader, n_layer, 0),
        **mixture(reader, n_experts=REQUIRED, n_chosen=REQUIRED, d_expert="moe_intermediate_size",
                  absent=1408, shared=("n_shared_experts", REQUIRED)),
        **reader.windows(reader.layer_types(n_layer, default), default=4096),
    )  # fmt: skip


def _exaone(reader: ConfigReader) -> dict[str, Any]:
    """Read K-EXAONE: rotary positions only in layers with windows."""
    sizes = reader.sizes(absent_kv_head=32)
    n_layer = sizes["n_layer"]
    layer_types = reader.layer_types(n_layer, reader.fields.integer("sliding_window_pattern", default=4))
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5, qk_norm="head",
        rotations=[0 if layer_type == "sliding_attention" else -1 for layer_type in layer_types],
        **router(reader, absent_scale=2.5), **sparse_after(reader, n_layer, 1),
        **mixture(reader, n_experts=64, n_chosen=8, d_expert="moe_intermediate_size", absent=1024,
                  shared=("num_shared_experts", 1)),
        **reader.windows(layer_types, default=4096),
    )  # fmt: skip


def _hy(reader: ConfigReader) -> dict[str, Any]:
    """Read Hunyuan 3."""
    sizes = reader.sizes(absent_kv_head=8, default_d_head=128)
    reader.fields.require("mlp_bias", False, because="experts have no biases")
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5, theta=11_158_840.0, bias=False, qk_norm="head",
        **router(reader, "router_scaling_factor", 2.826), **sparse_after(reader, sizes["n_layer"], 1),
        **mixture(reader, n_experts=192, n_chosen=8, d_expert="moe_intermediate_size", absent=1536,
                  shared=("num_shared_experts", 1)),
    )  # fmt: skip


def _minimax(reader: ConfigReader) -> dict[str, Any]:
    """Read MiniMax-M2: norms of whole queries and keys, ``rotary_dim`` dimensions of a head turned."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=8, default_d_head=128)
    fields.require("scoring_func", "sigmoid", because="scores are sigmoids")
    fields.require("use_qk_norm", True, because="queries and keys are normalized")
    fields.require("attn_type_list", [1] * sizes["n_layer"], because="all layers have full attention")
    fraction = fields.integer("rotary_dim", default=sizes["d_head"]) / sizes["d_head"]
    return llama_like(
        reader, sizes=sizes, qk_norm="whole",
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=fraction, theta=5_000_000.0),),
        router="sigmoid", router_correction=True, router_renormalize=True,
        **mixture(reader, n_experts=256, n_chosen=8, d_expert="intermediate_size"),
    )  # fmt: skip


def _afmoe(reader: ConfigReader) -> dict[str, Any]:
    """Read AFMoE (Trinity): gates of attention, rotary positions only in layers with windows."""
    fields, sizes = reader.fields, reader.sizes(default_d_head=128)
    n_layer = sizes["n_layer"]
    fields.require("score_func", "sigmoid", because="scores are sigmoids")
    fields.require("route_norm", True, because="weights are divided by their sum")
    layer_types = reader.layer_types(n_layer, fields.integer("global_attn_every_n_layers", default=4))
    n_dense = fields.integer("num_dense_layers", minimum=0, default=1)
    scaled = fields.boolean("mup_enabled", default=False)
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5, bias=False, qk_norm="head", norm_position="both",
        attn_gate="whole", embedding_scale=math.sqrt(sizes["d_model"]) if scaled else 1.0,
        rotations=[0 if layer_type == "sliding_attention" else -1 for layer_type in layer_types],
        **router(reader, "route_scale"), mixtures=[int(i >= n_dense) for i in range(n_layer)],
        **mixture(reader, n_experts=64, n_chosen=6, d_expert="moe_intermediate_size", absent=1408,
                  shared=("num_shared_experts", 2)),
        **reader.windows(layer_types, default=1024),
    )  # fmt: skip


def _laguna(reader: ConfigReader) -> dict[str, Any]:
    """Read Laguna: softplus gates of attention, heads, windows and RoPE by layer."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=8, default_d_head=128)
    fields.require("moe_apply_router_weight_on_input", False, because="weights are those of outputs")
    fields.require("moe_router_logit_softcapping", 0.0, because="router logits have no cap")
    n_layer = sizes["n_layer"]
    layer_types = reader.layer_types(n_layer, ["full_attention"] * n_layer)
    heads = [sizes["n_head"]] * n_layer
    if fields.raw("num_attention_heads_per_layer") is not None:
        heads = fields.integers("num_attention_heads_per_layer", minimum=1)
        if len(heads) != n_layer or any(one % sizes["n_kv_head"] for one in heads):
            expected = f"{n_layer} multiples of num_key_value_heads, which is {sizes['n_kv_head']}"
            raise fields.error("num_attention_heads_per_layer", expected)
    gating = fields.raw("gating")
    if gating not in (None, True, "per-head", "per-element"):
        raise fields.unsupported("gating", "true, 'per-head' or 'per-element'")
    turning = tuple(reader.rotation(sizes["d_head"], layer_type=one, partial=True) for one in LAYER_TYPES)
    if len({*heads, sizes["n_head"]}) > 1:
        sizes["n_heads"] = heads
    return llama_like(
        reader, sizes=sizes, bias=False, qk_norm="head", turning=turning,
        attn_gate="whole" if gating == "per-element" else "head", attn_gate_softplus=True,
        rotations=[LAYER_TYPES.index(one) for one in layer_types],
        router="sigmoid", router_correction=True, router_renormalize=True,
        routed_scale=fields.number("moe_routed_scaling_factor", default=1.0),
        d_shared_expert=fields.integer("shared_expert_intermediate_size", default=512),
        **sparse_after(reader, n_layer, 1), **reader.windows(layer_types, default=512),
        **mixture(reader, n_experts=256, n_chosen=8, d_expert="moe_intermediate_size", absent=512),
    )  # fmt: skip


def _ernie(reader: ConfigReader) -> dict[str, Any]:
    """Read ERNIE 4.5 with experts: softmax scores, corrected in the choice."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=4)
    fields.require("use_bias", False, because="experts have no biases")
    n_layer = sizes["n_layer"]
    first = fields.integer("moe_layer_start_index", minimum=0, default=1)
    last = fields.integer("moe_layer_end_index", minimum=-1, default=-1)
    step = fields.integer("moe_layer_interval", default=1)
    last = n_layer - 1 if last == -1 else last
    return llama_like(
        reader, sizes=sizes, theta=500_000.0, norm_eps=1e-5, tied=True, router_correction=True,
        # A floor of the sum of weights. Adding it changes no sum above 2e-5.
        router_renormalize=True, router_eps=fields.number("moe_norm_min", default=1e-12),
        mixtures=[int(first <= i <= last and (i + 1) % step == 0) for i in range(n_layer)],
        **mixture(reader, n_experts=64, n_chosen=6, d_expert="moe_intermediate_size", absent=1536,
                  shared=("moe_num_shared_experts", 2)),
    )  # fmt: skip


_GLM_ABSENT = absent(4096, 10944, 46, 96, 151552, 131072) | {"num_key_value_heads": 8}
_SOLAR_ABSENT = absent(4096, None, 48, 64, 196608, 131072) | {"moe_intermediate_size": 1280}
_MINIMAX_HARMLESS = (
    "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta",
    "mtp_transformer_layers", "num_mtp_modules", "qk_norm_type", "shared_intermediate_size",
    "shared_moe_mode", "use_mtp", "use_routing_bias",
)  # fmt: skip

FAMILIES = {
    "Glm4MoeForCausalLM": Family(_glm, _PLAIN, "glm4_moe", _GLM_ABSENT, mtp=mtp.DEEPSEEK),
    "SolarOpenForCausalLM": Family(
        _solar, _PLAIN, "solar_open", _SOLAR_ABSENT, mtp=mtp.DEEPSEEK, harmless=("intermediate_size",)
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        _ernie, _ERNIE, "ernie4_5_moe", absent(2560, 12288, 28, 20, 103424, 131072), mtp=mtp.ERNIE,
        harmless=("moe_capacity", "moe_gate", "moe_use_aux_free"),
    ),
    "MiniMaxM2ForCausalLM": Family(
        _minimax, _MINIMAX, "minimax_m2", absent(3072, 1536, 62, 48, 200064, 196608),
        harmless=_MINIMAX_HARMLESS,
    ),
    "Dots1ForCausalLM": Family(
        _dots, _PLAIN, "dots1", absent(4608, 10944, 62, 32, 152064, 2048), harmless=("scoring_func",)
    ),
    "ExaoneMoeForCausalLM": Family(
        _exaone, _EXAONE, "exaone_moe", absent(4096, 16384, 32, 32, 102400, 2048), mtp=mtp.EXAONE,
    ),
    "AfmoeForCausalLM": Family(
        _afmoe, _AFMOE, "afmoe", absent(2048, 6144, 32, 16, 200192, 16384),
        harmless=("load_balance_coeff", "num_expert_groups", "num_limited_groups", "use_grouped_mm"),
    ),
    "LagunaForCausalLM": Family(
        _laguna, _LAGUNA, "laguna", absent(2048, 8192, 40, 48, 100352, 131072) | {"rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }},
    ),
    "HYV3ForCausalLM": Family(
        _hy, _HY, "hy_v3", absent(4096, 13312, 80, 64, 120832, 131072), mtp=mtp.HUNYUAN,
        harmless=("enable_moe_fp32_combine",),
    ),
}  # fmt: skip
