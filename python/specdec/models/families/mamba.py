"""Hybrids of attention and Mamba-2: Granite 4 and Bamba.

Files call the values of Mamba-2 x, the keys B and the queries C. The core has them in the order C, B, x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specdec.models.families.config_reader import ConfigReader, Rotation
from specdec.models.families.family import Config, Either, Family, Named, Shape, absent, halves, named
from specdec.models.families.hybrid import Rate, Rows, convolution, projections
from specdec.models.families.llama import LLAMA, granite, llama_like
from specdec.models.families.moe import GRANITE, SHARED, mixture

_LAYER = "model.layers.{i}"

# ------------------------------------------------------------------------------------------- tensors


def _sizes(config: Config) -> tuple[int, int]:
    """Return the rows of x, and of B or C."""
    n_values: int = config["n_mixer_value_head"] * config["d_mixer_value"]
    return n_values, config["n_mixer_key_head"] * config["d_mixer_key"]


def _channels(config: Config) -> Rows:
    """Return the rows of C, B and x among x, B, C."""
    n_values, n_keys = _sizes(config)
    rows = np.arange(n_values + 2 * n_keys)
    return np.concatenate([rows[n_values + n_keys :], rows[n_values:-n_keys], rows[:n_values]])


def _projected(config: Config) -> dict[str, Rows]:
    """Return the rows of a matrix of gates, x, B, C, time steps."""
    channels, (n_values, _) = _channels(config), _sizes(config)
    steps = n_values + len(channels) + np.arange(config["n_mixer_value_head"])
    return {"in": n_values + channels, "gate": np.arange(n_values), "decay": steps}


def _reshaped(name: str, groups: str = "", entry_type: type[Named] = Named) -> Named:
    """Return the entry of a vector that GGUF files have as [groups, size]; by default [size, 1]."""

    def shape_there(shape: Shape, config: Config) -> Shape:
        n = config[groups] if groups else shape[0]
        return (n, shape[0] // n)

    return entry_type(name, lambda array, shape, _: array.reshape(shape), shape_there)


_PARTS = ("in", "gate", "decay")


def mamba_of(layer: str) -> dict[str, Named]:
    """Return the entries of Mamba-2 in a folder, whose tensors begin with `layer`."""
    return projections(layer, dict.fromkeys(_PARTS, "in_proj"), _projected) | {
        "mixer_conv": convolution(f"{layer}.conv1d.weight", _channels),
        "mixer_conv_bias": _channels_of(f"{layer}.conv1d.bias"),
        "mixer_decay.rate": Rate(f"{layer}.A_log"),
        "mixer_skip": Named(f"{layer}.D"),
        "mixer_norm": Named(f"{layer}.norm"),
        "mixer_out": Named(f"{layer}.out_proj"),
    }


def _channels_of(name: str) -> Named:
    return Named(name, lambda array, shape, config: array[_channels(config)])


def of_gguf(block: str) -> dict[str, Named]:
    """Return the entries of Mamba-2 in GGUF files."""
    return projections(block, dict.fromkeys(_PARTS, "ssm_in"), _projected, "ssm_dt.bias") | {
        "mixer_conv": convolution(f"{block}.ssm_conv1d.weight", _channels, of_gguf=True),
        "mixer_conv_bias": _channels_of(f"{block}.ssm_conv1d.bias"),
        "mixer_decay.rate": _reshaped(f"{block}.ssm_a"),
        "mixer_skip": _reshaped(f"{block}.ssm_d"),
        "mixer_norm": _reshaped(f"{block}.ssm_norm", "n_mixer_norm_groups"),
        "mixer_out": Named(f"{block}.ssm_out"),
    }


# --------------------------------------------------------------------------------------------- fields


_INFINITIES = (math.inf, "inf", "Infinity", {"__float__": "Infinity"})


def _mamba(reader: ConfigReader) -> dict[str, Any]:
    """Read the sizes of Mamba-2."""
    fields, width = reader.fields, reader.fields.integer("hidden_size")
    n_head, n_groups = (
        fields.integer("mamba_n_heads", default=128),
        fields.integer("mamba_n_groups", default=1),
    )
    n_values = int(fields.number("mamba_expand", default=2) * width)
    fields.require("mamba_proj_bias", False, because="projections have no biases")
    fields.require("hidden_act", "silu", because="Mamba-2 has SiLU")
    limits = fields.raw("time_step_limit")  # which transformers ignores in decoding
    if limits is not None and limits not in [[0.0, infinity] for infinity in _INFINITIES]:
        raise fields.unsupported("time_step_limit", "[0.0, Infinity]: time steps have no limits")
    size = fields.raw("mamba_d_head")
    d_head = n_values // n_head if size in (None, "auto") else fields.integer("mamba_d_head")
    if d_head * n_head != n_values:
        raise fields.error("mamba_n_heads", f"{n_values} / mamba_d_head, which is {d_head}")
    if n_head % n_groups:
        raise fields.error("mamba_n_groups", f"a divisor of mamba_n_heads, which is {n_head}")
    if d_head % 32:
        raise fields.unsupported("mamba_d_head", "a multiple of 32")
    return {
        "conv_width": fields.integer("mamba_d_conv", default=4, maximum=16),
        "conv_bias": fields.boolean("mamba_conv_bias", default=True),
        "n_mixer_key_head": n_groups,
        "n_mixer_value_head": n_head,
        "d_mixer_key": fields.integer("mamba_d_state", default=256),
        "d_mixer_value": d_head,
        "mixer_grouped": True,
        "n_mixer_norm_groups": n_groups,
    }


def _granite(reader: ConfigReader) -> dict[str, Any]:
    """Read Granite's block with Mamba-2 in some layers, and a shared MLP next to experts, if any."""
    fields, sizes = reader.fields, reader.sizes()
    n_layer, turning = sizes["n_layer"], None
    names = {"mamba": "mamba2", "linear_attention": "mamba2", "attention": "attention"}
    names["full_attention"] = "attention"
    layer_types = reader.layer_types(n_layer, ["mamba"] * n_layer, names=tuple(names))
    mixers = [names[name] for name in layer_types]
    switches: dict[str, Any] = {"mixers": mixers, **(_mamba(reader) if "mamba2" in mixers else {})}
    width = fields.integer("shared_intermediate_size", default=1024)
    if fields.integer("num_local_experts", minimum=0, default=8):
        switches |= {"router": "softmax_chosen", "d_shared_expert": width}
        switches |= mixture(reader, n_experts=8, n_chosen=2, d_expert="intermediate_size")
    else:
        fields.skip("num_experts_per_tok")
        sizes["d_ff"] = width
    positions = {"rope": "rotary", "nope": "none"}
    if fields.choice("position_embedding_type", positions, default="nope") == "none":
        fields.skip("rope_parameters", "rope_scaling", "rope_theta")
        turning = (Rotation([], 1.0, reader.context()),)
        switches["position"] = "none"
    return granite(reader, sizes, turning=turning, **switches)


def _bamba(reader: ConfigReader) -> dict[str, Any]:
    """Read Bamba: Llama's block with Mamba-2 in most layers; rotary positions in half of each head."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=8)
    n_layer = sizes["n_layer"]
    fields.require("attn_rotary_emb", sizes["d_head"] // 2, because="half of each head has positions")
    fields.require("partial_rotary_factor", 0.5, because="rope_parameters alone may have another")
    attending: list[int] = []
    if fields.raw("attn_layer_indices") is not None:
        attending = fields.integers("attn_layer_indices", maximum=n_layer - 1)
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5, bias=False, mlp_bias=fields.boolean("mlp_bias", default=False),
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.5),),
        mixers=["attention" if i in attending else "mamba2" for i in range(n_layer)], **_mamba(reader),
    )  # fmt: skip


_BAMBA = LLAMA | mamba_of(f"{_LAYER}.mamba") | named(
    _LAYER, output_norm="model.final_layernorm", mlp_norm=".pre_ff_layernorm",
    mlp_gate=".feed_forward.gate_proj", mlp_up=".feed_forward.up_proj", mlp_down=".feed_forward.down_proj",
)  # fmt: skip
_GRANITE: dict[str, Named | Either] = {
    **GRANITE,
    **halves(f"{SHARED}.input_linear"),
    "mlp_down": Named(f"{SHARED}.output_linear"),
    **mamba_of(f"{_LAYER}.mamba"),
}

FAMILIES = {
    "GraniteMoeHybridForCausalLM": Family(
        _granite, _GRANITE, "granitemoehybrid", absent(4096, 11008, 32, 32, 32000, 2048),
        harmless=("init_method", "mamba_chunk_size", "normalization_function"),
    ),
    "BambaForCausalLM": Family(
        _bamba, _BAMBA, "bamba", absent(4096, 14336, 32, 32, 128_000, 262_144),
        harmless=("mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"),
    ),
}  # fmt: skip
