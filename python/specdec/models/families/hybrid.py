"""Hybrids of attention and the gated delta rule: Qwen3.5 and Qwen3-Next.

The core and GGUF files of Qwen3.5 have the delta rule's value heads in *tiled* order: the first of each key
head, then the second of each, and so on. Folders of Qwen3.5, and all files of Qwen3-Next, have them *grouped*
by key head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.models.families import mtp
from specdec.models.families.attention import half_of_heads
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import (
    Array,
    Config,
    Either,
    Family,
    Named,
    Shape,
    absent,
    named,
    plus_one,
)
from specdec.models.families.llama import LLAMA, llama_like
from specdec.models.families.moe import QWEN, mixture, sparse_layers
from specdec.models.number_formats import widened

_LAYER = "model.layers.{i}"
_DELTA = f"{_LAYER}.linear_attn"

Rows = NDArray[np.int64]

# ------------------------------------------------------------------------------------- orders of rows


def _heads(config: Config) -> Rows:
    """Return the index in grouped order of each value head."""
    n_head, n_key = config["n_mixer_value_head"], config["n_mixer_key_head"]
    heads = np.arange(n_head)
    return heads if config.get("mixer_grouped") else heads.reshape(n_key, -1).T.reshape(-1)


def _sizes(config: Config) -> tuple[int, int, int]:
    """Return the rows of all queries (or keys), and of all values, and the number of value heads."""
    n_head: int = config["n_mixer_value_head"]
    return config["n_mixer_key_head"] * config["d_mixer_key"], n_head * config["d_mixer_value"], n_head


def _blocks(starts: Rows, size: int) -> Rows:
    """Return the indices of blocks of `size` rows."""
    return (starts[:, None] + np.arange(size)).reshape(-1)


def _values(config: Config) -> Rows:
    """Return the rows of values in grouped order."""
    return _blocks(_heads(config) * config["d_mixer_value"], config["d_mixer_value"])


def _channels(config: Config) -> Rows:
    """Return the rows of queries, keys and values in grouped order."""
    n_keys, _, _ = _sizes(config)
    return np.concatenate([np.arange(2 * n_keys), 2 * n_keys + _values(config)])


def _joined(config: Config) -> dict[str, Rows]:
    """Return the rows of a matrix of queries, keys and values, then gates, beta, decay."""
    n_keys, n_values, n_head = _sizes(config)
    gate = 2 * n_keys + n_values
    return {
        "in": _channels(config),
        "gate": gate + _values(config),
        "beta": gate + n_values + _heads(config),
        "decay": gate + n_values + n_head + _heads(config),
    }


def _by_key_head(config: Config) -> dict[str, Rows]:
    """Return the rows of Qwen3-Next's two matrices, grouped by key head.

    Per key head, one has a query, a key, values and gates; the other has beta and decay of these values.
    """
    n_key, d_key, d_value = (config[name] for name in ("n_mixer_key_head", "d_mixer_key", "d_mixer_value"))
    group = config["n_mixer_value_head"] // n_key
    size = 2 * d_key + 2 * group * d_value
    keys = np.arange(n_key) * size
    key, member = np.divmod(_heads(config), group)
    values = key * size + 2 * d_key + member * d_value
    return {
        "in": np.concatenate([_blocks(keys, d_key), _blocks(keys + d_key, d_key), _blocks(values, d_value)]),
        "gate": _blocks(values + group * d_value, d_value),
        "beta": key * 2 * group + member,
        "decay": key * 2 * group + group + member,
    }


# ------------------------------------------------------------------------------------------- tensors


def _chosen(
    name: str, rows: Callable[[Config], Rows], n_rows: Callable[[Config], int], bias: str = ""
) -> Named:
    """Return the entry of selected rows of a matrix with `n_rows`; `bias`: tensor of the heads' biases."""

    def shape_there(shape: Shape, config: Config) -> Shape:
        return (n_rows(config), *shape[1:]) if len(shape) == 2 else shape

    def view(array: Array, shape: Shape, config: Config) -> Array:
        return array[rows(config) if len(array) == n_rows(config) else _heads(config)]

    if not bias:
        return Named(name, view, shape_there)
    layer, matrix = name.rsplit(".", 1)
    return Named(f"{layer}.", view, shape_there, suffixes={".weight": f"{matrix}.weight", ".bias": bias})


def convolution(name: str, rows: Callable[[Config], Rows] | None = None, *, of_gguf: bool = False) -> Named:
    """Return the entry of a convolution [channels, 1, width], of GGUF [channels, width], in order `rows`."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        array = array.reshape(len(array), -1)
        return (array if rows is None else array[rows(config)]).T

    def shape_there(shape: Shape, config: Config) -> Shape:
        return shape[::-1] if of_gguf else (shape[1], 1, shape[0])

    return Named(name, view, shape_there, keeps_rows=False)


class Rate(Named):
    """The factor of the decay, -exp(A_log)."""

    def canonical(
        self, arrays: list[Array], number_format: str, shape: Shape, config: Config
    ) -> tuple[Array, str]:
        """Return the tensor in f32; see `Named`."""
        logarithms = widened(*super().canonical(arrays, number_format, shape, config))
        return np.array([-math.exp(number) for number in logarithms], np.float32), "f32"

    def store(self, stored: list[Array], array: Array, shape: Shape, config: Config) -> None:
        """Write the logarithms; see `Named`."""
        super().store(stored, np.log(-array), shape, config)


def _of_heads(name: str, entry_type: type[Named] = Named) -> Named:
    """Return the entry of a vector with one number per value head."""
    return entry_type(name, lambda array, shape, config: array[_heads(config)])


def _output(name: str) -> Named:
    """Return the entry of a matrix whose inputs are the value heads."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        heads = _heads(config)
        return array.reshape(len(array), len(heads), -1)[:, heads].reshape(array.shape)

    return Named(name, view, moves_inputs=True)


def projections(
    layer: str, matrices: dict[str, str], rows: Callable[[Config], dict[str, Rows]],
    bias: str = "dt_bias",
) -> dict[str, Named]:  # fmt: skip
    """Return the entries of the input projections, as selected rows of matrices."""
    found: dict[str, Named] = {}
    for part, matrix in matrices.items():
        sharing = [other for other, one in matrices.items() if one == matrix]

        def n_rows(config: Config, sharing: list[str] = sharing) -> int:
            return sum(len(rows(config)[other]) for other in sharing)

        def of_part(config: Config, part: str = part) -> Rows:
            return rows(config)[part]

        of_bias = bias if part == "decay" else ""
        found[f"mixer_{part}"] = _chosen(f"{layer}.{matrix}", of_part, n_rows, of_bias)
    return found


def _separate(config: Config) -> dict[str, Rows]:
    """Return the rows of four matrices."""
    heads = _heads(config)
    return {"in": _channels(config), "gate": _values(config), "beta": heads, "decay": heads}


_PARTS = ("in", "gate", "beta", "decay")
_SEPARATE = dict(zip(_PARTS, ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"), strict=True))
_BY_KEY_HEAD = dict(zip(_PARTS, ("in_proj_qkvz", "in_proj_qkvz", "in_proj_ba", "in_proj_ba"), strict=True))

_REST: dict[str, Named | Either] = {
    "mixer_conv": convolution(f"{_DELTA}.conv1d.weight", _channels),
    "mixer_decay.rate": _of_heads(f"{_DELTA}.A_log", Rate),
    "mixer_norm": Named(f"{_DELTA}.norm"),
    "mixer_out": _output(f"{_DELTA}.out_proj"),
    "attn_q": half_of_heads(f"{_LAYER}.self_attn.q_proj", 0),
    "attn_gate": half_of_heads(f"{_LAYER}.self_attn.q_proj", 1),
    **named(
        _LAYER, plus_one, output_norm="model.norm", attn_norm=".input_layernorm",
        mlp_norm=".post_attention_layernorm", attn_q_norm=".self_attn.q_norm",
        attn_k_norm=".self_attn.k_norm",
    ),
}  # fmt: skip
_OF_ONE = projections(_DELTA, dict.fromkeys(_PARTS, "in_proj"), _joined)
_QWEN3_5 = _REST | {
    name: Either((entry, _OF_ONE[name])) for name, entry in projections(_DELTA, _SEPARATE, _separate).items()
}
_QWEN3_NEXT = _REST | projections(_DELTA, _BY_KEY_HEAD, _by_key_head)


def of_gguf(block: str) -> dict[str, Named]:
    """Return the entries of Qwen3.5's GGUF files."""
    return named(
        block, attn_k=".attn_k", attn_v=".attn_v", mixer_in=".attn_qkv", mixer_gate=".attn_gate",
        mixer_beta=".ssm_beta", mixer_norm=".ssm_norm", mixer_out=".ssm_out",
    ) | {
        "mixer_conv": convolution(f"{block}.ssm_conv1d.weight", of_gguf=True),
        "mixer_decay": Named(f"{block}.", suffixes={".weight": "ssm_alpha.weight", ".bias": "ssm_dt.bias"}),
        "mixer_decay.rate": Named(f"{block}.ssm_a"),
        "attn_q": half_of_heads(f"{block}.attn_q", 0),
        "attn_gate": half_of_heads(f"{block}.attn_q", 1),
    }  # fmt: skip


def of_grouped_gguf(block: str) -> dict[str, Named | Either]:
    """Return the entries of Qwen3-Next's GGUF files; old files have one matrix less."""
    new = of_gguf(block)
    names = ("ssm_in", "ssm_in", "ssm_ba", "ssm_ba")
    old = projections(block, dict(zip(_PARTS, names, strict=True)), _by_key_head, "ssm_dt.bias")
    either = {name: Either((new[name], old[name])) for name in ("mixer_in", "mixer_gate")}
    return new | either | {name: old[name] for name in ("mixer_beta", "mixer_decay")}


# --------------------------------------------------------------------------------------------- fields


def _hybrid(reader: ConfigReader, *, n_kv_head: int, **switches: Any) -> dict[str, Any]:
    """Read attention with a gate of its output, and the layers and sizes of the delta rule."""
    fields = reader.fields
    fields.require("attn_output_gate", True, because="attention has a gate of its output")
    fields.require("attention_bias", False, because="matrices have no biases")
    fields.require("hidden_act", "silu", because="the delta rule has SiLU")
    sizes = reader.sizes(absent_kv_head=n_kv_head, default_d_head=256, **_width(switches))
    n_layer = sizes["n_layer"]
    interval = fields.integer("full_attention_interval", default=4)
    default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n_layer)]
    layer_types = reader.layer_types(n_layer, default, ("full_attention", "linear_attention"))
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.25),),
        activation="silu",
        qk_norm="head",
        attn_gate="whole",
        mixers=["delta" if name == "linear_attention" else "attention" for name in layer_types],
        **_delta(reader),
        **switches,
    )


def _width(switches: dict[str, Any]) -> dict[str, Any]:
    """Return the name of the field with a dense layer's width, if all layers have experts."""
    return (
        {"d_ff": "moe_intermediate_size"}
        if switches.get("n_experts") and not switches.get("mixtures")
        else {}
    )


def _delta(reader: ConfigReader) -> dict[str, Any]:
    """Read the sizes of the delta rule."""
    fields = reader.fields
    n_key = fields.integer("linear_num_key_heads", default=16)
    n_value = fields.integer("linear_num_value_heads", default=32)
    d_value = fields.integer("linear_value_head_dim", default=128)
    if n_value % n_key:
        raise fields.error("linear_num_value_heads", f"a multiple of linear_num_key_heads, which is {n_key}")
    return {
        "conv_width": fields.integer("linear_conv_kernel_dim", default=4, maximum=16),
        "n_mixer_key_head": n_key,
        "n_mixer_value_head": n_value,
        "d_mixer_key": fields.integer("linear_key_head_dim", default=128),
        "d_mixer_value": d_value,
    }


def _mixture(reader: ConfigReader, n_experts: int, n_chosen: int) -> dict[str, Any]:
    """Read the experts and the shared one."""
    return mixture(
        reader, n_experts=n_experts, n_chosen=n_chosen, d_expert="moe_intermediate_size", absent=512
    ) | {
        "d_shared_expert": reader.fields.integer("shared_expert_intermediate_size", default=512),
        "shared_expert_gate": True,
    }  # fmt: skip


def _qwen3_5_moe(reader: ConfigReader) -> dict[str, Any]:
    reader.fields.require("norm_topk_prob", True, because="weights of experts have the sum 1")
    return _hybrid(reader, n_kv_head=2, router_renormalize=True, **_mixture(reader, 256, 8))


def _qwen3_next(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    return _hybrid(
        reader, n_kv_head=2, mixer_grouped=True,
        router_renormalize=fields.boolean("norm_topk_prob", default=True), **_mixture(reader, 512, 10),
        **sparse_layers(reader, fields.integer("num_hidden_layers")),
    )  # fmt: skip


_ABSENT = absent(4096, 12288, 32, 16, 248320, 32768)
_MOE_ABSENT = absent(2048, None, 40, 16, 248320, 32768) | {"moe_intermediate_size": 512}
_READ: dict[str, Any] = {
    "renamed": {"model.language_model.": "model."},
    "left_out": ("model.visual.",),
    "harmless": ("mamba_ssm_dtype", "mlp_only_layers", "mtp_use_dedicated_embeddings"),
    "mtp": mtp.QWEN,
}  # fmt: skip
_SEEING = _READ | {
    "text_field": "text_config",
    "harmless": _READ["harmless"] + (
        "image_token_id", "video_token_id", "vision_config", "vision_end_token_id", "vision_start_token_id",
    ),
}  # fmt: skip
_qwen3_5 = partial(_hybrid, n_kv_head=4)

FAMILIES = {
    "Qwen3_5ForCausalLM": Family(_qwen3_5, LLAMA | _QWEN3_5, "qwen3_5_text", _ABSENT, **_READ),
    "Qwen3_5ForConditionalGeneration": Family(_qwen3_5, LLAMA | _QWEN3_5, "", _ABSENT, **_SEEING),
    "Qwen3_5MoeForCausalLM": Family(
        _qwen3_5_moe, QWEN | _QWEN3_5, "qwen3_5_moe_text", _MOE_ABSENT, **_READ
    ),
    "Qwen3_5MoeForConditionalGeneration": Family(
        _qwen3_5_moe, QWEN | _QWEN3_5, "", _MOE_ABSENT, **_SEEING
    ),
    "Qwen3NextForCausalLM": Family(
        _qwen3_next, QWEN | _QWEN3_NEXT, "qwen3_next", absent(2048, 5632, 48, 16, 151936, 32768),
        mtp=mtp.QWEN,
    ),
}  # fmt: skip
