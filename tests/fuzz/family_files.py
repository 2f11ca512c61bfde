"""A small sound folder of every architecture: what the family is known for, random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specdec.fields import Fields
from specdec.models.families import FAMILIES, ConfigReader

__all__ = ["CONFIGS", "random_weights"]

_HF: dict[str, Any] = {
    "vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# Of decoders whose heads all have keys and values; their own names say how wide the feed-forward is.
_MULTI_HEAD = {name: value for name, value in _HF.items() if name != "num_key_value_heads"}
_OWN_WIDTH = {name: value for name, value in _MULTI_HEAD.items() if name != "intermediate_size"}
_GPT: dict[str, Any] = {
    "vocab_size": 17, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": 17, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
_BART: dict[str, Any] = {
    "vocab_size": 17, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 32,
    "decoder_start_token_id": 2, "eos_token_id": 2,
}  # fmt: skip
_MIXED = ["sliding_attention", "full_attention"]
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
_LONG = {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0, 3.0, 4.0]}
_GEMMA3 = _HF | {
    "head_dim": 8, "sliding_window": 6, "layer_types": _MIXED, "query_pre_attn_scalar": 8,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    },
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _HF | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "MistralForCausalLM": _HF | {"sliding_window": 6},
    "MinistralForCausalLM": _HF | {"sliding_window": 6, "layer_types": _MIXED},
    "Ministral3ForCausalLM": _HF | {"head_dim": 8, "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1}},
    "Mistral3ForConditionalGeneration": {
        "text_config": _HF | {"model_type": "ministral3", "head_dim": 8, "rope_parameters": _YARN}
    },
    "SmolLM3ForCausalLM": _HF | {"no_rope_layers": [1, 0]},
    "GraniteForCausalLM": _HF
    | {
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    },
    "Qwen2ForCausalLM": _HF | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "MiMoForCausalLM": _HF | {"head_dim": 12},
    "Qwen3ForCausalLM": _HF | {"head_dim": 12},
    "PhiForCausalLM": _HF | {"partial_rotary_factor": 0.5},
    "Phi3ForCausalLM": _HF
    | {"rope_scaling": _LONG, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 16},
    "GemmaForCausalLM": _HF | {"head_dim": 8},
    "Gemma2ForCausalLM": _HF | {"head_dim": 8, "sliding_window": 6},
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": {"text_config": _GEMMA3},
    "OlmoForCausalLM": _HF | {"clip_qkv": 1.0},
    "Olmo2ForCausalLM": _HF,
    "Olmo3ForCausalLM": _HF
    | {
        "sliding_window": 6, "layer_types": _MIXED,
        "rope_parameters": {
            "full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
        },
    },
    "StableLmForCausalLM": _HF | {"qk_layernorm": True, "use_parallel_residual": True},
    "Starcoder2ForCausalLM": _HF | {"sliding_window": 6},
    "CohereForCausalLM": _HF | {"use_qk_norm": True},
    "Cohere2ForCausalLM": _HF | {"sliding_window": 6, "layer_types": _MIXED},
    "GPT2LMHeadModel": _GPT,
    "GPTBigCodeForCausalLM": _GPT,
    "GPTNeoForCausalLM": {
        "vocab_size": 17, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 32,
        "attention_types": [[["global", "local"], 1]], "window_size": 6,
    },
    "OPTForCausalLM": _OWN_WIDTH | {"ffn_dim": 24},
    "GPTNeoXForCausalLM": _MULTI_HEAD | {"rotary_pct": 0.5},
    "GPTJForCausalLM": _GPT | {"rotary_dim": 4},
    "BloomForCausalLM": {"vocab_size": 17, "hidden_size": 16, "n_layer": 2, "n_head": 2, "seq_length": 32},
    "MptForCausalLM": {
        "vocab_size": 17, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32,
        "attn_config": {"clip_qkv": 1.0},
    },
    "FalconForCausalLM": _OWN_WIDTH | {"new_decoder_architecture": True, "num_kv_heads": 1},
    "MixtralForCausalLM": _HF | {"num_local_experts": 3, "sliding_window": 6},
    "Qwen2MoeForCausalLM": _HF
    | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 12, "mlp_only_layers": [1], "norm_topk_prob": True,
    },
    "Qwen3MoeForCausalLM": _HF
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 2},
    "OlmoeForCausalLM": _HF | {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 1.0},
    "GptOssForCausalLM": _HF
    | {
        "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 6,
        "rope_scaling": _YARN,
    },
    "LamdaForCausalLM": _HF
    | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    "T5ForConditionalGeneration": _T5 | {"num_decoder_layers": 1},
    "MT5ForConditionalGeneration": _T5 | {"tie_word_embeddings": False},
    "UMT5ForConditionalGeneration": _T5,
    "BartForConditionalGeneration": _BART,
    "MBartForConditionalGeneration": _BART | {"scale_embedding": True},
    "MarianMTModel": _BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 13},
    "M2M100ForConditionalGeneration": _BART | {"forced_bos_token_id": 3},
}  # fmt: skip
"""The config.json of each architecture, less ``architectures``."""


def random_weights(architecture: str, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weights for a config.json, under the names of the file."""
    family, rng = FAMILIES[architecture], np.random.default_rng(4)
    fields = Fields(json.loads(json.dumps(config)), Path("config.json"))
    canonical = family.read_config(ConfigReader(family.decoder_fields(fields)))
    found: dict[str, np.ndarray] = {}
    for source in family.sources(canonical):
        for name, shape in zip(source.stored, source.stored_shapes, strict=True):
            if name not in found:
                found[name] = rng.normal(0.0, 0.3, shape).astype("<f4")
    return found
