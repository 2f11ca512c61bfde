"""Supported architectures by their name in config.json, and reasons why others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specdec.errors import UnusedFieldWarning, warn
from specdec.fields import Fields, as_json
from specdec.models.families import (
    attention,
    deepseek_router,
    encoder_decoder,
    exaone,
    fairseq,
    gemma4,
    glm,
    gpt,
    hybrid,
    lfm2,
    llama,
    mamba,
    moe,
    nemotron,
)
from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Family, Source, coded_sources

__all__ = ["FAMILIES", "ConfigReader", "Family", "Source", "architecture_of", "coded_sources"]

FAMILIES: Final[Mapping[str, Family]] = (
    llama.FAMILIES
    | attention.FAMILIES
    | exaone.FAMILIES
    | gemma4.FAMILIES
    | glm.FAMILIES
    | nemotron.FAMILIES
    | gpt.FAMILIES
    | lfm2.FAMILIES
    | fairseq.FAMILIES
    | moe.FAMILIES
    | deepseek_router.FAMILIES
    | hybrid.FAMILIES
    | mamba.FAMILIES
    | encoder_decoder.FAMILIES
)
"""Every architecture, by its name in ``architectures``."""

_MODEL_TYPES: Final = {family.model_type: name for name, family in FAMILIES.items() if family.model_type}

# Model types whose configurations differ from Llama's, although transformers uses Llama's class.
_OWN_CONFIGURATION: Final = ("exaone", "internlm3", "iquestcoder")

# Alternative names in files.
_ALIASES: Final[Mapping[str, str]] = {
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM",
}

# Reasons for known but unsupported architectures, by prefixes of their names.
_REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "has unsupported recurrent layers": (
        "Mamba", "FalconMamba", "Jamba", "Zamba", "RecurrentGemma", "Rwkv", "MiniMax", "KimiLinear",
        "xLSTM", "OlmoHybrid",
    ),
    "is an unsupported mixture of experts": (
        "PhiMoE", "Phimoe", "DeepseekV", "Dbrx", "Jetmoe", "JetMoe", "Glm4MoeLite",
    ),
    "is an encoder-decoder with an unsupported block": (
        "Pegasus", "Blenderbot", "SwitchTransformers", "LongT5", "ProphetNet", "LED", "BigBird", "T5Gemma",
    ),
    "reads sound or images": ("Whisper", "Speech2Text", "VisionEncoderDecoder", "Moonshine"),
    "is part of an encoder-decoder, or has another head": (
        "T5", "MT5", "UMT5", "Bart", "MBart", "Marian", "M2M100",
    ),
    "has biases in the norms of queries and keys": ("Persimmon",),
    "shares keys and values between layers": ("Gemma3n",),
    "is a draft, for specdec.drafts.Assistant": ("Gemma4Assistant", "Gemma4UnifiedAssistant"),
    "has image or audio towers": (
        "Llava", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Idefics", "PaliGemma", "Mllama", "InternVL", "Llama4",
        "SmolVLM", "Pixtral", "Phi4Multimodal", "Qwen2Audio", "Voxtral", "Fuyu", "AyaVision",
    ),
}  # fmt: skip


def architecture_of(fields: Fields, file: Path) -> str:
    """Return the first supported name in ``architectures``, or without that field, by ``model_type``."""
    named = fields.raw("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise fields.error("architectures", "a list of names")
    supported = "an architecture listed in docs/MODELS.md"
    if named:
        if named[0] == "LlamaForCausalLM" and fields.raw("model_type") in _OWN_CONFIGURATION:
            return _MODEL_TYPES[str(fields.raw("model_type"))]
        for name in (_ALIASES.get(name, name) for name in named):
            if name in FAMILIES:
                model_type = fields.raw("model_type")
                if isinstance(model_type, str) and _MODEL_TYPES.get(model_type, name) != name:
                    reason = f"without effect: {as_json(model_type)} is another architecture than {name}"
                    warn(UnusedFieldWarning(file, ["model_type"], reason))
                return name
        reasons = (why for why, prefixes in _REFUSED.items() if named[0].startswith(prefixes))
        reason = next(reasons, "")
        raise fields.unsupported("architectures", supported + (f"; {named[0]} {reason}" if reason else ""))
    model_type = fields.raw("model_type")
    if isinstance(model_type, str) and model_type in _MODEL_TYPES:
        return _MODEL_TYPES[model_type]
    raise fields.unsupported("model_type", f"'architectures' with {supported}")
