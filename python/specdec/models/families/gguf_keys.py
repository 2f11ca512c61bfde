"""The metadata of GGUF files from configurations: the inverse of what `gguf` reads.

Each architecture is written from the canonical configuration, and, where that has only what follows from a
field, from the fields of config.json. Nobody trusts what is written here: a file's configuration is read
again and compared before its tensors are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from specdec.models.families.family import Array, Config
from specdec.models.families.rotary import rotary_frequencies, yarn_attention_factor

Keys = dict[str, Any]
"""Metadata, less the name of the architecture in front."""
Fields = Mapping[str, Any]
"""The fields of a config.json that describe the decoder; none where there is no such file."""

_ROUNDED: Final = 7  # digits of a base of rotary frequencies that is computed from them


def _sizes(config: Config, fields: Fields) -> Keys:
    eps = "attention.layer_norm_rms_epsilon" if config["norm"] == "rms" else "attention.layer_norm_epsilon"
    return {
        "vocab_size": config["n_vocab"],
        "context_length": fields.get("max_position_embeddings") or config["n_ctx"],
        "embedding_length": config["d_model"],
        "block_count": config["n_layer"],
        "feed_forward_length": config["d_ff"],
        "attention.head_count": config["n_head"],
        "attention.head_count_kv": config["n_kv_head"],
        eps: config["norm_eps"],
    }


# ------------------------------------------------------------------------------------------- positions


def _base_of(frequencies: list[float], *named: Any) -> float:
    """The base of frequencies that are not scaled: one of those named, else computed."""
    size = 2 * len(frequencies)
    for base in named:
        if isinstance(base, int | float) and rotary_frequencies(size, float(base)) == frequencies:
            return float(base)
    if size == 2:
        return 10_000.0
    base = math.log(frequencies[-1]) * -size / (size - 2)
    return float(f"{math.exp(base):.{_ROUNDED - 1}g}")


def _scaling_of(fields: Fields) -> dict[str, Any]:
    """``rope_parameters`` or ``rope_scaling``: of layers of several types those of full attention."""
    scaling = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    scaling = scaling.get("full_attention", scaling)
    return dict(scaling) if isinstance(scaling, Mapping) else {}


def _rotation(config: Config, fields: Fields) -> tuple[Keys, dict[str, Array]]:
    """Keys and tensors of rotary positions."""
    if config["position"] != "rotary":
        return {}, {}
    size = 2 * len(config["inv_freq"])
    scaling = _scaling_of(fields)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    named = [scaling.get("rope_theta"), fields.get("rope_theta"), fields.get("rotary_emb_base")]
    found: Keys = {
        "attention.key_length": config["d_head"],
        "attention.value_length": config["d_head"],
        "rope.dimension_count": size,
    }
    if kind == "default":
        base = _base_of(config["inv_freq"], *named, 10_000.0)
    else:
        base = next((float(base) for base in named if isinstance(base, int | float)), 10_000.0)
    found["rope.freq_base"] = base
    if kind == "linear":
        return found | {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}, {}
    if kind == "yarn":
        return found | _yarn(scaling, (config.get("rotary_factors") or [1.0])[0]), {}
    if kind in ("longrope", "su"):
        return found | _long(scaling, fields), {
            f"rope_factors_{part}.weight": np.array(scaling[f"{part}_factor"], np.float32)
            for part in ("short", "long")
        }
    plain = rotary_frequencies(size, base)
    if plain == config["inv_freq"]:
        return found, {}
    with np.errstate(divide="ignore"):  # pairs that do not turn
        factors = np.asarray(plain) / np.asarray(config["inv_freq"])
    return found, {"rope_freqs.weight": factors.astype(np.float32)}


def _yarn(scaling: Mapping[str, Any], attention_factor: float) -> Keys:
    """Keys of YaRN; ``attention_factor`` is that of cosines and sines, which not every file names."""
    names = {
        "rope.scaling.factor": "factor",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
    }
    keys = {key: scaling[name] for key, name in names.items() if scaling.get(name) is not None}
    for key in ("rope.scaling.factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"):
        if key in keys:
            keys[key] = float(keys[key])
    if attention_factor != yarn_attention_factor(scaling.get("factor", 1.0)):
        keys["rope.scaling.yarn_attn_factor"] = float(attention_factor)
    return {"rope.scaling.type": "yarn"} | keys


def _long(scaling: Mapping[str, Any], fields: Fields) -> Keys:
    original = scaling.get("original_max_position_embeddings") or fields.get(
        "original_max_position_embeddings"
    )
    keys: Keys = {"rope.scaling.type": "longrope"}
    if original:
        keys["rope.scaling.original_context_length"] = original
        growth = fields["max_position_embeddings"] / original
        factor = math.sqrt(1.0 + math.log(growth) / math.log(original)) if growth > 1.0 else 1.0
        keys["rope.scaling.attn_factor"] = float(scaling.get("attention_factor") or factor)
    return keys


# --------------------------------------------------------------------------------------- architectures


def _nothing(config: Config, fields: Fields) -> Keys:
    return {}


def _experts(config: Config, fields: Fields) -> Keys:
    if not config.get("n_experts"):
        return {}
    found = {
        "expert_count": config["n_experts"],
        "expert_used_count": config["n_experts_per_token"],
        "expert_feed_forward_length": config["d_expert"],
    }
    if config.get("d_shared_expert"):
        found["expert_shared_feed_forward_length"] = config["d_shared_expert"]
    return found


def _mixtral(config: Config, fields: Fields) -> Keys:
    found = _experts(config, fields)
    return {key: found[key] for key in ("expert_count", "expert_used_count") if key in found}


def _granite(config: Config, fields: Fields) -> Keys:
    return {
        "attention.scale": config["score_scales"][0] if config.get("score_scales") else 0.0,
        "embedding_scale": float(config.get("embedding_scale", 1.0)),
        "residual_scale": float(config.get("residual_scale", 1.0)),
        "logit_scale": 1.0 / config.get("logit_scale", 1.0),
    }


def _mistral3(config: Config, fields: Fields) -> Keys:
    scaling = _scaling_of(fields)
    found: Keys = {}
    if config.get("query_growth"):
        found["attention.temperature_scale"] = float(config["query_growth"])
    if scaling.get("factor", 1.0) > 1.0 and scaling.get("rope_type") == "yarn":
        # The factor of cosines and sines: (growth + 1) / (of_all · growth + 1).
        growth = 0.1 * math.log(scaling["factor"])
        factor = (config.get("rotary_factors") or [1.0])[0]
        found["rope.scaling.yarn_log_multiplier"] = ((growth + 1.0) / factor - 1.0) / growth
    return found


def _window(config: Config, fields: Fields) -> Keys:
    return {"attention.sliding_window": config["sliding_window"]} if config.get("sliding_window") else {}


def _windows(config: Config, fields: Fields) -> Keys:
    found = _window(config, fields)
    if found and config.get("windows"):
        found["attention.sliding_window_pattern"] = [window > 0 for window in config["windows"]]
    return found


def _gemma2(config: Config, fields: Fields) -> Keys:
    caps = {
        "attn_logit_softcapping": float(config.get("attn_softcap", 0.0)),
        "final_logit_softcapping": float(config.get("logit_softcap", 0.0)),
    }
    return _window(config, fields) | {key: cap for key, cap in caps.items() if cap}


def _gemma3(config: Config, fields: Fields) -> Keys:
    windows = config.get("windows") or [config.get("sliding_window", 0)] * config["n_layer"]
    found = _gemma2(config, fields) | {"attention.sliding_window_pattern": [window > 0 for window in windows]}
    if config.get("more_inv_freq"):
        local = config["more_inv_freq"][0]
        found["rope.freq_base_swa"] = _base_of(local, fields.get("rope_local_base_freq"), 10_000.0)
    return found


def _gpt_oss(config: Config, fields: Fields) -> Keys:
    return _window(config, fields) | _experts(config, fields)


def _clamped(config: Config, fields: Fields) -> Keys:
    limit = config.get("qkv_limit", 0.0)
    return _experts(config, fields) | ({"attention.clamp_kqv": float(limit)} if limit else {})


def _cohere(config: Config, fields: Fields) -> Keys:
    return _window(config, fields) | {"logit_scale": float(config.get("logit_scale", 1.0))}


def _parallel(config: Config, fields: Fields) -> Keys:
    return {"use_parallel_residual": config.get("parallel", "no") != "no"}


def _mpt(config: Config, fields: Fields) -> Keys:
    attention = fields.get("attn_config") or {}
    most = attention.get("alibi_bias_max", 8) if config.get("alibi") else 0
    return _clamped(config, fields) | {"attention.max_alibi_bias": float(most)}


def _t5(config: Config, fields: Fields) -> Keys:
    encoder = config["encoder"]
    found: Keys = {
        "block_count": encoder["n_layer"],
        "decoder_block_count": config["n_layer"],
        "attention.key_length": config["d_head"],
        "attention.value_length": config["d_head"],
        "attention.relative_buckets_count": fields.get("relative_attention_num_buckets", 32),
        "attention.layer_norm_epsilon": config["norm_eps"],
    }
    if isinstance(fields.get("decoder_start_token_id"), int):
        found["decoder_start_token_id"] = fields["decoder_start_token_id"]
    return found


WRITTEN: Final[Mapping[str, tuple[str, Callable[[Config, Fields], Keys]]]] = {
    "LlamaForCausalLM": ("llama", _nothing),
    "MistralForCausalLM": ("llama", _nothing),
    "MixtralForCausalLM": ("llama", _mixtral),
    "Ministral3ForCausalLM": ("mistral3", _mistral3),
    "SmolLM3ForCausalLM": ("smollm3", _nothing),
    "GraniteForCausalLM": ("granite", _granite),
    "Qwen2ForCausalLM": ("qwen2", _nothing),
    "Qwen3ForCausalLM": ("qwen3", _nothing),
    "Qwen2MoeForCausalLM": ("qwen2moe", _experts),
    "Qwen3MoeForCausalLM": ("qwen3moe", _experts),
    "OlmoeForCausalLM": ("olmoe", _clamped),
    "GptOssForCausalLM": ("gpt-oss", _gpt_oss),
    "PhiForCausalLM": ("phi2", _nothing),
    "Phi3ForCausalLM": ("phi3", _window),
    "GemmaForCausalLM": ("gemma", _nothing),
    "Gemma2ForCausalLM": ("gemma2", _gemma2),
    "Gemma3ForCausalLM": ("gemma3", _gemma3),
    "OlmoForCausalLM": ("olmo", _clamped),
    "Olmo2ForCausalLM": ("olmo2", _nothing),
    "Olmo3ForCausalLM": ("olmo2", _windows),
    "StableLmForCausalLM": ("stablelm", _parallel),
    "GPTBigCodeForCausalLM": ("starcoder", _nothing),
    "Starcoder2ForCausalLM": ("starcoder2", _window),
    "CohereForCausalLM": ("command-r", _cohere),
    "Cohere2ForCausalLM": ("cohere2", _cohere),
    "GPT2LMHeadModel": ("gpt2", _nothing),
    "GPTNeoXForCausalLM": ("gptneox", _parallel),
    "BloomForCausalLM": ("bloom", _nothing),
    "MptForCausalLM": ("mpt", _mpt),
    "FalconForCausalLM": ("falcon", _nothing),
    "T5ForConditionalGeneration": ("t5", _t5),
    "MT5ForConditionalGeneration": ("t5", _t5),
    "UMT5ForConditionalGeneration": ("t5", _t5),
}
"""Architectures of transformers: their name in GGUF files, and what these say beside sizes and positions."""


def metadata_of(architecture: str, config: Config, fields: Fields) -> tuple[str, Keys, dict[str, Array]]:
    """The metadata of a model.

    `architecture`: One of `WRITTEN`. `config`: The canonical configuration. `fields`: The fields of its
    config.json. Returns str, dict, dict of str to ndarray: ``general.architecture``; keys and values; tensors
    that belong to the configuration, f32.
    """
    name, more = WRITTEN[architecture]
    rotation, tensors = _rotation(config, fields)
    return name, _sizes(config, fields) | rotation | more(config, fields), tensors
