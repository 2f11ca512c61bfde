"""Models with Mamba-2: Granite 4, Bamba, Falcon-H1, Nemotron-H and Mamba-2 alone.

Files call the values of Mamba-2 x, the keys B and the queries C. The core has them in the order C, B, x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from specdec.fields import MAX_INT, Fields
from specdec.models.families.config_reader import ConfigReader, Rotation
from specdec.models.families.deepseek_router import router
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


@dataclass(frozen=True)
class _Names:
    """Names of the fields that describe Mamba-2, and defaults of some."""

    n_head: str = "mamba_n_heads"
    d_head: str = "mamba_d_head"
    n_groups: str = "mamba_n_groups"
    d_state: str = "mamba_d_state"
    conv_width: str = "mamba_d_conv"
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    activation: str = "hidden_act"
    absent_groups: int = 1
    absent_state: int = 256
    absent_head: int | None = None


def _mamba(reader: ConfigReader, n_values: int | None = None, names: _Names = _Names()) -> dict[str, Any]:
    """Read the sizes of Mamba-2 with `n_values` values in all heads; None: as many as fields say."""
    fields = reader.fields
    n_head = fields.integer(names.n_head, default=128)
    n_groups = fields.integer(names.n_groups, default=names.absent_groups)
    fields.require(names.bias, False, because="projections have no biases")
    fields.require(names.activation, "silu", because="Mamba-2 has SiLU")
    limits = fields.raw("time_step_limit")  # which transformers ignores in decoding
    if limits is not None and limits not in [[0.0, infinity] for infinity in _INFINITIES]:
        raise fields.unsupported("time_step_limit", "[0.0, Infinity]: time steps have no limits")
    d_head = names.absent_head if fields.raw(names.d_head) in (None, "auto") else fields.integer(names.d_head)
    if d_head is None:
        d_head = (n_values or _expanded(reader)) // n_head
    if n_values is not None and d_head * n_head != n_values:
        raise fields.error(names.n_head, f"{n_values} / {names.d_head}, which is {d_head}")
    if n_head % n_groups:
        raise fields.error(names.n_groups, f"a divisor of {names.n_head}, which is {n_head}")
    return {
        "conv_width": fields.integer(names.conv_width, default=4, maximum=16),
        "conv_bias": fields.boolean(names.conv_bias, default=True),
        "n_mixer_key_head": n_groups,
        "n_mixer_value_head": n_head,
        "d_mixer_key": fields.integer(names.d_state, default=names.absent_state),
        "d_mixer_value": d_head,
        "mixer_grouped": True,
        "n_mixer_norm_groups": n_groups,
    }


def _expanded(reader: ConfigReader, name: str = "mamba_expand") -> int:
    """Return the number of values as a multiple of the model's width."""
    factor = reader.fields.number(name, default=2, maximum=MAX_INT)
    return int(factor * reader.fields.integer("hidden_size"))


def _granite(reader: ConfigReader) -> dict[str, Any]:
    """Read Granite's block with Mamba-2 in some layers, and a shared MLP next to experts, if any."""
    fields, sizes = reader.fields, reader.sizes()
    n_layer, turning = sizes["n_layer"], None
    names = {"mamba": "mamba2", "linear_attention": "mamba2", "attention": "attention"}
    names["full_attention"] = "attention"
    layer_types = reader.layer_types(n_layer, ["mamba"] * n_layer, names=tuple(names))
    mixers = [names[name] for name in layer_types]
    switches: dict[str, Any] = {
        "mixers": mixers,
        **(_mamba(reader, _expanded(reader)) if "mamba2" in mixers else {}),
    }
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
        mixers=["attention" if i in attending else "mamba2" for i in range(n_layer)],
        **_mamba(reader, _expanded(reader)),
    )  # fmt: skip


def _factors(fields: Fields, name: str, n: int) -> list[float]:
    return [1.0] * n if fields.raw(name) is None else fields.numbers(name, n)


def _falcon_h1(reader: ConfigReader) -> dict[str, Any]:
    """Read Falcon-H1: attention and Mamba-2 of the same input in each layer, and factors of projections."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=8)
    n_layer = sizes["n_layer"]
    fields.require("projectors_bias", False, because="projections have no biases")
    fields.require("mamba_use_mlp", True, because="all layers have an MLP")
    fields.require("attn_layer_indices", None, because="all layers have attention")
    factor = partial(fields.number, default=1.0)
    of_input, of_mixer = factor("attention_in_multiplier"), factor("ssm_in_multiplier")
    if of_input != 1.0:
        fields.require("attention_bias", False, because="attention_in_multiplier is not 1")
    gate, x, b, c, step = (of_mixer * number for number in _factors(fields, "ssm_multipliers", 5))
    scales, scores = [c, b, x, gate, step], factor("key_multiplier") * of_input**2
    of_gate, of_output = _factors(fields, "mlp_multipliers", 2)
    default = None if fields.has("mamba_d_ssm") else 1024
    n_values = fields.integer("mamba_d_ssm", default=default) or _expanded(reader)
    found = _mamba(reader, n_values)
    is_normed = fields.boolean("mamba_rms_norm", default=False)
    norm_first = fields.boolean("mamba_norm_before_gate", default=True) and is_normed
    if not is_normed:
        found["n_mixer_norm_groups"] = 0
    return llama_like(
        reader, sizes=sizes, norm_eps=1e-5, bias=False, mlp_bias=fields.boolean("mlp_bias", default=False),
        embedding_scale=factor("embedding_multiplier"), logit_scale=factor("lm_head_multiplier"),
        score_scales=[] if scores == 1.0 else [scores / math.sqrt(sizes["d_head"])] * n_layer,
        attn_out_scale=of_input * factor("attention_out_multiplier"),
        mixer_out_scale=factor("ssm_out_multiplier"), mlp_gate_scale=of_gate, mlp_down_scale=of_output,
        mixers=["attention+mamba2"] * n_layer, mixer_scales=[] if scales == [1.0] * 5 else scales,
        mixer_norm_first=norm_first, **found,
    )  # fmt: skip


_ALONE = _Names(
    "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "use_conv_bias", "use_bias",
    absent_groups=8, absent_state=128, absent_head=64,
)  # fmt: skip
_CONTEXT = 1 << 20


def _mamba2(reader: ConfigReader) -> dict[str, Any]:
    """Read Mamba-2: layers with a mixer only, and no bound of the context."""
    fields = reader.fields
    n_layer = fields.integer("num_hidden_layers", maximum=10_000)
    sizes = {
        "n_vocab": fields.integer("vocab_size"), "n_layer": n_layer, "n_head": 1, "n_kv_head": 1,
        "d_model": fields.integer("hidden_size"), "d_head": 1, "d_ff": 0,
    }  # fmt: skip
    return llama_like(
        reader, sizes=sizes, turning=(Rotation([], 1.0, reader.free_context(_CONTEXT)),), position="none",
        eps_field="layer_norm_epsilon", norm_eps=1e-5, activation="silu", mixers=["mamba2"] * n_layer,
        **_mamba(reader, _expanded(reader, "expand"), _ALONE),
    )  # fmt: skip


_BLOCKS = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def _pattern(reader: ConfigReader) -> str:
    """Return the block of each layer of Nemotron-H as M, *, - or E."""
    fields = reader.fields
    if fields.raw("layers_block_type") is None:
        pattern: str = fields.text("hybrid_override_pattern", default="ME*-")
        if not pattern or not set(pattern) <= set("ME*-"):
            raise fields.error("hybrid_override_pattern", "blocks named M, E, * or -")
        return pattern
    fields.skip("hybrid_override_pattern")
    names = fields.texts("layers_block_type")
    if not names or not set(names) <= _BLOCKS.keys():
        raise fields.error("layers_block_type", f"names among {', '.join(_BLOCKS)}")
    return "".join(_BLOCKS[name] for name in names)


def _nemotron_h(reader: ConfigReader) -> dict[str, Any]:
    """Read Nemotron-H: layers of one half, Mamba-2, attention without positions, an MLP or experts."""
    pattern = _pattern(reader)
    n_layer = len(pattern)
    reader = reader.with_absent(_NEMOTRON_SIZES | {"num_hidden_layers": n_layer})
    fields = reader.fields
    sizes = reader.sizes(absent_kv_head=8, default_d_head=fields.integer("attention_head_dim", default=128))
    if sizes["n_layer"] != n_layer:
        raise fields.error("num_hidden_layers", f"{n_layer}, the number of blocks")
    if "-" not in pattern:
        sizes["d_ff"] = 0
    fields.require("attention_bias", False, because="attention has no biases")
    fields.require("sliding_window", None, because="attention has no window")
    fields.require("use_bias", False, because="Mamba-2 has no biases")
    mlp_bias, switches = fields.boolean("mlp_bias", default=False), {}
    routed = ("moe_latent_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size")
    if "E" in pattern:
        fields.require("moe_latent_size", None, because="experts read the stream")
        fields.require("mlp_bias", False, because="experts have no biases")
        switches = router(reader) | {
            **mixture(reader, n_experts=8, n_chosen=2, d_expert="moe_intermediate_size", absent=7688),
            "d_shared_expert": fields.integer(routed[2], default=7688),
            "mixtures": [int(block == "E") for block in pattern],
        }
    else:
        fields.skip(*routed, "n_routed_experts", "num_experts_per_tok", "routed_scaling_factor", "n_group",
                    "topk_group", "norm_topk_prob")  # fmt: skip
    names = _Names(
        "mamba_num_heads", "mamba_head_dim", reader.name("n_groups", "mamba_n_groups"), "ssm_state_size",
        reader.name("conv_kernel", "mamba_d_conv"), reader.name("use_conv_bias", "mamba_conv_bias"),
        "mamba_proj_bias", "mamba_hidden_act", absent_groups=8, absent_state=128, absent_head=64,
    )  # fmt: skip
    mixers = {"M": "mamba2", "*": "attention"}
    return llama_like(
        reader, sizes=sizes, turning=(Rotation([], 1.0, reader.context()),), position="none", gated=False,
        activation=reader.activation("mlp_hidden_act", "relu2"), eps_field="layer_norm_epsilon",
        norm_eps=1e-5, mlp_bias=mlp_bias, mixers=[mixers.get(block, "none") for block in pattern],
        d_ffs=[sizes["d_ff"] if block == "-" else 0 for block in pattern], **switches,
        **_mamba(reader, names=names),
    )  # fmt: skip


_BLOCK = "backbone.layers.{i}"
_MIXER = f"{_BLOCK}.mixer"
_NEMOTRON_H = mamba_of(_MIXER) | named(
    _BLOCK, token_embedding="backbone.embeddings.weight", output_norm="backbone.norm_f",
    head="lm_head.weight", attn_norm=".norm", mlp_norm=".norm",
) | named(
    _MIXER, attn_q=".q_proj", attn_k=".k_proj", attn_v=".v_proj", attn_out=".o_proj", mlp_up=".up_proj",
    mlp_down=".down_proj", router=".gate", router_correction=".gate.e_score_correction_bias",
) | {
    name: Named(f"{_MIXER}.{module}.{part}_proj")
    for part in ("up", "down")
    for name, module in (
        (f"experts.mlp_{part}", "experts.{e}"), (f"shared_expert.mlp_{part}", "shared_experts")
    )
}  # fmt: skip
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

_NEMOTRON_SIZES = absent(4096, 21504, 4, 32, 131_072, 4096)
_STEPS = ("time_step_floor", "time_step_max", "time_step_min", "time_step_rank")  # of initialization

FAMILIES = {
    "FalconH1ForCausalLM": Family(
        _falcon_h1, _BAMBA, "falcon_h1", absent(4096, 14336, 32, 32, 128_000, 8192),
        harmless=("mamba_chunk_size", "mamba_expand", "mlp_expansion_factor", "num_logits_to_keep", *_STEPS),
    ),
    "Mamba2ForCausalLM": Family(
        _mamba2, _NEMOTRON_H, "mamba2",
        {"hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32768}, "backbone.",
        renamed={"backbone.embedding.": "backbone.embeddings."},
        harmless=("chunk_size", "rescale_prenorm_residual", "residual_in_fp32", *_STEPS),
    ),
    "NemotronHForCausalLM": Family(
        _nemotron_h, _NEMOTRON_H, "nemotron_h", _NEMOTRON_SIZES, "backbone.", left_out=("mtp.",),
        harmless=(
            "chunk_size", "expand", "hidden_dropout", "mamba_chunk_size", "mamba_dt_init_floor",
            "mamba_dt_max", "mamba_dt_min", "mamba_expand", "mamba_ssm_cache_dtype",
            "moe_shared_expert_overlap", "mtp_hybrid_override_pattern", "mtp_layers_block_type",
            "n_shared_experts", "num_logits_to_keep", "num_nextn_predict_layers", "partial_rotary_factor",
            "rescale_prenorm_residual", "residual_in_fp32", "rope_theta", "use_mamba_kernels", *_STEPS,
        ),
    ),
    "GraniteMoeHybridForCausalLM": Family(
        _granite, _GRANITE, "granitemoehybrid", absent(4096, 11008, 32, 32, 32000, 2048),
        harmless=("init_method", "mamba_chunk_size", "normalization_function"),
    ),
    "BambaForCausalLM": Family(
        _bamba, _BAMBA, "bamba", absent(4096, 14336, 32, 32, 128_000, 262_144),
        harmless=("mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"),
    ),
}  # fmt: skip
