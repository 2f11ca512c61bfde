"""Defaults of absent fields of a config.json: the sizes of transformers' configuration classes.

Other defaults are where the fields are read. ``tests/test_absent_fields.py`` compares all of them with
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ABSENT"]

_DECODER: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
_GPT: Final = ("n_embd", "n_layer", "n_head", "vocab_size", "n_positions")
_T5: Final = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size")
_ENCODER_DECODER: Final = (
    "d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "decoder_layers",
    "decoder_attention_heads", "decoder_ffn_dim", "vocab_size", "max_position_embeddings",
)  # fmt: skip


def _sizes(names: tuple[str, ...], *values: int | None) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


_YARN: Final = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
_MINISTRAL3_ROPE: Final = _YARN | {
    "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_GPT_OSS_ROPE: Final = _YARN | {
    "rope_theta": 150_000.0, "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
}  # fmt: skip

_OF_CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "LlamaForCausalLM": _sizes(_DECODER, 4096, 11008, 32, 32, 32000, 2048),
    "MistralForCausalLM": _sizes(_DECODER, 4096, 14336, 32, 32, 32000, 131072),
    "MinistralForCausalLM": _sizes(_DECODER, 4096, 14336, 32, 32, 32000, 131072),
    "Ministral3ForCausalLM": _sizes(_DECODER, 4096, 14336, 34, 32, 131072, 262144)
    | {"rope_parameters": _MINISTRAL3_ROPE},
    "SmolLM3ForCausalLM": _sizes(_DECODER, 2048, 11008, 36, 16, 128256, 32768),
    "GraniteForCausalLM": _sizes(_DECODER, 4096, 11008, 32, 32, 32000, 2048),
    "Qwen2ForCausalLM": _sizes(_DECODER, 4096, 22016, 32, 32, 151936, 32768),
    "Qwen3ForCausalLM": _sizes(_DECODER, 4096, 22016, 32, 32, 151936, 32768),
    "PhiForCausalLM": _sizes(_DECODER, 2048, 8192, 24, 32, 51200, 2048),
    "Phi3ForCausalLM": _sizes(_DECODER, 3072, 8192, 32, 32, 32064, 4096),
    "GemmaForCausalLM": _sizes(_DECODER, 3072, 24576, 28, 16, 256000, 8192),
    "Gemma2ForCausalLM": _sizes(_DECODER, 2304, 9216, 26, 8, 256000, 8192),
    "Gemma3ForCausalLM": _sizes(_DECODER, 2304, 9216, 26, 8, 262208, 131072),
    "OlmoForCausalLM": _sizes(_DECODER, 4096, 11008, 32, 32, 50304, 2048),
    "Olmo2ForCausalLM": _sizes(_DECODER, 4096, 11008, 32, 32, 50304, 2048),
    "Olmo3ForCausalLM": _sizes(_DECODER, 4096, 11008, 32, 32, 50304, 2048),
    "StableLmForCausalLM": _sizes(_DECODER, 2560, 6912, 32, 32, 50304, 4096),
    "Starcoder2ForCausalLM": _sizes(_DECODER, 3072, 12288, 30, 24, 49152, 4096),
    "CohereForCausalLM": _sizes(_DECODER, 8192, 22528, 40, 64, 256000, 8192),
    "Cohere2ForCausalLM": _sizes(_DECODER, 8192, 22528, 40, 64, 256000, 8192),
    "GPT2LMHeadModel": _sizes(_GPT, 768, 12, 12, 50257, 1024),
    "GPTBigCodeForCausalLM": _sizes(_GPT, 768, 12, 12, 50257, 1024),
    "GPTNeoForCausalLM": {
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
    },
    "OPTForCausalLM": _sizes(_DECODER, 768, None, 12, 12, 50272, 2048) | {"ffn_dim": 3072},
    "GPTNeoXForCausalLM": _sizes(_DECODER, 6144, 24576, 44, 64, 50432, 2048),
    "GPTJForCausalLM": _sizes(_GPT, 4096, 28, 16, 50400, 2048),
    "BloomForCausalLM": {"hidden_size": 64, "n_layer": 2, "n_head": 8, "vocab_size": 250880},
    "MptForCausalLM": {"d_model": 2048, "n_layers": 24, "n_heads": 16, "vocab_size": 50368},
    "FalconForCausalLM": _sizes(_DECODER, 4544, None, 32, 71, 65024, 2048),
    "MixtralForCausalLM": _sizes(_DECODER, 4096, 14336, 32, 32, 32000, 131072),
    "Qwen2MoeForCausalLM": _sizes(_DECODER, 2048, 5632, 24, 16, 151936, 32768),
    "Qwen3MoeForCausalLM": _sizes(_DECODER, 2048, 6144, 24, 32, 151936, 32768),
    "OlmoeForCausalLM": _sizes(_DECODER, 2048, 2048, 16, 16, 50304, 4096),
    "GptOssForCausalLM": _sizes(_DECODER, 2880, 2880, 36, 64, 201088, 131072)
    | {"rope_parameters": _GPT_OSS_ROPE},
    "T5ForConditionalGeneration": _sizes(_T5, 512, 2048, 6, 8, 32128),
    "MT5ForConditionalGeneration": _sizes(_T5, 512, 1024, 8, 6, 250112),
    "UMT5ForConditionalGeneration": _sizes(_T5, 512, 1024, 8, 6, 250112),
    "BartForConditionalGeneration": _sizes(_ENCODER_DECODER, 1024, 12, 16, 4096, 12, 16, 4096, 50265, 1024),
    "MBartForConditionalGeneration": _sizes(_ENCODER_DECODER, 1024, 12, 16, 4096, 12, 16, 4096, 50265, 1024),
    "MarianMTModel": _sizes(_ENCODER_DECODER, 1024, 12, 16, 4096, 12, 16, 4096, 58101, 1024),
    "M2M100ForConditionalGeneration": _sizes(
        _ENCODER_DECODER, 1024, 12, 16, 4096, 12, 16, 4096, 128112, 1024
    ),
}

ABSENT: Final[Mapping[str, Mapping[str, Any]]] = {
    **_OF_CLASSES,
    "Gemma3ForConditionalGeneration": _OF_CLASSES["Gemma3ForCausalLM"],
    "Mistral3ForConditionalGeneration": _OF_CLASSES["MistralForCausalLM"],
}
"""Fields of a decoder or encoder-decoder to values, by architecture."""
