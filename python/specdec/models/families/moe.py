"""Mixtures of experts with plain routers: Mixtral, Qwen 2 and 3 MoE, OLMoE, Granite, gpt-oss and others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.fields import REQUIRED
from specdec.models.families.attention import HUNYUAN, hunyuan
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import (
    YARN,
    Array,
    Config,
    Either,
    Family,
    Named,
    Shape,
    absent,
    halves,
    named,
)
from specdec.models.families.llama import COHERE, LLAMA, cohere_like, llama_like, two_rotations
from specdec.models.families.llama import FAMILIES as LLAMA_FAMILIES
from specdec.models.number_formats import widened


def stacked(
    name: str,
    *,
    part: int | None = None,
    take_turns: bool = False,
    inputs_first: bool = False,
    suffixes: Mapping[str, str] | None = None,
    entry_type: type[Named] = Named,
) -> Named:
    """Return the entry of one expert in a tensor [n_experts, rows, columns] or [n_experts, rows].

    `part`: 0 or 1 for gate or up in a tensor of both; None: one matrix. `take_turns`: Gate and up rows
    alternate. `inputs_first`: The tensor is [n_experts, columns, rows].
    """

    def shape_there(shape: Shape, config: Config) -> Shape:
        inner = (shape[0] if part is None else 2 * shape[0], *shape[1:])
        return (config["n_experts"], *(inner[::-1] if inputs_first else inner))

    def view(array: Array, shape: Shape, config: Config) -> Array:
        array = array.T if inputs_first else array
        if part is None:
            return array
        return array[part::2] if take_turns else array[part * shape[0] :][: shape[0]]

    keeps_rows = not inputs_first and entry_type is Named
    suffixes = {".weight": "", ".bias": "_bias"} if suffixes is None else suffixes
    return entry_type(
        name, view, shape_there, keeps_rows=keeps_rows, inputs_first=inputs_first, index=0, suffixes=suffixes
    )


# ------------------------------------------------------------------------------------------------ MXFP4

# Bound of experts in all layers, against a wrong config.json.
_MAX_EXPERTS: Final = 1 << 15

_BLOCK: Final = 32
_E2M1: Final = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
_CODES: Final = np.concatenate([_E2M1, -_E2M1])
# Both values of a byte, low half first.
_PAIRS: Final = np.stack([_CODES[np.arange(256) & 15], _CODES[np.arange(256) >> 4]], axis=1)


def mxfp4(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Dequantize MXFP4 (OCP Microscaling Formats 1.0) to bf16, exactly.

    `blocks` [..., n_blocks, 16]: 32 E2M1 codes per block, two per byte, low half first. `scales`
    [..., n_blocks]: Exponents of the factors 2^(scale - 127); 255 means NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        factors = np.ldexp(np.float32(1.0), scales.astype(np.int32) - 127)
        values = _PAIRS[blocks].reshape(*blocks.shape[:-1], _BLOCK) * factors[..., None]
    values[scales == 255] = np.nan
    bits: NDArray[np.uint32] = values.astype(np.float32, copy=False).view(np.uint32)
    return (bits >> 16).astype(np.uint16).reshape(*blocks.shape[:-2], -1)


class Mxfp4(Named):
    """Experts in MXFP4: blocks [n_experts, rows, n_blocks, 16] and scales [n_experts, rows, n_blocks]."""

    def numbers(self, suffix: str) -> str:
        """Return the dtype of bytes; see `Named`."""
        return "U8" if suffix == ".weight" else ""

    def stored_names(self, suffix: str, config: Config) -> list[str]:
        """Return the file's names; see `Named`."""
        if suffix == ".weight":
            return [f"{self.name}_blocks", f"{self.name}_scales"]
        return super().stored_names(suffix, config)

    def stored_shapes(self, suffix: str, shape: Shape, config: Config) -> list[Shape]:
        """Return the shapes in the file; see `Named`."""
        if suffix != ".weight":
            return super().stored_shapes(suffix, shape, config)
        scales = (*self.shape_there(shape[:1], config), -(-shape[1] // _BLOCK))
        return [(*scales, _BLOCK // 2), scales]

    def canonical(
        self, arrays: list[Array], number_format: str, shape: Shape, config: Config
    ) -> tuple[Array, str]:
        """Return the tensor and its format; see `Named`."""
        if len(arrays) == 1:
            return super().canonical(arrays, number_format, shape, config)
        blocks, scales = (self.view(array, shape, config) for array in arrays)
        return mxfp4(blocks, scales), "bf16"


class Halved(Named):
    """A matrix times a half."""

    def canonical(
        self, arrays: list[Array], number_format: str, shape: Shape, config: Config
    ) -> tuple[Array, str]:
        """Return the tensor in f32; see `Named`."""
        return widened(*super().canonical(arrays, number_format, shape, config)) * np.float32(0.5), "f32"


# --------------------------------------------------------------------------------------------- families

_MLP = "model.layers.{i}.mlp"


def experts(
    module: str,
    gate: str,
    up: str,
    down: str,
    together: str = f"{_MLP}.experts",
    *,
    stacked_first: bool = False,
) -> dict[str, Named | Either]:  # fmt: skip
    """Return the entries of separately stored experts, or stacked ones as in transformers 5."""
    both = f"{together}.gate_up_proj"
    options = {
        "experts.mlp_gate": (Named(f"{module}.{{e}}.{gate}"), stacked(both, part=0)),
        "experts.mlp_up": (Named(f"{module}.{{e}}.{up}"), stacked(both, part=1)),
        "experts.mlp_down": (Named(f"{module}.{{e}}.{down}"), stacked(f"{together}.down_proj")),
    }
    return {name: Either(two[::-1] if stacked_first else two) for name, two in options.items()}


SHARED = "model.layers.{i}.shared_mlp"
_SPARSE = "model.layers.{i}.block_sparse_moe"
_PARTS = ("gate", "up", "down")

MIXTRAL = LLAMA | {
    **experts(f"{_SPARSE}.experts", "w1", "w3", "w2"),
    "router": Either((Named(f"{_SPARSE}.gate"), Named(f"{_MLP}.gate"))),
}
QWEN = LLAMA | {
    **experts(f"{_MLP}.experts", *(f"{part}_proj" for part in _PARTS)),
    **{f"shared_expert.mlp_{part}": Named(f"{_MLP}.shared_expert.{part}_proj") for part in _PARTS},
    **named(_MLP, router=".gate", shared_gate=".shared_expert_gate"),
}


_FLEX_OLMO = QWEN | named(
    "model.layers.{i}", attn_post_norm=".post_attention_layernorm",
    mlp_post_norm=".post_feedforward_layernorm",
)  # fmt: skip
_EXPERTS_GRANITE = {
    name: tuple(stacked(f"{_SPARSE}.{stored}", part=part) for stored in names)
    for name, part, *names in (
        ("gate", 0, "input_linear.weight", "experts.gate_up_proj"),
        ("up", 1, "input_linear.weight", "experts.gate_up_proj"),
        ("down", None, "output_linear.weight", "experts.down_proj"),
    )
}
GRANITE: dict[str, Named | Either] = {
    **LLAMA,
    **{f"experts.mlp_{part}": Either(entries) for part, entries in _EXPERTS_GRANITE.items()},
    **{f"shared_expert.{name}": entry for name, entry in halves(f"{SHARED}.input_linear").items()},
    "shared_expert.mlp_down": Named(f"{SHARED}.output_linear"),
    "router": Either((Named(f"{_SPARSE}.router.layer"), Named(f"{_SPARSE}.router"))),
}
_HUNYUAN = QWEN | {
    **{f"attn_{role}_norm": HUNYUAN[f"attn_{role}_norm"] for role in "qk"},
    **{f"shared_expert.mlp_{part}": Named(f"{_MLP}.shared_mlp.{part}_proj") for part in _PARTS},
    **named(_MLP, router=".gate.wg"),
}


def _cohere(config: Config) -> dict[str, Any]:
    """Return the table of Command A+. A shared expert has the factor of routed ones: 1 or 1/2."""
    entry_type = Halved if config["routed_scale"] == 0.5 else Named
    return COHERE | experts(f"{_MLP}.experts", *(f"{part}_proj" for part in _PARTS)) | {
        **{f"shared_expert.mlp_{part}": Named(f"{_MLP}.shared_experts.{part}_proj") for part in _PARTS},
        "shared_expert.mlp_down": entry_type(f"{_MLP}.shared_experts.down_proj"),
        "router": Named(f"{_MLP}.gate"),
    }  # fmt: skip


def _gpt_oss(name: str, part: int | None) -> Either:
    stored = f"{_MLP}.experts.{name}"
    numbers = stacked(stored, inputs_first=True, part=part, take_turns=True)
    return Either((numbers, stacked(stored, part=part, take_turns=True, entry_type=Mxfp4)))


_GPT_OSS: dict[str, Named | Either] = {
    **LLAMA,
    **named("model.layers.{i}", attn_sinks=".self_attn.sinks", router=".mlp.router"),
    "experts.mlp_gate": _gpt_oss("gate_up_proj", 0),
    "experts.mlp_up": _gpt_oss("gate_up_proj", 1),
    "experts.mlp_down": _gpt_oss("down_proj", None),
}


def _renormalized(reader: ConfigReader) -> dict[str, Any]:
    return {"router_renormalize": reader.fields.boolean("norm_topk_prob", default=False)}


_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts")


def mixture(
    reader: ConfigReader,
    *,
    n_experts: Any,
    n_chosen: Any,
    d_expert: str,
    absent: Any = REQUIRED,
    shared: tuple[str, Any] | None = None,
) -> dict[str, Any]:
    """Read the numbers of experts per layer and per token, and their width (default ``absent``).

    ``shared``: field and default of the number of shared experts, which are one block.
    """
    fields = reader.fields
    name, chosen = (next(filter(fields.has, names), names[0]) for names in (_COUNTS, _CHOSEN))
    most = max(1, _MAX_EXPERTS // fields.integer("num_hidden_layers"))
    width = fields.integer(d_expert, default=absent)
    found = {
        "n_experts": fields.integer(name, maximum=most, default=n_experts),
        "n_experts_per_token": fields.integer(chosen, default=n_chosen),
        "d_expert": width,
    }
    if shared is not None:
        found["d_shared_expert"] = width * fields.integer(shared[0], minimum=0, default=shared[1])
    return found


def sparse_layers(reader: ConfigReader, n_layer: int) -> dict[str, Any]:
    """Read which layers have experts: every ``decoder_sparse_step``-th except ``mlp_only_layers``."""
    fields = reader.fields
    step = fields.integer("decoder_sparse_step", default=1)
    dense = fields.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise fields.error("mlp_only_layers", "a list of layers")
    return {"mixtures": [int((i + 1) % step == 0 and i not in dense) for i in range(n_layer)]}


def sparse_after(reader: ConfigReader, n_layer: int, n_dense: int) -> dict[str, Any]:
    """Read which layers have experts: all but the first ``n_dense`` by default."""
    fields = reader.fields
    n_dense = fields.integer("first_k_dense_replace", minimum=0, default=n_dense)
    blocks = fields.raw("mlp_layer_types")
    if blocks is None:
        return {"mixtures": [int(i >= n_dense) for i in range(n_layer)]}
    names = ("dense", "sparse")
    if not isinstance(blocks, list) or len(blocks) != n_layer or not all(one in names for one in blocks):
        raise fields.error("mlp_layer_types", f"'dense' or 'sparse' for each of {n_layer} layers")
    return {"mixtures": [int(block == "sparse") for block in blocks]}


def _read_mixtral(reader: ConfigReader) -> dict[str, Any]:
    return llama_like(
        reader,
        sizes=reader.sizes(absent_kv_head=8),
        theta=1_000_000.0,
        norm_eps=1e-5,
        router="softmax_chosen",
        **mixture(reader, n_experts=8, n_chosen=2, d_expert="intermediate_size"),
        **reader.windows(["sliding_attention"]),
    )


def _read_qwen2(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=16)
    n_layer = sizes["n_layer"]
    windowed = fields.boolean("use_sliding_window", default=False)
    first_full = fields.integer("max_window_layers", minimum=0, default=28)
    layer_types = [
        "sliding_attention" if windowed and i % 2 == 0 and i < first_full else "full_attention"
        for i in range(n_layer)
    ]
    layer_types = reader.layer_types(n_layer, layer_types)
    return llama_like(
        reader,
        sizes=sizes,
        qkv_bias=fields.boolean("qkv_bias", default=True),
        d_shared_expert=fields.integer("shared_expert_intermediate_size", default=5632),
        shared_expert_gate=True,
        **_renormalized(reader),
        **mixture(reader, n_experts=60, n_chosen=4, d_expert="moe_intermediate_size", absent=1408),
        **sparse_layers(reader, n_layer),
        **(reader.windows(layer_types, default=4096) if windowed else reader.without_windows()),
    )


def _read_qwen3(reader: ConfigReader) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=4)
    windowed = reader.fields.boolean("use_sliding_window", default=False)
    return llama_like(
        reader,
        sizes=sizes,
        bias=False,
        qk_norm="head",
        **_renormalized(reader),
        **mixture(reader, n_experts=128, n_chosen=8, d_expert="moe_intermediate_size", absent=768),
        **sparse_layers(reader, sizes["n_layer"]),
        **(reader.windows(["sliding_attention"], default=4096) if windowed else reader.without_windows()),
    )


def _read_olmoe(reader: ConfigReader) -> dict[str, Any]:
    return llama_like(
        reader, norm_eps=1e-5, bias=False, qk_norm="whole", qkv_limit=reader.optional_number("clip_qkv"),
        **_renormalized(reader), **mixture(reader, n_experts=64, n_chosen=8, d_expert="intermediate_size"),
    )  # fmt: skip


def _read_flex_olmo(reader: ConfigReader) -> dict[str, Any]:
    return llama_like(
        reader, theta=500_000.0, bias=False, qk_norm="whole", norm_position="after", **_renormalized(reader),
        **mixture(reader, n_experts=7, n_chosen=5, d_expert="intermediate_size"),
    )  # fmt: skip


def _read_mellum(reader: ConfigReader) -> dict[str, Any]:
    """Read Mellum: RoPE and windows by type of layer."""
    sizes = reader.sizes(absent_kv_head=4, default_d_head=128)
    n_layer = sizes["n_layer"]
    layer_types = reader.layer_types(n_layer, ["full_attention"] * n_layer)
    return llama_like(
        reader, sizes=sizes, bias=False, qk_norm="head", **sparse_after(reader, n_layer, 0),
        **two_rotations(reader, sizes["d_head"], layer_types, 500_000.0, theta=10_000.0),
        router_renormalize=reader.fields.boolean("norm_topk_prob", default=True),
        **mixture(reader, n_experts=64, n_chosen=8, d_expert="moe_intermediate_size", absent=896),
        **reader.windows(layer_types, default=1024),
    )  # fmt: skip


def _read_cohere(reader: ConfigReader) -> dict[str, Any]:
    """Read Command A+: Cohere 2's block; dense layers first, and these may rotate without a window."""
    fields, sizes = reader.fields, reader.sizes(default_d_head=128)
    n_layer, width = sizes["n_layer"], sizes["d_ff"]
    n_dense = fields.integer("first_k_dense_replace", minimum=0, default=0)
    of_dense = fields.integer("prefix_dense_sliding_window_pattern", default=1)
    period = fields.integer("sliding_window_pattern", default=4)
    ends = [(i + 1) % of_dense if i < n_dense else (i + 1 - n_dense) % period for i in range(n_layer)]
    layer_types = reader.layer_types(
        n_layer, ["sliding_attention" if end else "full_attention" for end in ends]
    )
    mixtures = sparse_after(reader, n_layer, n_dense)["mixtures"]
    turned = [
        layer_type == "sliding_attention" or (of_dense == 1 and not mixed)
        for layer_type, mixed in zip(layer_types, mixtures, strict=True)
    ]
    n_shared = fields.integer("num_shared_experts", minimum=0, default=0)
    names = {name: name for name in ("sum", "average")}
    averaged = fields.choice("shared_expert_combination_strategy", names, default="average") == "average"
    router = fields.choice(
        "expert_selection_fn", {"softmax": "softmax_chosen", "sigmoid": "sigmoid"}, default="softmax"
    )
    if fields.raw("prefix_dense_intermediate_size") is not None:
        sizes["d_ff"] = fields.integer("prefix_dense_intermediate_size")
    renormalized = fields.boolean("norm_topk_prob", default=True)
    found = cohere_like(
        reader, sizes=sizes, rotations=[0 if one else -1 for one in turned], mixtures=mixtures,
        router=router, router_renormalize=router == "sigmoid" and renormalized,
        routed_scale=0.5 if averaged and n_shared else 1.0, d_shared_expert=n_shared * width,
        **mixture(reader, n_experts=8, n_chosen=2, d_expert="intermediate_size"),
        **reader.windows(layer_types, default=4096),
    )  # fmt: skip
    if fields.raw("rms_norm_eps") is not None:
        found |= {"norm": "rms", "norm_eps": fields.number("rms_norm_eps")}
    return found


def _read_granite(
    reader: ConfigReader, *, shared: bool = False, like: str = "GraniteForCausalLM"
) -> dict[str, Any]:
    """Read Granite's block with experts, and a shared one if ``shared_intermediate_size`` is not 0."""
    width = reader.fields.integer("shared_intermediate_size", minimum=0, default=0) if shared else 0
    return LLAMA_FAMILIES[like].read_config(reader) | {
        "router": "softmax_chosen",
        "d_shared_expert": width,
        **mixture(reader, n_experts=8, n_chosen=2, d_expert="intermediate_size"),
    }


def _read_hunyuan(reader: ConfigReader) -> dict[str, Any]:
    """Read Hunyuan-A13B: experts and the shared one are as wide as the field of a dense block."""
    reader = reader.with_single("num_experts", "moe_topk")
    found = mixture(reader, n_experts=1, n_chosen=1, d_expert="intermediate_size")
    return hunyuan(reader, router="softmax_chosen", d_shared_expert=found["d_expert"], **found)


def _read_gpt_oss(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=8, default_d_head=64)
    fields.require("swiglu_alpha", 1.702, because="the gate's slope is that of gpt-oss")
    fields.require("hidden_act", "silu", because="the gate is that of gpt-oss")
    if not fields.object("rope_parameters") and not fields.object("rope_scaling"):
        raise fields.error("rope_parameters", "an object")
    return llama_like(
        reader, sizes=sizes, theta=150_000.0, norm_eps=1e-5, activation="silu_clamped",
        activation_limit=fields.number("swiglu_limit", default=7.0), bias=True, mlp_bias=True,
        attn_sinks=True, router="softmax_chosen", router_bias=True,
        **mixture(reader, n_experts=128, n_chosen=4, d_expert="intermediate_size"),
        **reader.windows(reader.layer_types(sizes["n_layer"], 2), default=128),
    )  # fmt: skip


_GPT_OSS_ROPE = YARN | {
    "rope_theta": 150_000.0, "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
}  # fmt: skip
_GPT_OSS_ABSENT = absent(2880, 2880, 36, 64, 201088, 131072) | {"rope_parameters": _GPT_OSS_ROPE}
_GRANITE_ABSENT = absent(4096, 11008, 32, 32, 32000, 2048)
_QWEN2_ABSENT = absent(2048, 5632, 24, 16, 151936, 32768)
_QWEN3_ABSENT = absent(2048, 6144, 24, 32, 151936, 32768)

FAMILIES = {
    "MixtralForCausalLM": Family(
        _read_mixtral, MIXTRAL, "mixtral", absent(4096, 14336, 32, 32, 32000, 131072)
    ),
    "Qwen2MoeForCausalLM": Family(_read_qwen2, QWEN, "qwen2_moe", _QWEN2_ABSENT),
    "Qwen3MoeForCausalLM": Family(_read_qwen3, QWEN, "qwen3_moe", _QWEN3_ABSENT),
    "OlmoeForCausalLM": Family(_read_olmoe, QWEN, "olmoe", absent(2048, 2048, 16, 16, 50304, 4096)),
    "FlexOlmoForCausalLM": Family(
        _read_flex_olmo, _FLEX_OLMO, "flex_olmo", absent(4096, 11008, 32, 32, 100352, 4096)
    ),
    "MellumForCausalLM": Family(
        _read_mellum, QWEN, "mellum", absent(2304, 7168, 28, 32, 98304, 131072), left_out=("mtp.",),
        harmless=("mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers", "num_nextn_predict_layers"),
    ),
    "HunYuanMoEV1ForCausalLM": Family(
        _read_hunyuan, _HUNYUAN, "hunyuan_v1_moe", absent(4096, 11008, 32, 32, 290943, 2048),
        harmless=("eod_token_id", "moe_intermediate_size", "num_shared_expert", "use_qk_norm"),
    ),
    "Cohere2MoeForCausalLM": Family(
        _read_cohere, _cohere, "cohere2_moe", absent(8192, 22528, 40, 64, 256000, 8192)
    ),
    "GraniteMoeForCausalLM": Family(_read_granite, GRANITE, "granitemoe", _GRANITE_ABSENT),
    "GraniteMoeSharedForCausalLM": Family(
        partial(_read_granite, shared=True), GRANITE, "granitemoeshared", _GRANITE_ABSENT
    ),
    "GraniteMoeSWAForCausalLM": Family(
        partial(_read_granite, shared=True, like="GraniteSWAForCausalLM"),
        GRANITE | named(attn_sinks="model.layers.{i}.self_attn.sinks"), "granitemoe_swa",
        _GRANITE_ABSENT | {"num_key_value_heads": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    ),
    "GptOssForCausalLM": Family(
        _read_gpt_oss, _GPT_OSS, "gpt_oss", _GPT_OSS_ABSENT, quantized="mxfp4",
        harmless=("experts_per_token", "initial_context_length"),
    ),
}  # fmt: skip
