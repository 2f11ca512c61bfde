"""Llama and families with its block and other switches, from Mistral to StarCoder 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from specdec.models.families import mtp
from specdec.models.families.config_reader import ACTIVATIONS, ConfigReader, Rotation
from specdec.models.families.family import (
    NO_BIASES,
    SEEING,
    YARN,
    Family,
    absent,
    fused_rows,
    halves,
    head_norms,
    interleaved,
    interleaved_norms,
    named,
    plus_one,
)

_LAYER = "model.layers.{i}"

LLAMA = named(
    _LAYER,
    token_embedding="model.embed_tokens.weight", output_norm="model.norm", head="lm_head.weight",
    attn_norm=".input_layernorm", attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj",
    attn_v=".self_attn.v_proj", attn_q_norm=".self_attn.q_norm", attn_k_norm=".self_attn.k_norm",
    attn_out=".self_attn.o_proj", mlp_norm=".post_attention_layernorm", mlp_gate=".mlp.gate_proj",
    mlp_up=".mlp.up_proj", mlp_down=".mlp.down_proj",
)  # fmt: skip
OLMO2 = LLAMA | named(
    _LAYER, attn_post_norm=".post_attention_layernorm", mlp_post_norm=".post_feedforward_layernorm"
)
_PHI3 = LLAMA | fused_rows(f"{_LAYER}.self_attn.qkv_proj") | halves(f"{_LAYER}.mlp.gate_up_proj")
_GEMMA = LLAMA | named(
    _LAYER, plus_one, output_norm="model.norm",
    attn_norm=".input_layernorm", mlp_norm=".post_attention_layernorm",
)  # fmt: skip
_GEMMA2 = _GEMMA | named(
    _LAYER, plus_one, attn_post_norm=".post_attention_layernorm", mlp_norm=".pre_feedforward_layernorm",
    mlp_post_norm=".post_feedforward_layernorm", attn_q_norm=".self_attn.q_norm",
    attn_k_norm=".self_attn.k_norm",
)  # fmt: skip
COHERE = LLAMA | {
    **named(_LAYER, interleaved, attn_q=".self_attn.q_proj", attn_k=".self_attn.k_proj"),
    **named(_LAYER, interleaved_norms, attn_q_norm=".self_attn.q_norm", attn_k_norm=".self_attn.k_norm"),
}
_VAULTGEMMA = _GEMMA | named(_LAYER, plus_one, mlp_norm=".pre_feedforward_layernorm")
_GRANITE_SWA = LLAMA | named(_LAYER, attn_sinks=".self_attn.sinks")
_HYPERCLOVAX = LLAMA | named(_LAYER, attn_post_norm=".post_norm1", mlp_post_norm=".post_norm2")
_STABLELM = LLAMA | {
    "attn_q_norm": head_norms(f"{_LAYER}.self_attn.q_layernorm.norms", "n_head"),
    "attn_k_norm": head_norms(f"{_LAYER}.self_attn.k_layernorm.norms", "n_kv_head"),
}
_STARCODER2 = LLAMA | named(_LAYER, mlp_up=".mlp.c_fc", mlp_down=".mlp.c_proj")


def rotary(*rotations: Rotation) -> dict[str, Any]:
    """Return the canonical fields of RoPE."""
    first, *more = rotations
    found: dict[str, Any] = {"n_ctx": first.n_ctx, "position": "rotary", "inv_freq": first.inv_freq}
    if more:
        found["more_inv_freq"] = [rotation.inv_freq for rotation in more]
    if any(rotation.factor != 1.0 for rotation in rotations):
        found["rotary_factors"] = [rotation.factor for rotation in rotations]
    return found


def llama_like(
    reader: ConfigReader,
    *,
    sizes: dict[str, Any] | None = None,
    turning: tuple[Rotation, ...] | None = None,
    theta: float = 10_000.0,
    eps_field: str | None = "rms_norm_eps",
    norm_eps: float = 1e-6,
    tied: bool = False,
    bias: bool | None = None,
    **switches: Any,
) -> dict[str, Any]:
    """Read a Llama block (pre-RMSNorm, RoPE, gated MLP) with other switches.

    ``turning``: RoPE; ``eps_field``: field of the norm's epsilon, if any; ``theta``, ``norm_eps``, ``tied``
    and ``bias``: defaults. ``bias`` None: no field for attention biases.
    """
    fields = reader.fields
    sizes = sizes or reader.sizes()
    if bias is not None:
        switches |= reader.attention_bias(default=bias)
    if "activation" not in switches:
        switches["activation"] = reader.activation("hidden_act", "silu")
    return {
        **sizes,
        **rotary(*(turning or (reader.rotation(sizes["d_head"], theta=theta),))),
        "norm": "rms",
        "norm_eps": fields.number(eps_field, default=norm_eps) if eps_field else norm_eps,
        "gated": True,
        "tied": fields.boolean("tie_word_embeddings", default=tied),
        **NO_BIASES,
        "sliding_window": 0,
        **switches,
    }


def two_rotations(
    reader: ConfigReader, d_head: int, layer_types: Sequence[str], theta: float, /, **sliding: Any
) -> dict[str, Any]:
    """Return RoPE of full-attention layers and, with arguments ``sliding``, of sliding-window layers."""
    full = reader.rotation(d_head, layer_type="full_attention", theta=theta)
    other = reader.rotation(d_head, layer_type="sliding_attention", scaled=False, **sliding)
    return {
        "turning": (full, other),
        "rotations": [int(layer_type != "full_attention") for layer_type in layer_types],
    }


# -------------------------------------------------------------------------------- Llama, Mistral, Granite


def _same_attention_in_all_layers(reader: ConfigReader) -> None:
    layer_types = reader.fields.raw("layer_types")
    if isinstance(layer_types, list):
        if not all(isinstance(layer_type, str) for layer_type in layer_types):
            raise reader.fields.error("layer_types", "a list of names")
        if len(set(layer_types)) > 1:
            raise reader.fields.unsupported("layer_types", "the same attention type in all layers")


def _llama(reader: ConfigReader) -> dict[str, Any]:
    _same_attention_in_all_layers(reader)
    return llama_like(reader, bias=False, mlp_bias=reader.fields.boolean("mlp_bias", default=False))


def _without_biases(reader: ConfigReader, family: str) -> None:
    for name in ("attention_bias", "mlp_bias"):
        reader.fields.require(name, False, because=f"{family} has no biases")


def _mistral(reader: ConfigReader) -> dict[str, Any]:
    _without_biases(reader, "MistralForCausalLM")
    _same_attention_in_all_layers(reader)
    windows = reader.windows(["sliding_attention"], default=4096)
    return llama_like(reader, sizes=reader.sizes(absent_kv_head=8), **windows)


def _ministral(reader: ConfigReader) -> dict[str, Any]:
    _without_biases(reader, "MinistralForCausalLM")
    sizes = reader.sizes(absent_kv_head=8)
    layer_types = reader.layer_types(sizes["n_layer"], ["sliding_attention"] * sizes["n_layer"])
    return llama_like(reader, sizes=sizes, **reader.windows(layer_types, default=4096))


def _ministral3(reader: ConfigReader) -> dict[str, Any]:
    """Read Ministral 3: YaRN, and queries scaled by position."""
    _without_biases(reader, "Ministral3ForCausalLM")
    sizes = reader.sizes(absent_kv_head=8, default_d_head=128)
    rope = reader.fields.inner("rope_parameters")
    growth: dict[str, Any] = {}
    if rope.raw("llama_4_scaling_beta") is not None:
        growth["query_growth"] = rope.number("llama_4_scaling_beta")
        growth["query_span"] = rope.integer("original_max_position_embeddings")
    return llama_like(reader, sizes=sizes, norm_eps=1e-5, **reader.windows(["sliding_attention"]), **growth)


def _mistral3(reader: ConfigReader) -> dict[str, Any]:
    """Read the decoder of a vision-language Mistral."""
    readers = {"mistral": _mistral, "ministral3": _ministral3}
    model_type = reader.fields.choice("model_type", {name: name for name in readers}, default="mistral")
    if model_type == "ministral3":
        reader = reader.with_absent(FAMILIES["Ministral3ForCausalLM"].absent)
    return readers[model_type](reader)


def _smollm3(reader: ConfigReader) -> dict[str, Any]:
    """Read SmolLM3: no positions in every fourth layer."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=4)
    n_layer = sizes["n_layer"]
    turns = fields.raw("no_rope_layers")
    if turns is None:
        interval = fields.integer("no_rope_layer_interval", default=4)
        turns = [int((i + 1) % interval != 0) for i in range(n_layer)]
    if not isinstance(turns, list) or len(turns) != n_layer or not all(turn in (0, 1) for turn in turns):
        raise fields.error("no_rope_layers", f"0 or 1 for each of {n_layer} layers")
    fields.skip("no_rope_layer_interval", "max_window_layers")
    windowed = fields.boolean("use_sliding_window", default=False)
    layer_types = ["sliding_attention" if windowed and not turn else "full_attention" for turn in turns]
    return llama_like(
        reader, sizes=sizes, theta=2_000_000.0, tied=True, bias=False,
        mlp_bias=fields.boolean("mlp_bias", default=False), rotations=[0 if turn else -1 for turn in turns],
        **reader.windows(reader.layer_types(n_layer, layer_types)),
    )  # fmt: skip


def _cwm(reader: ConfigReader) -> dict[str, Any]:
    """Read CWM: windows except in every fourth layer from the first."""
    sizes = reader.sizes(absent_kv_head=8)
    _without_biases(reader, "CwmForCausalLM")
    layer_types = reader.layer_types(sizes["n_layer"], _first_of_four_full(sizes["n_layer"]))
    windows = reader.windows(layer_types, default=8192)
    return llama_like(reader, sizes=sizes, theta=1_000_000.0, norm_eps=1e-5, **windows)


def _first_of_four_full(n_layer: int) -> list[str]:
    return ["sliding_attention" if i % 4 else "full_attention" for i in range(n_layer)]


def _seed_oss(reader: ConfigReader) -> dict[str, Any]:
    """Read Seed-OSS: separate fields for biases of queries, keys and values, of outputs, and of the MLP."""
    fields = reader.fields
    return llama_like(
        reader,
        sizes=reader.sizes(absent_kv_head=8),
        qkv_bias=fields.boolean("attention_bias", default=True),
        out_bias=fields.boolean("attention_out_bias", default=False),
        mlp_bias=fields.boolean("mlp_bias", default=False),
    )


def _internlm3(reader: ConfigReader) -> dict[str, Any]:
    """Read InternLM 3: Llama's block; ``bias`` is that of outputs and the MLP."""
    fields = reader.fields
    bias = fields.boolean(reader.name("mlp_bias", "bias"), default=False)
    return llama_like(
        reader,
        sizes=reader.sizes(absent_kv_head=2),
        norm_eps=1e-5,
        qkv_bias=fields.boolean(reader.name("attention_bias", "qkv_bias"), default=False),
        out_bias=bias,
        mlp_bias=bias,
    )


def _iquestcoder(reader: ConfigReader) -> dict[str, Any]:
    fields = reader.fields
    fields.require("clip_qkv", None, because="queries, keys and values are not clamped")
    fields.require("use_sliding_window", False, because="layers have no windows")
    mlp_bias = fields.boolean("mlp_bias", default=False)
    windows = reader.without_windows()
    return llama_like(
        reader, sizes=reader.sizes(absent_kv_head=8), norm_eps=1e-5, bias=False, mlp_bias=mlp_bias, **windows
    )


def granite(
    reader: ConfigReader, sizes: dict[str, Any] | None = None, tied: bool = False, **switches: Any
) -> dict[str, Any]:
    """Read Granite: factors of embeddings, scores, residuals and logits."""
    fields, sizes = reader.fields, sizes or reader.sizes()
    return llama_like(
        reader,
        sizes=sizes,
        tied=tied,
        bias=False,
        mlp_bias=fields.boolean("mlp_bias", default=False),
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        logit_scale=1.0 / fields.number("logits_scaling", default=1.0),
        score_scales=[fields.number("attention_multiplier", default=1.0)] * sizes["n_layer"],
        **switches,
    )


def _hyperclovax(reader: ConfigReader) -> dict[str, Any]:
    """Read HyperCLOVA X: Granite whose logits are multiplied, with norms of outputs too."""
    fields, sizes = reader.fields, reader.sizes()
    normed = fields.boolean("use_post_norm", default=True)
    scale = fields.number("attention_multiplier", default=sizes["d_head"] ** -0.5)
    return granite(reader, sizes) | {
        "logit_scale": fields.number("logits_scaling", default=1.0),
        "score_scales": [scale] * sizes["n_layer"],
        "norm_position": "both" if normed else "before",
    }


def _granite_swa(reader: ConfigReader) -> dict[str, Any]:
    """Read Granite with attention sinks, windows and RoPE bases by layer; base 0 means no positions."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=4)
    n_layer = sizes["n_layer"]
    turning: tuple[Rotation, ...] = (reader.rotation(sizes["d_head"]),)
    rotations = [0] * n_layer
    if fields.raw("layer_rope_theta") is not None:
        expected = "a finite number, at least 0"
        bases = fields.numbers("layer_rope_theta", n_layer, expected, lambda base: base >= 0)
        different = sorted({*bases} - {0.0})
        turning = tuple(reader.rotation(sizes["d_head"], base=base) for base in different) or turning
        rotations = [different.index(base) if base else -1 for base in bases]
    layer_types = reader.layer_types(n_layer, _first_of_four_full(n_layer))
    return granite(
        reader, sizes, tied=True, norm_eps=1e-5, turning=turning, rotations=rotations, attn_sinks=True,
        **reader.windows(layer_types, default=128),
    )  # fmt: skip


# -------------------------------------------------------------------------------------- Qwen, OLMo, Phi 3


def _qwen2(reader: ConfigReader, *, d_head: int | None = None, **switches: Any) -> dict[str, Any]:
    """Read Qwen 2: windows, if enabled, start at layer ``max_window_layers``."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=32, default_d_head=d_head)
    windows = reader.without_windows()
    if fields.boolean("use_sliding_window", default=False):
        first, n_layer = fields.integer("max_window_layers", minimum=0, default=28), sizes["n_layer"]
        layer_types = ["sliding_attention" if i >= first else "full_attention" for i in range(n_layer)]
        windows = reader.windows(reader.layer_types(n_layer, layer_types), default=4096)
    return llama_like(reader, sizes=sizes, **windows, **switches)


def _mimo(reader: ConfigReader) -> dict[str, Any]:
    """Read MiMo, which has Qwen 2's block; `specdec.drafts.MTP` reads its MTP block."""
    reader.fields.require("attention_bias", True, because="queries, keys and values have biases")
    return _qwen2(reader, qkv_bias=True)


def _olmo(reader: ConfigReader) -> dict[str, Any]:
    """Read OLMo: LayerNorm without weights."""
    return llama_like(
        reader, bias=False, qkv_limit=reader.optional_number("clip_qkv"), norm="layer", eps_field=None,
        norm_eps=1e-5, norm_weight=False, norm_bias=False,
    )  # fmt: skip


# Post-norms, and norms of whole queries and keys.
_olmo2 = partial(llama_like, bias=False, norm_eps=1e-5, norm_position="after", qk_norm="whole")


def _olmo3(reader: ConfigReader) -> dict[str, Any]:
    sizes, theta = reader.sizes(), 500_000.0
    layer_types = reader.layer_types(sizes["n_layer"], 4)
    turning = two_rotations(reader, sizes["d_head"], layer_types, theta, theta=theta)
    return _olmo2(reader, sizes=sizes, **turning, **reader.windows(layer_types, default=4096))


def _phi3(reader: ConfigReader) -> dict[str, Any]:
    """Read Phi-3: fused matrices, LongRoPE."""
    sizes = reader.sizes()
    turning = reader.rotation(
        sizes["d_head"],
        partial=True,
        original_n_ctx=reader.fields.integer("original_max_position_embeddings", default=4096),
        # Old files call LongRoPE "su" or "yarn".
        rope_types={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
    )
    windows = reader.windows(["sliding_attention"])
    return llama_like(reader, sizes=sizes, turning=(turning,), norm_eps=1e-5, **windows)


# --------------------------------------------------------------------- Gemma, Cohere, StableLM, StarCoder 2


def _gemma_like(reader: ConfigReader, sizes: dict[str, Any], **switches: Any) -> dict[str, Any]:
    """Read the common part of Gemma 1, 2 and 3: scaled embeddings, norm weights stored minus 1."""
    scale = math.sqrt(sizes["d_model"])
    return llama_like(reader, sizes=sizes, tied=True, bias=False, embedding_scale=scale, **switches)


def _gemma(reader: ConfigReader) -> dict[str, Any]:
    # "gelu" in the first files means the tanh approximation, as hidden_activation in later files shows.
    names = {**ACTIVATIONS, "gelu": "gelu_tanh"}
    name = "hidden_activation" if reader.fields.raw("hidden_activation") is not None else "hidden_act"
    reader.fields.skip("hidden_act", "hidden_activation")
    activation = reader.fields.choice(name, names, default="gelu")
    return _gemma_like(reader, reader.sizes(absent_kv_head=16, default_d_head=256), activation=activation)


def _gemma2_like(
    reader: ConfigReader,
    sizes: dict[str, Any],
    layer_types: Sequence[str],
    caps: tuple[float, float],
    norm_position: str = "both",
    **more: Any,
) -> dict[str, Any]:
    """Read the common part of Gemma 2 and 3; ``caps``: default soft caps of scores and logits."""
    scale = reader.fields.number("query_pre_attn_scalar", default=256.0) ** -0.5
    return _gemma_like(
        reader,
        sizes,
        norm_position=norm_position,
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        score_scales=[scale] * sizes["n_layer"],
        attn_softcap=reader.optional_number("attn_logit_softcapping", caps[0]),
        logit_softcap=reader.optional_number("final_logit_softcapping", caps[1]),
        **reader.windows(layer_types, default=4096),
        **more,
    )


def _gemma2(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    sizes = reader.sizes(absent_kv_head=4, default_d_head=256)
    return _gemma2_like(reader, sizes, reader.layer_types(sizes["n_layer"], 2), (50.0, 30.0), **switches)


def _gemma3(reader: ConfigReader) -> dict[str, Any]:
    """Read Gemma 3: separate RoPE in sliding-window layers; query and key norms."""
    sizes = reader.sizes(absent_kv_head=4, default_d_head=256)
    period = reader.fields.integer("sliding_window_pattern", default=6)
    layer_types = reader.layer_types(sizes["n_layer"], period)
    local = {"theta_name": "rope_local_base_freq"}
    turning = two_rotations(reader, sizes["d_head"], layer_types, 1_000_000.0, **local)
    return _gemma2_like(reader, sizes, layer_types, (0.0, 0.0), qk_norm="head", **turning)


def cohere_like(reader: ConfigReader, **switches: Any) -> dict[str, Any]:
    """Read the common part of Cohere models: parallel attention and MLP, LayerNorm without biases."""
    return llama_like(
        reader, tied=True, bias=False, parallel="one_norm", norm="layer", eps_field="layer_norm_eps",
        norm_eps=1e-5, norm_bias=False, logit_scale=reader.fields.number("logit_scale", default=0.0625),
        **switches,
    )  # fmt: skip


def _cohere(reader: ConfigReader) -> dict[str, Any]:
    normed = reader.fields.boolean("use_qk_norm", default=False)
    return cohere_like(reader, theta=500_000.0, qk_norm="each_head" if normed else "none")


def _cohere2(reader: ConfigReader) -> dict[str, Any]:
    """Read Cohere 2: windows with RoPE, and every fourth layer without either."""
    sizes = reader.sizes()
    layer_types = reader.layer_types(
        sizes["n_layer"], reader.fields.integer("sliding_window_pattern", default=4)
    )
    rotations = [0 if layer_type == "sliding_attention" else -1 for layer_type in layer_types]
    return cohere_like(reader, sizes=sizes, rotations=rotations, **reader.windows(layer_types, default=4096))


def _stablelm(reader: ConfigReader) -> dict[str, Any]:
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=32, d_head=None)
    return llama_like(
        reader,
        sizes=sizes,
        turning=(reader.rotation(sizes["d_head"], partial=True, fraction=0.25),),
        norm="layer",
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        qkv_bias=fields.boolean("use_qkv_bias", default=False),
        qk_norm="each_head" if fields.boolean("qk_layernorm", default=False) else "none",
        parallel="one_norm" if fields.boolean("use_parallel_residual", default=False) else "no",
    )


def _starcoder2(reader: ConfigReader) -> dict[str, Any]:
    return llama_like(
        reader, sizes=reader.sizes(absent_kv_head=2), tied=True, norm="layer", eps_field="norm_epsilon",
        norm_eps=1e-5, activation=reader.activation("hidden_act", "gelu_pytorch_tanh"), gated=False,
        **reader.attention_bias("use_bias", default=True, mlp=True), **reader.windows(["sliding_attention"]),
    )  # fmt: skip


_COHERE2_HARMLESS = (
    "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
    "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding",
)  # fmt: skip
# Ignored by the class.
_STARCODER2_HARMLESS = (
    "activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
    "scale_attention_softmax_in_fp32", "scale_attn_weights",
)  # fmt: skip

_MINISTRAL3_ROPE = YARN | {
    "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_MINISTRAL3_ABSENT = absent(4096, 14336, 34, 32, 131072, 262144) | {"rope_parameters": _MINISTRAL3_ROPE}
_MISTRAL_ABSENT = absent(4096, 14336, 32, 32, 32000, 131072)
_CWM_ROPE = {
    "rope_type": "llama3", "rope_theta": 1_000_000.0, "factor": 16.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_CWM_ABSENT = absent(6144, 21504, 64, 48, 128256, 131072) | {"rope_parameters": _CWM_ROPE, "head_dim": 128}
_GEMMA3_ABSENT = absent(2304, 9216, 26, 8, 262208, 131072)
_COHERE_ABSENT = absent(8192, 22528, 40, 64, 256000, 8192)
_OLMO_ABSENT = absent(4096, 11008, 32, 32, 50304, 2048)
_QWEN_ABSENT = absent(4096, 22016, 32, 32, 151936, 32768)
_STARCODER2_ABSENT = absent(3072, 12288, 30, 24, 49152, 4096)

FAMILIES = {
    "LlamaForCausalLM": Family(_llama, LLAMA, "llama", absent(4096, 11008, 32, 32, 32000, 2048)),
    "MistralForCausalLM": Family(_mistral, LLAMA, "mistral", _MISTRAL_ABSENT),
    "MinistralForCausalLM": Family(_ministral, LLAMA, "ministral", _MISTRAL_ABSENT),
    "Ministral3ForCausalLM": Family(_ministral3, LLAMA, "ministral3", _MINISTRAL3_ABSENT),
    "Mistral3ForConditionalGeneration": Family(_mistral3, LLAMA, "", _MISTRAL_ABSENT, **SEEING),
    "SmolLM3ForCausalLM": Family(_smollm3, LLAMA, "smollm3", absent(2048, 11008, 36, 16, 128256, 32768)),
    "GraniteForCausalLM": Family(granite, LLAMA, "granite", absent(4096, 11008, 32, 32, 32000, 2048)),
    "HyperCLOVAXForCausalLM": Family(
        _hyperclovax, _HYPERCLOVAX, "hyperclovax", absent(4096, 11008, 32, 32, 32000, 2048)
    ),
    "GraniteSWAForCausalLM": Family(
        _granite_swa, _GRANITE_SWA, "granite_swa", absent(2560, 8192, 24, 20, 100352, 8192)
    ),
    "CwmForCausalLM": Family(_cwm, LLAMA, "cwm", _CWM_ABSENT),
    "SeedOssForCausalLM": Family(
        _seed_oss, LLAMA, "seed_oss", absent(4096, 27648, 64, 80, 155136, 524288) | {"head_dim": 128}
    ),
    "InternLM3ForCausalLM": Family(
        _internlm3, LLAMA, "internlm3", absent(4096, 10240, 48, 32, 128512, 32768) | {"head_dim": 128}
    ),
    "IQuestCoderForCausalLM": Family(
        _iquestcoder, LLAMA, "iquestcoder", absent(5120, 27648, 80, 40, 76800, 131072) | {"head_dim": 128}
    ),
    "MiMoForCausalLM": Family(
        _mimo, LLAMA, "mimo", mtp=mtp.MIMO
    ),
    "Qwen2ForCausalLM": Family(partial(_qwen2, qkv_bias=True), LLAMA, "qwen2", _QWEN_ABSENT),
    "Qwen3ForCausalLM": Family(
        partial(_qwen2, d_head=128, qk_norm="head", bias=False), LLAMA, "qwen3", _QWEN_ABSENT
    ),
    "Phi3ForCausalLM": Family(
        _phi3, _PHI3, "phi3", absent(3072, 8192, 32, 32, 32064, 4096),
        harmless=("full_attn_mod", "interpolate_factor"),
    ),
    "GemmaForCausalLM": Family(_gemma, _GEMMA, "gemma", absent(3072, 24576, 28, 16, 256000, 8192)),
    "Gemma2ForCausalLM": Family(
        _gemma2, _GEMMA2, "gemma2", absent(2304, 9216, 26, 8, 256000, 8192), harmless=("hidden_act",)
    ),
    "VaultGemmaForCausalLM": Family(
        partial(_gemma2, norm_position="before"), _VAULTGEMMA, "vaultgemma",
        absent(2304, 9216, 26, 8, 256000, 8192),
    ),
    "Gemma3ForCausalLM": Family(
        _gemma3, _GEMMA2, "gemma3_text", _GEMMA3_ABSENT, harmless=("_sliding_window_pattern",)
    ),
    "Gemma3ForConditionalGeneration": Family(_gemma3, _GEMMA2, "", _GEMMA3_ABSENT, **SEEING),
    "OlmoForCausalLM": Family(_olmo, LLAMA, "olmo", _OLMO_ABSENT),
    "Olmo2ForCausalLM": Family(_olmo2, OLMO2, "olmo2", _OLMO_ABSENT),
    "Olmo3ForCausalLM": Family(_olmo3, OLMO2, "olmo3", _OLMO_ABSENT),
    "CohereForCausalLM": Family(_cohere, COHERE, "cohere", _COHERE_ABSENT),
    "Cohere2ForCausalLM": Family(
        _cohere2, COHERE, "cohere2", _COHERE_ABSENT, harmless=_COHERE2_HARMLESS
    ),
    "StableLmForCausalLM": Family(
        _stablelm, _STABLELM, "stablelm", absent(2560, 6912, 32, 32, 50304, 4096)
    ),
    "Starcoder2ForCausalLM": Family(
        _starcoder2, _STARCODER2, "starcoder2", _STARCODER2_ABSENT, harmless=_STARCODER2_HARMLESS
    ),
}  # fmt: skip
