"""Families with Llama's block and another attention: HunYuan 1 and nanochat, AFMoE (Trinity)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Array, Config, Family, Named, Shape, absent, named
from specdec.models.families.llama import LLAMA, llama_like
from specdec.models.families.moe import QWEN, mixture

_LAYER = "model.layers.{i}"


def half_of_heads(name: str, part: int) -> Named:
    """Return the entry of one of two matrices whose heads take turns: queries (part 0) and gates (1)."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        heads = array.reshape(-1, 2, config["d_head"], *array.shape[1:])
        return heads[:, part].reshape(shape)

    return Named(name, view, lambda shape, _: (2 * shape[0], *shape[1:]))


def _turned_back(name: str) -> Named:
    """Return the entry of queries or keys that rotate by negative angles: their halves swap places."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        heads = array.reshape(-1, 2, config["d_head"] // 2, *array.shape[1:])
        return heads[:, ::-1].reshape(shape)

    return Named(name, view)


def _ones(name: str) -> Named:
    """Return the entry of a norm's weights that no file holds."""
    return Named(name, make=lambda shape: np.ones(shape, np.float32))


_HUNYUAN = LLAMA | named(
    _LAYER, attn_q_norm=".self_attn.query_layernorm", attn_k_norm=".self_attn.key_layernorm"
)
_NANOCHAT = LLAMA | {
    **named(_LAYER, _turned_back, attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj"),
    **named(_LAYER, _ones, attn_q_norm=".self_attn.q_norm", attn_k_norm=".self_attn.k_norm"),
    **named(_LAYER, mlp_up=".mlp.fc1", mlp_down=".mlp.fc2"),
}


_AFMOE = QWEN | {
    **named(
        _LAYER, attn_gate=".self_attn.gate_proj", attn_post_norm=".post_attention_layernorm",
        mlp_norm=".pre_mlp_layernorm", mlp_post_norm=".post_mlp_layernorm", router=".mlp.router.gate",
        router_correction=".mlp.expert_bias",
    ),
    **{
        f"shared_expert.mlp_{part}": Named(f"{_LAYER}.mlp.shared_experts.{part}_proj")
        for part in ("gate", "up", "down")
    },
}  # fmt: skip


def _hunyuan(reader: ConfigReader) -> dict[str, Any]:
    """Read HunYuan 1: norms by head after RoPE, whose base a constant alpha may stretch."""
    sizes = reader.sizes()
    return llama_like(
        reader, sizes=sizes, turning=(reader.rotation(sizes["d_head"], alpha=True),), norm_eps=1e-5,
        bias=False, qk_norm="head", qk_norm_rotated=True,
    )  # fmt: skip


def _nanochat(reader: ConfigReader) -> dict[str, Any]:
    """Read nanochat: norms without weights, one of them after the embedding; no gate in the MLP."""
    return llama_like(
        reader, bias=False, qk_norm="head", qk_norm_rotated=True, norm_weight=False, embedding_norm=True,
        gated=False, activation=reader.activation("hidden_act", "relu2"),
        logit_softcap=reader.optional_number("final_logit_softcapping", 15.0),
    )  # fmt: skip


def _afmoe(reader: ConfigReader) -> dict[str, Any]:
    """Read AFMoE: gated attention, rotary positions in layers with windows, DeepSeek-V3's router."""
    fields, sizes = reader.fields, reader.sizes(default_d_head=128)
    n_layer = sizes["n_layer"]
    fields.require("score_func", "sigmoid", because="scores are sigmoids")
    fields.require("route_norm", True, because="weights of experts have the sum route_scale")
    layer_types = reader.layer_types(n_layer, fields.integer("global_attn_every_n_layers", default=4))
    n_dense = fields.integer("num_dense_layers", minimum=0, default=1)
    scaled = fields.boolean("mup_enabled", default=False)
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5, bias=False, norm_position="both", qk_norm="head",
        attn_gate="whole", embedding_scale=math.sqrt(sizes["d_model"]) if scaled else 1.0,
        rotations=[0 if layer_type == "sliding_attention" else -1 for layer_type in layer_types],
        router="sigmoid", router_correction=True, router_renormalize=True, router_eps=1e-20,
        routed_scale=fields.number("route_scale", default=1.0),
        mixtures=[int(i >= n_dense) for i in range(n_layer)],
        **mixture(reader, n_experts=64, n_chosen=6, d_expert="moe_intermediate_size", absent=1408,
                  shared=("num_shared_experts", 2)),
        **reader.windows(layer_types, default=1024),
    )  # fmt: skip


FAMILIES = {
    "AfmoeForCausalLM": Family(
        _afmoe, _AFMOE, "afmoe", absent(2048, 6144, 32, 16, 200192, 16384),
        harmless=(
            "load_balance_coeff", "n_group", "num_expert_groups", "num_limited_groups", "topk_group",
            "use_grouped_mm",
        ),
    ),
    "HunYuanDenseV1ForCausalLM": Family(
        _hunyuan, _HUNYUAN, "hunyuan_v1_dense", absent(4096, 11008, 32, 32, 290943, 2048),
        harmless=("eod_token_id", "use_qk_norm"),
    ),
    "NanoChatForCausalLM": Family(
        _nanochat, _NANOCHAT, "nanochat", absent(768, 8192, 12, 6, 50304, 2048)
    ),
}  # fmt: skip
