"""Tiny models of every architecture: a config.json, random weights, and the same model in transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specdec.fields import Fields
from specdec.models.checkpoints.hf_folder import described
from specdec.models.families import FAMILIES, ConfigReader
from worlds.folders import write_hf

SIZES: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT_SIZES: dict[str, Any] = {
    "vocab_size": 211, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 24,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 24,
}  # fmt: skip

# Fields without which the defaults of a class in transformers are no model that can be read.
GIVEN = {
    "Gemma4ForCausalLM": {"hidden_size_per_layer_input": 0},
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "Dots1ForCausalLM": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
}


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _of(config: str, settings: dict[str, Any] | None = None, /, **changes: Any) -> Callable[[], Any]:
    """Make a configuration of transformers, imported lazily because it takes seconds."""

    def make() -> Any:
        import transformers

        return getattr(transformers, config)(**{**(SIZES if settings is None else settings), **changes})

    return make


def _like(config: str, **changes: Any) -> Callable[[], Any]:
    return _of(config, None, **changes)


_HYBRID: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 24, "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                        "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
}  # fmt: skip
_HYBRID_EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip

_GEMMA4: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 9, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip

_MAMBA = {
    "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 3, "mamba_d_head": 32,
    "mamba_d_state": 12, "mamba_expand": 2, "attention_multiplier": 0.3,
}  # fmt: skip

_FALCON = {
    "mamba_n_heads": 3, "mamba_d_head": 32, "mamba_d_ssm": 96, "mamba_d_state": 12, "mamba_n_groups": 1,
}  # fmt: skip
MULTIPLIERS = {
    "lm_head_multiplier": 0.3, "embedding_multiplier": 5.7, "mlp_multipliers": [0.9, 0.6],
    "key_multiplier": 0.4, "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.4, 0.3, 1.2, 0.5, 0.8], "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.25,
}  # fmt: skip
_MAMBA2 = _without(
    SIZES, "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"
) | {"num_heads": 3, "head_dim": 32, "n_groups": 3, "state_size": 12}
_NEMOTRON_H = _without(SIZES, "num_hidden_layers") | {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"], "head_dim": 8,
    "mamba_num_heads": 6, "mamba_head_dim": 20, "n_groups": 3, "ssm_state_size": 12, "time_step_min": 1e-9,
}  # fmt: skip
_MULTI_HEAD = _without(SIZES, "num_key_value_heads")
_OWN_WIDTH = _without(_MULTI_HEAD, "intermediate_size")

_XGLM: dict[str, Any] = {
    "vocab_size": 211, "d_model": 48, "ffn_dim": 80, "num_layers": 3, "attention_heads": 6,
    "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip

# Name of the case → maker of the configuration. The name begins with the architecture.
CASES: dict[str, Callable[[], Any]] = {
    "LlamaForCausalLM": _like("LlamaConfig"),
    "LlamaForCausalLM tied": _like("LlamaConfig", tie_word_embeddings=True),
    "LlamaForCausalLM multi-head": _like("LlamaConfig", num_key_value_heads=6, rms_norm_eps=1e-3),
    "LlamaForCausalLM one key/value head": _like("LlamaConfig", num_key_value_heads=1),
    "LlamaForCausalLM biases": _like("LlamaConfig", attention_bias=True, mlp_bias=True),
    "LlamaForCausalLM head_dim": _like("LlamaConfig", head_dim=10),
    "LlamaForCausalLM theta": _like("LlamaConfig", rope_parameters={"rope_type": "default", "rope_theta":
        500.0}),
    "LlamaForCausalLM llama3": _like("LlamaConfig", rope_parameters=dict(LLAMA3)),
    "LlamaForCausalLM linear": _like("LlamaConfig", rope_parameters={"rope_type": "linear", "rope_theta":
        10000.0, "factor": 4.0}),
    "LlamaForCausalLM dynamic": _like("LlamaConfig", rope_parameters={"rope_type": "dynamic", "rope_theta":
        10000.0, "factor": 2.0}),
    "LlamaForCausalLM yarn": _like("LlamaConfig", rope_parameters=dict(YARN)),
    "LlamaForCausalLM proportional": _like("LlamaConfig", rope_parameters={"rope_type": "proportional",
        "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "MistralForCausalLM": _like("MistralConfig", sliding_window=7),
    "MistralForCausalLM whole": _like("MistralConfig", sliding_window=None, head_dim=12),
    "MinistralForCausalLM": _like("MinistralConfig", head_dim=8, sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "Ministral3ForCausalLM": _like("Ministral3Config", rope_parameters={**YARN, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "beta_fast": 32.0, "beta_slow": 1.0},
        head_dim=8),
    "Qwen2ForCausalLM": _like("Qwen2Config", tie_word_embeddings=True),
    "Qwen2ForCausalLM windows": _like("Qwen2Config", use_sliding_window=True, sliding_window=9,
        max_window_layers=1),
    "Qwen3ForCausalLM": _like("Qwen3Config", head_dim=12),
    "HunYuanDenseV1ForCausalLM": _like("HunYuanDenseV1Config", head_dim=12, tie_word_embeddings=True),
    "HunYuanDenseV1ForCausalLM alpha": _like("HunYuanDenseV1Config", head_dim=8, rope_parameters={"rope_type":
        "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0}),
    "NanoChatForCausalLM": _like("NanoChatConfig", final_logit_softcapping=3.0),
    "Lfm2ForCausalLM": _like("Lfm2Config", full_attn_idxs=[1], block_multiple_of=32),
    "Lfm2ForCausalLM wide biases": _like("Lfm2Config", layer_types=["full_attention", "conv", "conv"],
        conv_L_cache=5, conv_bias=True, block_auto_adjust_ff_dim=False, tie_word_embeddings=False),
    "Lfm2ForCausalLM attention": _like("Lfm2Config", block_ffn_dim_multiplier=1.3),
    "SmolLM3ForCausalLM": _like("SmolLM3Config", no_rope_layers=[1, 0, 1]),
    "Phi3ForCausalLM": _like("Phi3Config", sliding_window=9),
    "Phi3ForCausalLM longrope": _like("Phi3Config", rope_parameters=dict(LONGROPE),
        original_max_position_embeddings=24),
    "Phi3ForCausalLM partial longrope": _like("Phi3Config", num_attention_heads=4,
        rope_parameters={**LONGROPE, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.2, 1.3,
        1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]}, hidden_size=64,
        original_max_position_embeddings=24, tie_word_embeddings=True),
    "GemmaForCausalLM": _like("GemmaConfig", head_dim=16),
    "Gemma2ForCausalLM": _like("Gemma2Config", head_dim=16, sliding_window=9, query_pre_attn_scalar=24),
    "Gemma3ForCausalLM": _like("Gemma3TextConfig", head_dim=16, sliding_window=9, query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "Gemma4ForCausalLM": _of("Gemma4TextConfig", _GEMMA4, attention_k_eq_v=True, global_head_dim=24,
        num_global_key_value_heads=1, num_experts=None),
    "Gemma4ForCausalLM values": _of("Gemma4TextConfig", _GEMMA4, global_head_dim=8,
        final_logit_softcapping=3.0, layer_types=["full_attention"] * 4),
    "Gemma4ForCausalLM experts": _of("Gemma4TextConfig", _GEMMA4, attention_k_eq_v=True, global_head_dim=24,
        enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=40),
    "Gemma4ForCausalLM shared": _of("Gemma4TextConfig", _GEMMA4, num_hidden_layers=6, global_head_dim=24,
        layer_types=["sliding_attention", "full_attention"] * 3, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size_per_layer_input=12, vocab_size_per_layer_input=
        SIZES["vocab_size"]),
    "Gemma4UnifiedForCausalLM": _of("Gemma4UnifiedTextConfig", _without(_GEMMA4,
        "hidden_size_per_layer_input"), attention_k_eq_v=True, global_head_dim=16,
        num_global_key_value_heads=3),
    "Qwen3_5ForCausalLM": _of("Qwen3_5TextConfig", _HYBRID),
    "Qwen3_5ForCausalLM tied": _of("Qwen3_5TextConfig", _HYBRID, linear_num_key_heads=3,
        linear_num_value_heads=3, linear_conv_kernel_dim=3, tie_word_embeddings=True),
    "Qwen3_5MoeForCausalLM": _of("Qwen3_5MoeTextConfig", _without(_HYBRID, "intermediate_size"),
        **_HYBRID_EXPERTS),
    "Qwen3NextForCausalLM": _of("Qwen3NextConfig", _HYBRID, **_HYBRID_EXPERTS, mlp_only_layers=[2]),
    "OlmoForCausalLM": _like("OlmoConfig", clip_qkv=0.8),
    "Olmo2ForCausalLM": _like("Olmo2Config"),
    "Olmo3ForCausalLM": _like("Olmo3Config", sliding_window=9, layer_types=["sliding_attention",
        "full_attention", "sliding_attention"], rope_parameters={"sliding_attention": {"rope_type":
        "default", "rope_theta": 10000.0}, "full_attention": dict(YARN)}),
    "GraniteForCausalLM": _like("GraniteConfig", embedding_multiplier=12.0, logits_scaling=4.0,
        residual_multiplier=0.22, attention_multiplier=0.2, tie_word_embeddings=True),
    "HyperCLOVAXForCausalLM": _like("HyperCLOVAXConfig", embedding_multiplier=12.0, logits_scaling=0.3,
        residual_multiplier=0.22, attention_multiplier=0.2),
    "HyperCLOVAXForCausalLM inputs": _like("HyperCLOVAXConfig", use_post_norm=False, attention_bias=True),
    "GraniteSWAForCausalLM": _like("GraniteSWAConfig", num_hidden_layers=4, sliding_window=9,
        embedding_multiplier=12.0, logits_scaling=4.0, residual_multiplier=0.22, attention_multiplier=0.2,
        layer_rope_theta=[0, 500.0, 10000.0, 500]),
    "GraniteSWAForCausalLM one base": _like("GraniteSWAConfig", attention_bias=True, mlp_bias=True),
    "CwmForCausalLM": _like("CwmConfig", num_hidden_layers=5, sliding_window=9, head_dim=12,
        rope_parameters=dict(LLAMA3)),
    "SeedOssForCausalLM": _like("SeedOssConfig", head_dim=10),
    "SeedOssForCausalLM biases": _like("SeedOssConfig", head_dim=8, attention_bias=False,
        attention_out_bias=True, mlp_bias=True),
    "InternLM3ForCausalLM": _like("InternLM3Config", head_dim=10, rope_parameters={"rope_type": "dynamic",
        "rope_theta": 5e4, "factor": 6.0}),
    "InternLM3ForCausalLM biases": _like("InternLM3Config", attention_bias=True, mlp_bias=True, head_dim=8),
    "IQuestCoderForCausalLM": _like("IQuestCoderConfig", head_dim=10),
    "ExaoneForCausalLM": _like("ExaoneConfig", rope_parameters=dict(LLAMA3)),
    "Exaone4ForCausalLM": _like("Exaone4Config", sliding_window=9, num_hidden_layers=5),
    "Exaone4ForCausalLM whole": _like("Exaone4Config", sliding_window=None, layer_types=["full_attention"] *
        3, tie_word_embeddings=True, head_dim=12),
    "GlmForCausalLM": _like("GlmConfig", head_dim=12),
    "Glm4ForCausalLM": _like("Glm4Config", head_dim=16, attention_bias=False),
    "Ernie4_5ForCausalLM": _like("Ernie4_5Config", head_dim=10),
    "Ernie4_5ForCausalLM biases": _like("Ernie4_5Config", head_dim=8, use_bias=True,
        tie_word_embeddings=False),
    "HeliumForCausalLM": _like("HeliumConfig", head_dim=8),
    "NemotronForCausalLM": _like("NemotronConfig"),
    "NemotronForCausalLM biases": _like("NemotronConfig", attention_bias=True, mlp_bias=True, head_dim=12,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}),
    "ApertusForCausalLM": _like("ApertusConfig", rope_parameters=dict(LLAMA3)),
    "ApertusForCausalLM biases": _like("ApertusConfig", attention_bias=True),
    "ArceeForCausalLM": _like("ArceeConfig", rope_parameters=dict(YARN), mlp_bias=True),
    "Jais2ForCausalLM": _like("Jais2Config"),
    "VaultGemmaForCausalLM": _like("VaultGemmaConfig", head_dim=16, sliding_window=9,
        query_pre_attn_scalar=24),
    "StableLmForCausalLM": _like("StableLmConfig", use_qkv_bias=True, partial_rotary_factor=0.25,
        num_attention_heads=4, hidden_size=64),
    "StableLmForCausalLM parallel": _like("StableLmConfig", use_parallel_residual=True, qk_layernorm=True,
        num_attention_heads=4, hidden_size=64),
    "PhiForCausalLM": _like("PhiConfig", partial_rotary_factor=0.5, num_key_value_heads=6),
    "Starcoder2ForCausalLM": _like("Starcoder2Config", sliding_window=9),
    "GPTNeoXForCausalLM": _of("GPTNeoXConfig", _MULTI_HEAD, rotary_pct=0.25),
    "GPTNeoXForCausalLM sequential": _of("GPTNeoXConfig", _MULTI_HEAD, use_parallel_residual=False,
        rotary_pct=1.0),
    "GPTJForCausalLM": _of("GPTJConfig", GPT_SIZES, rotary_dim=4),
    "CodeGenForCausalLM": _of("CodeGenConfig", GPT_SIZES, rotary_dim=4),
    "XGLMForCausalLM": _of("XGLMConfig", _XGLM),
    "BioGptForCausalLM": _of("BioGptConfig", _MULTI_HEAD, scale_embedding=False),
    "GPTNeoForCausalLM": _of("GPTNeoConfig", {"vocab_size": 211, "hidden_size": 48, "num_layers": 3,
        "num_heads": 6, "intermediate_size": 80, "max_position_embeddings": 64, "bos_token_id": 1,
        "eos_token_id": 2}, attention_types=[[["global", "local"], 1], [["global"], 1]], window_size=9),
    "FalconForCausalLM": _of("FalconConfig", _OWN_WIDTH),
    "FalconForCausalLM new": _of("FalconConfig", _OWN_WIDTH, new_decoder_architecture=True, num_kv_heads=2,
        bias=True),
    "FalconForCausalLM alibi": _of("FalconConfig", _OWN_WIDTH, alibi=True, multi_query=False,
        parallel_attn=False, bias=True),
    "GPTBigCodeForCausalLM": _of("GPTBigCodeConfig", GPT_SIZES),
    "GPTBigCodeForCausalLM multi-head": _of("GPTBigCodeConfig", GPT_SIZES, multi_query=False),
    "OPTForCausalLM": _of("OPTConfig", _OWN_WIDTH, ffn_dim=80, word_embed_proj_dim=48, pad_token_id=0),
    "OPTForCausalLM 350m": _of("OPTConfig", _OWN_WIDTH, ffn_dim=80, word_embed_proj_dim=20, pad_token_id=0,
        do_layer_norm_before=False),
    "OPTForCausalLM projected, without a last norm": _of("OPTConfig", _OWN_WIDTH, ffn_dim=80,
        word_embed_proj_dim=60, pad_token_id=0, _remove_final_layer_norm=True),
    "BloomForCausalLM": _of("BloomConfig", {"vocab_size": 211, "hidden_size": 48, "n_layer": 3, "n_head": 6,
        "bos_token_id": 1, "eos_token_id": 2}, seq_length=64),
    "MptForCausalLM": _of("MptConfig", {"vocab_size": 211, "d_model": 48, "n_layers": 3, "n_heads": 6,
        "max_seq_len": 64, "bos_token_id": 1, "eos_token_id": 2}, attn_config={"clip_qkv": 1.5,
        "alibi_bias_max": 8}),
    "CohereForCausalLM": _like("CohereConfig", logit_scale=0.25),
    "CohereForCausalLM qk norm": _like("CohereConfig", logit_scale=0.25, use_qk_norm=True),
    "Cohere2ForCausalLM": _like("Cohere2Config", sliding_window=9, logit_scale=0.25,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "MixtralForCausalLM": _like("MixtralConfig", num_local_experts=5, sliding_window=9),
    "Qwen2MoeForCausalLM": _like("Qwen2MoeConfig", num_experts=6, moe_intermediate_size=40,
        shared_expert_intermediate_size=56, num_experts_per_tok=3, decoder_sparse_step=2,
        use_sliding_window=True, sliding_window=9),
    "Qwen3MoeForCausalLM": _like("Qwen3MoeConfig", num_experts=8, moe_intermediate_size=40,
        num_experts_per_tok=3, norm_topk_prob=True, mlp_only_layers=[1], head_dim=12),
    "Qwen3MoeForCausalLM all": _like("Qwen3MoeConfig", num_experts=4, moe_intermediate_size=40,
        num_experts_per_tok=4, attention_bias=True),
    "OlmoeForCausalLM": _like("OlmoeConfig", num_experts=8, num_experts_per_tok=3, clip_qkv=0.8,
        num_key_value_heads=6),
    "Glm4MoeForCausalLM": _like("Glm4MoeConfig", head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
        n_group=4, topk_group=2, moe_intermediate_size=40, n_shared_experts=2, routed_scaling_factor=1.5,
        use_qk_norm=True, attention_bias=True),
    "SolarOpenForCausalLM": _like("SolarOpenConfig", head_dim=12, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, norm_topk_prob=False),
    "Ernie4_5_MoeForCausalLM": _like("Ernie4_5_MoeConfig", moe_num_experts=8, moe_k=3,
        moe_intermediate_size=40),
    "MiniMaxM2ForCausalLM": _like("MiniMaxM2Config", head_dim=12, rotary_dim=6, num_local_experts=6,
        num_experts_per_tok=2, intermediate_size=40),
    "Dots1ForCausalLM": _like("Dots1Config", n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=40, first_k_dense_replace=1, sliding_window=9, max_window_layers=1),
    "ExaoneMoeForCausalLM": _like("ExaoneMoeConfig", num_experts=6, num_experts_per_tok=2, sliding_window=9,
        moe_intermediate_size=40, sliding_window_pattern=2, mlp_layer_types=["sparse", "dense", "sparse"]),
    "HYV3ForCausalLM": _like("HYV3Config", head_dim=8, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, attention_bias=True),
    "AfmoeForCausalLM": _like("AfmoeConfig", head_dim=12, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, sliding_window=9, mup_enabled=True, route_scale=1.5,
        global_attn_every_n_layers=2),
    "LagunaForCausalLM": _like("LagunaConfig", head_dim=8, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, shared_expert_intermediate_size=24, sliding_window=9,
        num_attention_heads_per_layer=[6, 4, 2], moe_routed_scaling_factor=1.5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "LagunaForCausalLM gates": _like("LagunaConfig", head_dim=12, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, gating="per-element", attention_bias=True, tie_word_embeddings=True,
        mlp_layer_types=["sparse", "dense", "sparse"]),
    "FlexOlmoForCausalLM": _like("FlexOlmoConfig", num_experts=6, num_experts_per_tok=2),
    "MellumForCausalLM": _like("MellumConfig", head_dim=8, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, sliding_window=9, mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": dict(YARN)}),
    "HunYuanMoEV1ForCausalLM": _like("HunYuanMoEV1Config", head_dim=8, num_experts=6, moe_topk=2),
    "GraniteMoeForCausalLM": _like("GraniteMoeConfig", num_local_experts=5, embedding_multiplier=12.0,
        logits_scaling=4.0, residual_multiplier=0.22, attention_multiplier=0.2, attention_bias=True),
    "GraniteMoeSharedForCausalLM": _like("GraniteMoeSharedConfig", num_local_experts=6,
        num_experts_per_tok=3, shared_intermediate_size=56, tie_word_embeddings=True),
    "Lfm3ForCausalLM": _like("Lfm3Config", head_dim=8, num_hidden_layers=6, sliding_window=9,
        layer_types=["conv", "full_attention", "sliding_attention", "conv", "sliding_attention", "conv"]),
    "Lfm3ForCausalLM plain": _like("Lfm3Config", head_dim=12, conv_L_cache=3, use_sandwich_norm=False,
        use_attention_gate=False, conv_bias=True, attention_bias=True, tie_word_embeddings=False),
    "GraniteMoeHybridForCausalLM": _like("GraniteMoeHybridConfig", **_MAMBA, num_local_experts=5,
        num_experts_per_tok=3, shared_intermediate_size=56, mamba_n_groups=3, embedding_multiplier=12.0,
        logits_scaling=4.0, residual_multiplier=0.22),
    "GraniteMoeHybridForCausalLM dense rotary": _like("GraniteMoeHybridConfig", **_MAMBA, num_local_experts=0,
        num_experts_per_tok=0, shared_intermediate_size=72, position_embedding_type="rope",
        mamba_conv_bias=False, mamba_d_conv=3, tie_word_embeddings=True, attention_bias=True),
    "BambaForCausalLM": _like("BambaConfig", **_without(_MAMBA, "layer_types", "attention_multiplier"),
        num_hidden_layers=3, attn_layer_indices=[1], mamba_n_groups=3),
    "FalconH1ForCausalLM": _like("FalconH1Config", **_FALCON, **MULTIPLIERS),
    "FalconH1ForCausalLM normed biases": _like("FalconH1Config", **_FALCON | {"mamba_d_ssm": None},
        mamba_rms_norm=True, mamba_norm_before_gate=False, attention_bias=True, mlp_bias=True, head_dim=10,
        mlp_multipliers=[0.5, 1.5], attention_out_multiplier=0.7, tie_word_embeddings=True),
    "FalconH1ForCausalLM norm first": _like("FalconH1Config", **_FALCON | {"mamba_n_groups": 3},
        mamba_rms_norm=True, mamba_conv_bias=False, mamba_d_conv=3, key_multiplier=0.4),
    "Mamba2ForCausalLM": _of("Mamba2Config", _MAMBA2),
    "Mamba2ForCausalLM tied": _of("Mamba2Config", _MAMBA2, n_groups=1, use_conv_bias=False, conv_kernel=3,
        tie_word_embeddings=True, layer_norm_epsilon=1e-4),
    "NemotronHForCausalLM": _of("NemotronHConfig", _NEMOTRON_H),
    "NemotronHForCausalLM experts": _of("NemotronHConfig", _NEMOTRON_H, layers_block_type=[
        "linear_attention", "moe", "full_attention", "moe"], n_routed_experts=8, num_experts_per_tok=2,
        n_group=4, topk_group=2, routed_scaling_factor=2.5, moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=40),
    "Lfm2MoeForCausalLM": _like("Lfm2MoeConfig", num_experts=6, num_experts_per_tok=3, num_dense_layers=1,
        moe_intermediate_size=40, layer_types=["conv", "full_attention", "conv"], routed_scaling_factor=1.5),
    "GraniteMoeSWAForCausalLM": _like("GraniteMoeSWAConfig", num_local_experts=6, num_experts_per_tok=3,
        shared_intermediate_size=56, sliding_window=9, residual_multiplier=0.22, attention_multiplier=0.2,
        layer_rope_theta=[0, 500.0, 10000.0]),
    "Lfm2MoeForCausalLM without corrections": _like("Lfm2MoeConfig", num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=40, layer_types=["conv", "conv", "full_attention"], use_expert_bias=False),
    "Cohere2MoeForCausalLM": _like("Cohere2MoeConfig", head_dim=8, num_experts=6, num_shared_experts=2,
        sliding_window=9, first_k_dense_replace=1, prefix_dense_intermediate_size=60,
        sliding_window_pattern=2, logit_scale=0.25),
    "Cohere2MoeForCausalLM sigmoid": _like("Cohere2MoeConfig", head_dim=8, num_experts=6, sliding_window=9,
        num_shared_experts=1, shared_expert_combination_strategy="sum", expert_selection_fn="sigmoid",
        rms_norm_eps=1e-4, logit_scale=0.25, prefix_dense_sliding_window_pattern=2),
    "GptOssForCausalLM": _like("GptOssConfig", num_local_experts=6, num_experts_per_tok=3, head_dim=8,
        sliding_window=9, swiglu_limit=1.0, rope_parameters={**YARN, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False}),
    "GPT2LMHeadModel": _of("GPT2Config", GPT_SIZES),
    "GPT2LMHeadModel gelu": _of("GPT2Config", GPT_SIZES, activation_function="gelu", n_inner=72),
    "GPT2LMHeadModel untied": _of("GPT2Config", GPT_SIZES, tie_word_embeddings=False,
        layer_norm_epsilon=1e-3),
    "GPT2LMHeadModel inverse": _of("GPT2Config", GPT_SIZES, scale_attn_by_inverse_layer_idx=True),
}  # fmt: skip

_T5: dict[str, Any] = {
    "vocab_size": 211, "d_model": 48, "d_kv": 10, "d_ff": 80, "num_layers": 3, "num_decoder_layers": 2,
    "num_heads": 6, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 30,
    "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
_BART: dict[str, Any] = {
    "vocab_size": 211, "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 72, "decoder_ffn_dim": 80, "max_position_embeddings": 80,
    "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_MARIAN = _BART | {
    "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 150, "decoder_start_token_id": 150,
    "forced_eos_token_id": 0, "activation_function": "swish", "scale_embedding": True,
}  # fmt: skip
_DEEP = {"num_layers": 4, "num_decoder_layers": 1}

# The same of models with an encoder. "own head": the head is not the token embedding, as in T5 1.1;
# "begun": texts begin with a token that is forced.
ENCODER_DECODERS: dict[str, Callable[[], Any]] = {
    "T5ForConditionalGeneration": _of("T5Config", _T5),
    "T5ForConditionalGeneration own head": _of("T5Config", _T5, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False),
    "T5ForConditionalGeneration far": _of("T5Config", _T5, relative_attention_num_buckets=32,
        relative_attention_max_distance=128),
    "T5ForConditionalGeneration bytes own head": _of("T5Config", _T5, vocab_size=384,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, **_DEEP),
    "MT5ForConditionalGeneration own head": _of("MT5Config", _T5),
    "UMT5ForConditionalGeneration": _of("UMT5Config", _T5),
    "UMT5ForConditionalGeneration own head": _of("UMT5Config", _T5, feed_forward_proj="gated-silu"),
    "BartForConditionalGeneration": _of("BartConfig", _BART),
    "BartForConditionalGeneration scaled begun": _of("BartConfig", _BART, scale_embedding=True,
        activation_function="relu"),
    "BartForConditionalGeneration own tables": _of("BartConfig", _BART, tie_word_embeddings=False),
    "MBartForConditionalGeneration": _of("MBartConfig", _BART, scale_embedding=True),
    "MarianMTModel": _of("MarianConfig", _MARIAN),
    "MarianMTModel own vocabularies": _of("MarianConfig", _MARIAN, share_encoder_decoder_embeddings=False,
        decoder_vocab_size=173),
    "M2M100ForConditionalGeneration begun": _of("M2M100Config", _BART),
}  # fmt: skip

# ------------------------------------------------------------------------- config.json and weights

_HF: dict[str, Any] = {
    "vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# Of decoders whose heads all have keys and values; their own names say how wide the feed-forward is.
_TINY_MULTI_HEAD = _without(_HF, "num_key_value_heads")
_TINY_OWN_WIDTH = _without(_TINY_MULTI_HEAD, "intermediate_size")
_GPT: dict[str, Any] = {
    "vocab_size": 17, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_TINY_T5: dict[str, Any] = {
    "vocab_size": 17, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
_TINY_BART: dict[str, Any] = {
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

_GEMMA4_TINY = _HF | {
    "head_dim": 8, "global_head_dim": 12, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
    "sliding_window": 6, "layer_types": _MIXED,
}  # fmt: skip

_TINY_HYBRID = _HF | {
    "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 32, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_TINY_HYBRID_EXPERTS = _without(_TINY_HYBRID, "intermediate_size") | {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 12,
}  # fmt: skip
_TINY_MAMBA = {
    "layer_types": ["mamba", "attention"], "mamba_n_heads": 2, "mamba_d_head": "auto", "mamba_n_groups": 2,
    "mamba_d_state": 8, "mamba_expand": 4, "time_step_limit": [0.0, math.inf],
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 8}

CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3_5ForCausalLM": _TINY_HYBRID,
    "Qwen3_5ForConditionalGeneration": {"text_config": _TINY_HYBRID},
    "Qwen3_5MoeForCausalLM": _TINY_HYBRID_EXPERTS,
    "Qwen3_5MoeForConditionalGeneration": {"text_config": _TINY_HYBRID_EXPERTS},
    "Qwen3NextForCausalLM": _TINY_HYBRID | _TINY_HYBRID_EXPERTS,
    "LlamaForCausalLM": _HF | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "MistralForCausalLM": _HF | {"sliding_window": 6},
    "MinistralForCausalLM": _HF | {"sliding_window": 6, "layer_types": _MIXED},
    "Ministral3ForCausalLM": _HF | {"head_dim": 8, "rope_parameters": _YARN | {"llama_4_scaling_beta":
        0.1}},
    "Mistral3ForConditionalGeneration": {"text_config": _HF | {"model_type": "ministral3", "head_dim": 8,
        "rope_parameters": _YARN}},
    "SmolLM3ForCausalLM": _HF | {"no_rope_layers": [1, 0]},
    "GraniteForCausalLM": _HF | {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier":
        0.5, "attention_multiplier": 0.3},
    "HyperCLOVAXForCausalLM": _HF | {"logits_scaling": 2.0},
    "GraniteSWAForCausalLM": _HF | {"embedding_multiplier": 3.0, "attention_multiplier": 0.3,
        "sliding_window": 6, "layer_types": _MIXED, "layer_rope_theta": [0, 1e3]},
    "CwmForCausalLM": _HF | {"sliding_window": 6, "head_dim": 12, "rope_parameters": {"rope_type":
        "default", "rope_theta": 1e4}},
    "SeedOssForCausalLM": _HF | {"head_dim": 12},
    "InternLM3ForCausalLM": _HF | {"head_dim": 12, "qkv_bias": True, "bias": False},
    "IQuestCoderForCausalLM": _HF | {"head_dim": 12},
    "ExaoneForCausalLM": _without(_HF, "num_hidden_layers") | {"num_layers": 2, "activation_function":
        "silu", "layer_norm_epsilon": 1e-6},
    "Exaone4ForCausalLM": _HF | {"sliding_window": 6, "layer_types": _MIXED},
    "GlmForCausalLM": _HF | {"head_dim": 8},
    "Glm4ForCausalLM": _HF | {"head_dim": 8},
    "Ernie4_5ForCausalLM": _HF | {"head_dim": 12, "use_bias": True},
    "HeliumForCausalLM": _HF | {"head_dim": 8},
    "NemotronForCausalLM": _HF,
    "ApertusForCausalLM": _HF,
    "ArceeForCausalLM": _HF | {"rope_scaling": _YARN},
    "Jais2ForCausalLM": _HF,
    "VaultGemmaForCausalLM": _HF | {"head_dim": 8, "sliding_window": 6},
    "Qwen2ForCausalLM": _HF | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "MiMoForCausalLM": _HF | {"head_dim": 12},
    "Qwen3ForCausalLM": _HF | {"head_dim": 12},
    "HunYuanDenseV1ForCausalLM": _HF | {"rope_scaling": {"type": "dynamic", "alpha": 50.0}},
    "NanoChatForCausalLM": _HF,
    "Lfm2ForCausalLM": _HF | {"block_ff_dim": 24, "block_multiple_of": 8, "full_attn_idxs": [1]},
    "Lfm3ForCausalLM": _HF | {"head_dim": 8, "layer_types": ["conv", "sliding_attention"],
        "sliding_window": 5},
    "Lfm2VlForConditionalGeneration": {"text_config": _HF | {"layer_types": ["conv", "full_attention"],
        "conv_bias": True, "block_auto_adjust_ff_dim": False}},
    "PhiForCausalLM": _HF | {"partial_rotary_factor": 0.5},
    "Phi3ForCausalLM": _HF | {"rope_scaling": _LONG, "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16},
    "GemmaForCausalLM": _HF | {"head_dim": 8},
    "Gemma2ForCausalLM": _HF | {"head_dim": 8, "sliding_window": 6},
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": {"text_config": _GEMMA3},
    "Gemma4ForCausalLM": _GEMMA4_TINY | {"hidden_size_per_layer_input": 0},
    "Gemma4ForConditionalGeneration": {"text_config": _GEMMA4_TINY | {"attention_k_eq_v": False,
        "num_hidden_layers": 4, "layer_types": _MIXED * 2, "num_kv_shared_layers": 2, "use_double_wide_mlp":
        True, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 17}},
    "Gemma4UnifiedForCausalLM": _GEMMA4_TINY,
    "Gemma4UnifiedForConditionalGeneration": {"text_config": _GEMMA4_TINY},
    "OlmoForCausalLM": _HF | {"clip_qkv": 1.0},
    "Olmo2ForCausalLM": _HF,
    "Olmo3ForCausalLM": _HF | {"sliding_window": 6, "layer_types": _MIXED, "rope_parameters":
        {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "StableLmForCausalLM": _HF | {"qk_layernorm": True, "use_parallel_residual": True},
    "Starcoder2ForCausalLM": _HF | {"sliding_window": 6},
    "CohereForCausalLM": _HF | {"use_qk_norm": True},
    "Cohere2ForCausalLM": _HF | {"sliding_window": 6, "layer_types": _MIXED},
    "GPT2LMHeadModel": _GPT,
    "GPTBigCodeForCausalLM": _GPT,
    "GPTNeoForCausalLM": {"vocab_size": 17, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
        "max_position_embeddings": 32, "attention_types": [[["global", "local"], 1]], "window_size": 6},
    "OPTForCausalLM": _TINY_OWN_WIDTH | {"ffn_dim": 24},
    "GPTNeoXForCausalLM": _TINY_MULTI_HEAD | {"rotary_pct": 0.5},
    "GPTJForCausalLM": _GPT | {"rotary_dim": 4},
    "CodeGenForCausalLM": _GPT | {"rotary_dim": 4},
    "XGLMForCausalLM": {"vocab_size": 17, "d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads":
        2, "max_position_embeddings": 32},
    "BioGptForCausalLM": _TINY_MULTI_HEAD,
    "BloomForCausalLM": {"vocab_size": 17, "hidden_size": 16, "n_layer": 2, "n_head": 2, "seq_length": 32},
    "MptForCausalLM": {"vocab_size": 17, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32,
        "attn_config": {"clip_qkv": 1.0}},
    "FalconForCausalLM": _TINY_OWN_WIDTH | {"new_decoder_architecture": True, "num_kv_heads": 1},
    "MixtralForCausalLM": _HF | {"num_local_experts": 3, "sliding_window": 6},
    "Qwen2MoeForCausalLM": _HF | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 12, "mlp_only_layers": [1], "norm_topk_prob": True},
    "Qwen3MoeForCausalLM": _HF | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "decoder_sparse_step": 2},
    "OlmoeForCausalLM": _HF | {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 1.0},
    "Glm4MoeForCausalLM": _HF | _EXPERTS | {"n_routed_experts": 4, "head_dim": 8, "use_qk_norm": True,
        "n_shared_experts": 1, "routed_scaling_factor": 2.5},
    "SolarOpenForCausalLM": _HF | _EXPERTS | {"n_routed_experts": 4, "head_dim": 8},
    "Ernie4_5_MoeForCausalLM": _HF | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 8,
        "moe_num_shared_experts": 1},
    "MiniMaxM2ForCausalLM": _HF | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8,
        "rotary_dim": 4},
    "Dots1ForCausalLM": _HF | _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True},
    "ExaoneMoeForCausalLM": _HF | _EXPERTS | {"num_experts": 4, "sliding_window": 6, "layer_types": _MIXED},
    "HYV3ForCausalLM": _HF | _EXPERTS | {"num_experts": 4, "head_dim": 8},
    "AfmoeForCausalLM": _HF | _EXPERTS | {"num_experts": 4, "head_dim": 8, "sliding_window": 6,
        "layer_types": _MIXED, "mup_enabled": True, "num_shared_experts": 1},
    "LagunaForCausalLM": _HF | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"]},
    "FlexOlmoForCausalLM": _HF | {"num_experts": 4, "num_experts_per_tok": 2},
    "MellumForCausalLM": _HF | _EXPERTS | {"num_experts": 4, "head_dim": 8, "sliding_window": 6,
        "layer_types": _MIXED, "rope_parameters": _GEMMA3["rope_parameters"]},
    "HunYuanMoEV1ForCausalLM": _HF | {"num_experts": [4, 4], "moe_topk": 2},
    "GraniteMoeForCausalLM": _HF | {"num_local_experts": 4, "attention_multiplier": 0.3},
    "GraniteMoeSharedForCausalLM": _HF | {"num_local_experts": 4, "shared_intermediate_size": 12,
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "GraniteMoeSWAForCausalLM": _HF | {"num_local_experts": 4, "shared_intermediate_size": 12,
        "layer_rope_theta": [0, 500], "sliding_window": 5},
    "GraniteMoeHybridForCausalLM": _HF | _TINY_MAMBA | {"num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 12, "attention_multiplier": 0.25},
    "BambaForCausalLM": _HF | _without(_TINY_MAMBA, "layer_types") | {"attn_layer_indices": [1]},
    "FalconH1ForCausalLM": _HF | {"mamba_n_heads": 2, "mamba_d_head": 32, "mamba_d_ssm": 64, "mamba_n_groups":
        1, "mamba_d_state": 8, **MULTIPLIERS},
    "Mamba2ForCausalLM": {"vocab_size": 17, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 1,
        "head_dim": 32, "n_groups": 1, "state_size": 8},
    "NemotronHForCausalLM": _without(_HF, "num_hidden_layers") | {"hybrid_override_pattern": "M-*E",
        "head_dim": 8, "mamba_num_heads": 2, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 8,
        "n_routed_experts": 4, "moe_intermediate_size": 8, "moe_shared_expert_intermediate_size": 12},
    "Lfm2MoeForCausalLM": _HF | _EXPERTS | {"num_experts": 4, "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention"]},
    "Cohere2MoeForCausalLM": _HF | {"head_dim": 8, "num_experts": 4, "num_shared_experts": 1,
        "sliding_window": 6, "first_k_dense_replace": 1, "sliding_window_pattern": 2},
    "GptOssForCausalLM": _HF | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8,
        "sliding_window": 6, "rope_scaling": _YARN},
    "LamdaForCausalLM": _HF | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    "T5ForConditionalGeneration": _TINY_T5 | {"num_decoder_layers": 1},
    "MT5ForConditionalGeneration": _TINY_T5 | {"tie_word_embeddings": False},
    "UMT5ForConditionalGeneration": _TINY_T5,
    "BartForConditionalGeneration": _TINY_BART,
    "MBartForConditionalGeneration": _TINY_BART | {"scale_embedding": True},
    "MarianMTModel": _TINY_BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 13},
    "M2M100ForConditionalGeneration": _TINY_BART | {"forced_bos_token_id": 3},
}  # fmt: skip
"""The config.json of each architecture, less ``architectures``."""


ARCHITECTURES = tuple(FAMILIES)
"""The names of all of them."""
TEXT_FIELDS = {name: family.text_field for name, family in FAMILIES.items() if family.text_field}
"""Field with the decoder's configuration, for models with vision."""
MODEL_TYPES = {name: family.model_type for name, family in FAMILIES.items()} | {
    "Mistral3ForConditionalGeneration": "mistral3", "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4", "Gemma4UnifiedForConditionalGeneration": "gemma4_unified",
    "Lfm2VlForConditionalGeneration": "lfm2_vl",
    "Qwen3_5ForConditionalGeneration": "qwen3_5", "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
}  # fmt: skip


def read_config(
    fields: Mapping[str, Any], architecture: str = "", n_ctx: int | None = None
) -> dict[str, Any]:
    """Read the canonical configuration of a config.json, as for folders."""
    given = json.loads(json.dumps(fields))
    if architecture:
        given["architectures"] = [architecture]
    found = described(Fields(given, Path("config.json")), n_ctx)
    assert architecture in ("", found[0])
    return found[2]


def random_weights(architecture: str, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Draw weights for a config.json, by the file's names."""
    family, rng = FAMILIES[architecture], np.random.default_rng(4)
    fields = Fields(json.loads(json.dumps(config)), Path("config.json"))
    canonical = family.read_config(ConfigReader(family.decoder_fields(fields)))
    found: dict[str, np.ndarray] = {}
    for source in family.sources(canonical):
        for name, shape in zip(source.stored, source.stored_shapes, strict=True):
            if name not in found:
                found[name] = rng.normal(0.0, 0.3, shape).astype("<f4")
            if name.endswith("act_fn.eps"):
                found[name] = np.array(-1e-6, "<f4")
    return found


def tiny_folder(folder: Path, architecture: str, **changes: Any) -> Path:
    """Write a tiny model with some fields changed; ``...`` leaves a field out."""
    config = CONFIGS[architecture]
    changed = {name: value for name, value in (config | changes).items() if value is not ...}
    return write_hf(folder, changed | {"architectures": [architecture]}, random_weights(architecture, config))
