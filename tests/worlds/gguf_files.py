"""Small GGUF files of every architecture, converted from Hugging Face's tensors like llama.cpp's converter.

Tensor names come from the table of the package ``gguf``, keys from its writer; nothing comes from the readers
under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from worlds.families import CONFIGS, MULTIPLIERS, random_weights

Array = NDArray[Any]
Change = Callable[[str, Array, Mapping[str, Any]], Mapping[str, Array]]

N_HEAD, N_KV_HEAD = 2, 1  # of most configurations of the fuzzer


def permuted(array: Array, n_head: int) -> Array:
    """Interleave the halves of each head's rows, because ggml rotates adjacent pairs."""
    shape = array.shape
    return array.reshape(n_head, 2, shape[0] // n_head // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def turned(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Convert queries and keys to ggml's order."""
    for part, heads in (("q_proj", N_HEAD), ("k_proj", N_KV_HEAD)):
        if f"{part}." in name:
            return {name: permuted(array, heads)}
    return {name: array}


def kept(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Return the tensor unchanged."""
    return {name: array}


def norms_plus_one(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Add 1 to Gemma's norms, as GGUF files store them."""
    return {name: array + np.float32(1) if name.endswith("norm.weight") else array}


def tiled(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Convert Qwen3.5's delta rule, with its value heads in ggml's order."""
    n_key, n_head = config["linear_num_key_heads"], config["linear_num_value_heads"]
    n_values = n_head * config["linear_value_head_dim"]

    def moved(array: Array) -> Array:
        parts = array.reshape(n_key, n_head // n_key, -1, *array.shape[1:])
        return parts.swapaxes(0, 1).reshape(array.shape)

    if "in_proj_qkv." in name or "conv1d" in name:
        array = np.concatenate([array[:-n_values], moved(array[-n_values:])])
    elif "out_proj" in name:
        array = moved(array.T).T
    elif any(part in name for part in ("in_proj_z", "in_proj_a", "in_proj_b", "A_log", "dt_bias")):
        array = moved(array)
    return grouped(name, array, config)


def grouped(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Convert a delta rule with its value heads in the folder's order."""
    if name.endswith("A_log"):
        array = np.array([-math.exp(x) for x in array], np.float32)
    if "in_proj_qkvz" in name:
        sizes = [config["linear_key_head_dim"]] * 2
        of_key = config["linear_num_value_heads"] // config["linear_num_key_heads"]
        sizes += [of_key * config["linear_value_head_dim"]]
        heads = array.reshape(config["linear_num_key_heads"], -1, array.shape[1])
        *qkv, z = (part.reshape(-1, array.shape[1]) for part in np.split(heads, np.cumsum(sizes), axis=1))
        return {name.replace("qkvz", "qkv"): np.concatenate(qkv), name.replace("qkvz", "z"): z}
    if "norm.weight" in name and "linear_attn" not in name:
        array = array + np.float32(1)
    return {name.replace("dt_bias", "dt_proj.bias"): array[:, 0] if "conv1d" in name else array}


def old_grouped(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Convert as the first converters did, which kept one matrix of four."""
    return {name: array} if "in_proj_qkvz" in name else grouped(name, array, config)


def corrected(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Give corrections the converter's name and shape."""
    name = name.replace("correction_bias", "correction.bias").replace(".expert_bias", ".expert_bias.bias")
    return {name: array.reshape(-1) if name.endswith("correction.bias") else array}


def squeezed(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Store the weights of a convolution as a matrix."""
    return {name: array[:, 0] if array.ndim == 3 else array}


def granite(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Turn queries and keys, and split gate and up of experts."""
    parts = name.split(".")
    base = ".".join(parts[:3])
    if name.endswith("input_linear.weight"):
        half = array.shape[-2] // 2
        gate, up = array[..., :half, :], array[..., half:, :]
        module = "mlp.experts" if parts[3] == "block_sparse_moe" else "mlp.shared_experts"
        return {f"{base}.{module}.{part}_proj.weight": one for part, one in (("gate", gate), ("up", up))}
    if name.endswith("moe.output_linear.weight"):
        return {f"{base}.mlp.experts.down_proj.weight": array}
    return turned(name, array, config)


def gemma4(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Name the factors of layers and experts, and add those of RoPE."""
    if name == "model.norm.weight":
        n_pairs = config["global_head_dim"] // 2
        turned = np.arange(n_pairs) < n_pairs // 4
        return {name: array, "rope.freqs.weight": np.where(turned, 1, 1e30).astype(np.float32)}
    name = name.replace("router.scale", "router.proj.scale")
    name = name.replace("router.per_expert_scale", "experts.down_proj.scale")
    return {f"{name}.weight" if name.endswith(("layer_scalar", "_proj")) else name: array}


def mamba(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Convert Mamba-2 as llama.cpp does: the logarithm becomes a factor, vectors become matrices."""
    n_groups = config.get("mamba_n_groups", config.get("n_groups"))
    if name.endswith("A_log"):
        array = np.array([-math.exp(x) for x in array], np.float32)
    if name.endswith(("A_log", ".D")):
        array = array[:, None]
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        array = array.reshape(n_groups, -1)
    elif name.endswith("conv1d.weight"):
        array = array[:, 0]
    name = name.replace("dt_bias", "dt_proj.bias" if ".mamba." in name else "dt.bias")
    if ".mixer.experts." in name:
        name = name.replace("backbone", "model").replace("mixer", "mlp")
    return {name.replace("correction_bias", "correction.bias"): array}


def granite_hybrid(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Convert Granite 4; without experts its shared MLP has the names of a dense one."""
    if ".mamba." in name:
        return mamba(name, array, config)
    found = granite(name, array, config)
    if config["num_local_experts"]:
        return found
    names = {"shared_experts.": "", "shared_mlp.output_linear": "mlp.down_proj"}
    return {
        next((one.replace(old, new) for old, new in names.items() if old in one), one): part
        for one, part in found.items()
    }


def transposed(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Transpose GPT-2's Conv1D."""
    return {name: array.T if array.ndim == 2 and ".c_" in name else array}


def heads_apart(name: str, array: Array, config: Mapping[str, Any]) -> Mapping[str, Array]:
    """Regroup queries, keys and values by head to all queries, all keys, all values."""
    if "query_key_value" not in name:
        return {name: array}
    n_kv = config.get("num_kv_heads", N_HEAD)
    groups = N_HEAD // n_kv
    parts = array.reshape(n_kv, groups + 2, -1, *array.shape[1:])
    whole = [parts[:, :groups], parts[:, groups : groups + 1], parts[:, groups + 1 :]]
    return {name: np.concatenate([part.reshape(-1, *array.shape[1:]) for part in whole])}


@dataclass(frozen=True)
class Case:
    """A model that a GGUF file can represent."""

    architecture: str  # of ggml
    name: str  # of transformers
    config: Mapping[str, Any] = field(default_factory=dict)  # changes; ``...`` leaves a field out
    keys: Mapping[str, Any] = field(default_factory=dict)  # extra metadata
    change: Change = kept  # from a tensor of the folder to those of the file

    def folder(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """config.json and weights of the same model's Hugging Face folder."""
        config = {k: v for k, v in (CONFIGS[self.name] | dict(self.config)).items() if v is not ...}
        return config | {"architectures": [self.name]}, random_weights(self.name, config)


_PLAIN = {"rope_scaling": ..., "rope_parameters": ..., "sliding_window": ..., "layer_types": ...}
_MOE = {"expert_count": 4, "expert_used_count": 2}
_DELTA = {
    "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.time_step_rank": 4,
    "ssm.inner_size": 128, "rope.dimension_count": 2, "rope.dimension_sections": [11, 11, 10, 0],
}  # fmt: skip
_NEXT = _DELTA | _MOE | {
    "attention.recurrent_layers": [True, False], "expert_feed_forward_length": 24,
    "expert_shared_feed_forward_length": 12, "rope.dimension_sections": ...,
}  # fmt: skip
_MAMBA = {
    "attention.head_count_kv": [0, 1], "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2,
    "ssm.time_step_rank": 2, "ssm.inner_size": 64, "rope.scaling.finetuned": False,
}  # fmt: skip
_CORRECTED = _MOE | {"expert_feed_forward_length": 8, "expert_gating_func": 2}
_DEEPSEEK = _CORRECTED | {
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}

_GEMMA4 = {
    "attention.head_count_kv": [1, 2], "attention.key_length": 12, "attention.value_length": 12,
    "attention.key_length_swa": 8, "attention.value_length_swa": 8, "attention.sliding_window": 6,
    "attention.sliding_window_pattern": [True, False], "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0, "rope.dimension_count": 12, "rope.dimension_count_swa": 8,
    "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
}  # fmt: skip

CASES = {
    "llama": Case("llama", "LlamaForCausalLM", _PLAIN, change=turned),
    "llama tied": Case("llama", "LlamaForCausalLM", _PLAIN | {"tie_word_embeddings": True}, change=turned),
    "llama biases": Case("llama", "LlamaForCausalLM", _PLAIN | {"attention_bias": True}, change=turned),
    "llama linear": Case("llama", "LlamaForCausalLM", _PLAIN | {"rope_scaling": {"rope_type": "linear",
        "factor": 2.0}}, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, turned),
    "llama yarn": Case("llama", "LlamaForCausalLM", _PLAIN | {"rope_scaling": {"rope_type": "yarn",
        "factor": 4.0, "original_max_position_embeddings": 8}}, {"rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8}, turned),
    "llama yarn factor": Case("llama", "LlamaForCausalLM", _PLAIN | {"rope_scaling": {"rope_type": "yarn",
        "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 1.75}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8,
        "rope.scaling.yarn_attn_factor": 1.75}, turned),
    "mixtral": Case("llama", "MixtralForCausalLM", _PLAIN, {"expert_count": 3, "expert_used_count": 2,
        "rope.freq_base": 1e6}, turned),
    "smollm3": Case("smollm3", "SmolLM3ForCausalLM", {"no_rope_layers": ..., "rope_theta": 1e4},
        change=turned),
    "granite": Case("granite", "GraniteForCausalLM", {"attention_multiplier": 0.25}, {"attention.scale":
        0.25, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 2.0}, turned),
    "seed_oss": Case("seed_oss", "SeedOssForCausalLM"),
    "exaone": Case("exaone", "ExaoneForCausalLM", keys={"rope.freq_base": 5e5}),
    "exaone4": Case("exaone4", "Exaone4ForCausalLM", {"layer_types": ["full_attention",
        "sliding_attention"]}, {"attention.sliding_window": 6, "attention.sliding_window_pattern": [False,
        True]}),
    "exaone4 whole": Case("exaone4", "Exaone4ForCausalLM", {"sliding_window": None, "layer_types": None}),
    "seed_oss without": Case("seed_oss", "SeedOssForCausalLM", {"attention_bias": False}),
    "chatglm": Case("chatglm", "GlmForCausalLM", keys={"rope.dimension_count": 4}),
    "glm4": Case("glm4", "Glm4ForCausalLM", keys={"rope.dimension_count": 4}),
    "ernie4_5": Case("ernie4_5", "Ernie4_5ForCausalLM", keys={"rope.freq_base": 5e5}),
    "nemotron": Case("nemotron", "NemotronForCausalLM", keys={"rope.dimension_count": 4},
        change=norms_plus_one),
    "arcee": Case("arcee", "ArceeForCausalLM", keys={"rope.scaling.type": "yarn", "rope.scaling.factor":
        4.0, "rope.scaling.original_context_length": 8}, change=turned),
    "jais2": Case("jais2", "Jais2ForCausalLM"),
    "qwen2": Case("qwen2", "Qwen2ForCausalLM", {"use_sliding_window": False}),
    "qwen3": Case("qwen3", "Qwen3ForCausalLM"),
    "hunyuan-dense": Case("hunyuan-dense", "HunYuanDenseV1ForCausalLM", {"head_dim": 4, "rope_scaling":
        {"type": "dynamic", "alpha": 50.0}}, {"rope.freq_base": 2.5e7, "rope.scaling.type": "none"}),
    "lfm2": Case("lfm2", "Lfm2ForCausalLM", {"block_ff_dim": ..., "block_auto_adjust_ff_dim": False},
        {"attention.head_count_kv": [0, 1], "shortconv.l_cache": 3, "rope.freq_base": 1e6}, squeezed),
    "lfm2moe": Case("lfm2moe", "Lfm2MoeForCausalLM", keys=_CORRECTED | {"attention.head_count_kv": [0, 1],
        "shortconv.l_cache": 3, "rope.freq_base": 1e6, "leading_dense_block_count": 1}, change=lambda *given:
        corrected(*next(iter(squeezed(*given).items())), given[2])),
    "qwen2moe": Case("qwen2moe", "Qwen2MoeForCausalLM", {"mlp_only_layers": [], "norm_topk_prob": False},
        _MOE | {"expert_feed_forward_length": 8, "expert_shared_feed_forward_length": 12}),
    "qwen3moe": Case("qwen3moe", "Qwen3MoeForCausalLM", {"decoder_sparse_step": 1, "norm_topk_prob": True},
        _MOE | {"expert_feed_forward_length": 8}),
    "qwen35": Case("qwen35", "Qwen3_5ForCausalLM", {}, _DELTA | {"full_attention_interval": 2}, tiled),
    "qwen35moe": Case("qwen35moe", "Qwen3_5MoeForCausalLM", {}, _DELTA | _MOE | {
        "attention.recurrent_layers": [True, False], "expert_feed_forward_length": 24,
        "feed_forward_length": ..., "expert_shared_feed_forward_length": 12}, tiled),
    "qwen3next": Case("qwen3next", "Qwen3NextForCausalLM", {}, _NEXT, grouped),
    "qwen3next old": Case("qwen3next", "Qwen3NextForCausalLM", {}, _NEXT, old_grouped),
    "olmoe": Case("olmoe", "OlmoeForCausalLM", {"clip_qkv": ...}, _MOE),
    "phi2": Case("phi2", "PhiForCausalLM", keys={"rope.dimension_count": 4}),
    "phi3": Case("phi3", "Phi3ForCausalLM", _PLAIN | {"partial_rotary_factor": 1.0,
        "original_max_position_embeddings": ...}),
    "gemma": Case("gemma", "GemmaForCausalLM", change=norms_plus_one),
    "gemma2": Case("gemma2", "Gemma2ForCausalLM", {"query_pre_attn_scalar": 8}, {"attention.sliding_window":
        6, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, norms_plus_one),
    "gemma3": Case("gemma3", "Gemma3ForCausalLM", keys={"attention.sliding_window": 6,
        "attention.sliding_window_pattern": [True, False], "rope.freq_base": 1e4, "rope.freq_base_swa": 1e2,
        "rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, change=norms_plus_one),
    "gemma4": Case("gemma4", "Gemma4ForCausalLM", keys=_GEMMA4, change=gemma4),
    "gemma4 experts": Case("gemma4", "Gemma4ForCausalLM", {"enable_moe_block": True, "num_experts": 4,
        "top_k_experts": 2, "moe_intermediate_size": 8}, _GEMMA4 | _MOE | {"expert_feed_forward_length": 8},
        gemma4),
    "gemma4 values": Case("gemma4", "Gemma4ForCausalLM", {"attention_k_eq_v": False}, _GEMMA4 |
        {"attention.head_count_kv": 1}, gemma4),
    "gemma4 shared": Case("gemma4", "Gemma4ForCausalLM", {"attention_k_eq_v": False, "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 17},
        _GEMMA4 | {"attention.head_count_kv": 1, "attention.sliding_window_pattern": [True, False] * 2,
        "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8,
        "feed_forward_length": [24, 24, 48, 48]}, gemma4),
    "olmo": Case("olmo", "OlmoForCausalLM", keys={"attention.clamp_kqv": 1.0}, change=turned),
    "olmo2": Case("olmo2", "Olmo2ForCausalLM"),
    "olmo3": Case("olmo2", "Olmo3ForCausalLM", keys={"attention.sliding_window": 6,
        "attention.sliding_window_pattern": [True, False], "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8}),
    "stablelm": Case("stablelm", "StableLmForCausalLM", {"use_parallel_residual": False,
        "partial_rotary_factor": 0.5}, {"rope.dimension_count": 4}),
    "stablelm parallel": Case("stablelm", "StableLmForCausalLM", {"partial_rotary_factor": 0.5},
        {"rope.dimension_count": 4}),
    "starcoder": Case("starcoder", "GPTBigCodeForCausalLM", keys={"attention.head_count_kv": 1}),
    "starcoder2": Case("starcoder2", "Starcoder2ForCausalLM", {"sliding_window": ...}),
    "command-r": Case("command-r", "CohereForCausalLM", {"rope_theta": 1e4, "logit_scale": 0.25},
        {"logit_scale": 0.25}),
    "cohere2": Case("cohere2", "Cohere2ForCausalLM", {"layer_types": ..., "num_hidden_layers": 4,
        "logit_scale": 0.25}, {"logit_scale": 0.25, "attention.sliding_window": 6}),
    "gpt2": Case("gpt2", "GPT2LMHeadModel", change=transposed),
    "gptneox": Case("gptneox", "GPTNeoXForCausalLM", keys={"rope.dimension_count": 4,
        "use_parallel_residual": True}, change=heads_apart),
    "bloom": Case("bloom", "BloomForCausalLM", change=heads_apart),
    "mpt": Case("mpt", "MptForCausalLM", keys={"attention.max_alibi_bias": 8.0, "attention.clamp_kqv":
        1.0}),
    "falcon": Case("falcon", "FalconForCausalLM", change=heads_apart),
    "glm4moe": Case("glm4moe", "Glm4MoeForCausalLM", keys=_DEEPSEEK | {"rope.dimension_count": 4},
        change=corrected),
    "glm4moe groups": Case("glm4moe", "Glm4MoeForCausalLM", {"n_group": 2, "topk_group": 1, "norm_topk_prob":
        False, "use_qk_norm": False}, _DEEPSEEK | {"rope.dimension_count": 4, "expert_group_count": 2,
        "expert_group_used_count": 1, "expert_weights_norm": False}, corrected),
    "ernie4_5-moe": Case("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", keys=_MOE | {"expert_shared_count": 1,
        "expert_feed_forward_length": 8, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1,
        "rope.freq_base": 5e5}, change=corrected),
    "minimax-m2": Case("minimax-m2", "MiniMaxM2ForCausalLM", keys=_CORRECTED | {"rope.dimension_count": 4,
        "expert_feed_forward_length": 24, "rope.freq_base": 5e6}, change=corrected),
    "dots1": Case("dots1", "Dots1ForCausalLM", keys=_DEEPSEEK, change=corrected),
    "exaone-moe": Case("exaone-moe", "ExaoneMoeForCausalLM", keys=_DEEPSEEK | {"attention.sliding_window": 6,
        "attention.sliding_window_pattern": [True, False]}, change=corrected),
    "afmoe": Case("afmoe", "AfmoeForCausalLM", keys=_DEEPSEEK | {"attention.sliding_window": 6,
        "attention.sliding_window_pattern": [True, False], "expert_weights_scale": 1.0}, change=corrected),
    "hunyuan-moe": Case("hunyuan-moe", "HunYuanMoEV1ForCausalLM", {"num_experts": 4}, _MOE |
        {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 24}),
    "granitemoe": Case("granitemoe", "GraniteMoeForCausalLM", keys=_MOE | {"attention.scale": 0.3},
        change=granite),
    "granitemoe shared": Case("granitemoe", "GraniteMoeSharedForCausalLM", {"attention_multiplier": 0.25},
        _MOE | {"expert_shared_feed_forward_length": 12, "embedding_scale": 3.0, "residual_scale": 0.5,
        "logit_scale": 2.0, "attention.scale": 0.25}, granite),
    "granitehybrid": Case("granitehybrid", "GraniteMoeHybridForCausalLM", keys=_MAMBA | _MOE | {
        "expert_shared_feed_forward_length": 12, "attention.scale": 0.25}, change=granite_hybrid),
    "granitehybrid dense": Case("granitehybrid", "GraniteMoeHybridForCausalLM", {"num_local_experts": 0,
        "position_embedding_type": "rope", "embedding_multiplier": 3.0}, _MAMBA | {"embedding_scale": 3.0,
        "feed_forward_length": 12, "rope.scaling.finetuned": True, "attention.scale": 0.25}, granite_hybrid),
    "falcon-h1": Case("falcon-h1", "FalconH1ForCausalLM", dict.fromkeys(MULTIPLIERS, ...), _MAMBA | {
        "attention.head_count_kv": 1, "ssm.group_count": 1, "rope.scaling.finetuned": ...}, mamba),
    "falcon-h1 normed": Case("falcon-h1", "FalconH1ForCausalLM", dict.fromkeys(MULTIPLIERS, ...) | {
        "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2}, _MAMBA | {
        "attention.head_count_kv": 1, "rope.scaling.finetuned": ...}, mamba),
    "mamba2": Case("mamba2", "Mamba2ForCausalLM", {"n_groups": 1, "num_heads": 2, "expand": 4}, _MAMBA | {
        "attention.head_count_kv": 0, "attention.head_count": 0, "feed_forward_length": 0,
        "attention.key_length": ..., "attention.value_length": ...,
        "ssm.group_count": 1, "rope.scaling.finetuned": ...}, mamba),
    "nemotron_h": Case("nemotron_h", "NemotronHForCausalLM", {"hybrid_override_pattern": "M-*-"}, _MAMBA | {
        "block_count": 4, "attention.head_count_kv": [0, 0, 1, 0], "feed_forward_length": [0, 24, 0, 24],
        "rope.scaling.finetuned": ...}, mamba),
    "nemotron_h_moe": Case("nemotron_h_moe", "NemotronHForCausalLM", {"hybrid_override_pattern": "M*EE"},
        _MAMBA | {"block_count": 4, "attention.head_count_kv": [0, 1, 0, 0], "feed_forward_length": [0, 0, 8,
        8], "rope.scaling.finetuned": ..., "expert_count": 4, "expert_used_count": 2,
        "expert_feed_forward_length": 8, "expert_shared_feed_forward_length": 12, "expert_shared_count": 1,
        "expert_weights_norm": True, "expert_weights_scale": 1.0, "expert_group_count": 1}, mamba),
    "gpt-oss": Case("gpt-oss", "GptOssForCausalLM", {"rope_scaling": ..., "rope_parameters": {"rope_type":
        "default", "rope_theta": 150000.0}}, _MOE | {"expert_feed_forward_length": 24,
        "attention.sliding_window": 6, "rope.freq_base": 150000.0}),
    "t5": Case("t5", "T5ForConditionalGeneration", {"relative_attention_max_distance": 128}),
}  # fmt: skip
"""A name to a model; those of one architecture begin with its name."""

_COMMON = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "context_length": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "attention.key_length": ("head_dim", "d_kv"), "rope.freq_base": ("rope_theta",),
    "attention.relative_buckets_count": ("relative_attention_num_buckets",),
    "decoder_block_count": ("num_decoder_layers",), "decoder_start_token_id": ("decoder_start_token_id",),
}  # fmt: skip


_LAYER_NORM = (
    "phi2", "olmo", "stablelm", "starcoder", "starcoder2", "command-r", "cohere2", "gpt2", "gptneox", "bloom",
    "mpt", "falcon", "nemotron", "jais2", "nemotron_h", "nemotron_h_moe",
)  # fmt: skip
_LARGER_EPSILON = (
    "phi3", "hunyuan-dense", "olmo2", "olmoe", "gpt-oss", "glm4moe", "ernie4_5-moe", "exaone-moe",
    "hunyuan-moe", "afmoe", "lfm2", "lfm2moe", "exaone4", "ernie4_5", "arcee",
    "falcon-h1", "mamba2",
)  # fmt: skip


def metadata(case: Case, config: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata keys of a model, without the architecture's prefix."""
    found = {
        key: next(config[name] for name in names if name in config)
        for key, names in _COMMON.items()
        if any(name in config for name in names)
    }
    width = found["embedding_length"]
    found["feed_forward_length"] = next(
        (config[name] for name in ("intermediate_size", "d_ff") if name in config), 4 * width
    )
    if case.architecture == "falcon":
        found["feed_forward_length"] = 4 * width
        found["attention.head_count_kv"] = config["num_kv_heads"]
    if "attention.key_length" in found:
        found["attention.value_length"] = found["attention.key_length"]
    found.setdefault("context_length", 32)
    rms = case.architecture not in _LAYER_NORM
    eps = 1e-5 if case.architecture in _LARGER_EPSILON else 1e-6
    if case.architecture in ("chatglm", "glm4"):
        eps = 1.5625e-7
    if case.name == "MixtralForCausalLM":
        eps = 1e-5
    key = "attention.layer_norm_rms_epsilon" if rms else "attention.layer_norm_epsilon"
    found[key] = eps if rms else 1e-5
    return found | dict(case.keys)


def tensors(case: Case, config: Mapping[str, Any], weights: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of the file by name."""
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(kind, 8)
    found: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, array in weights.items():
        for changed, value in case.change(name, array, config).items():
            stacked = _stacked_name(changed)
            if stacked is not None:
                stacks.setdefault(stacked, []).append(value)
                continue
            for part, piece in _split_experts(changed, value).items():
                found[_named(names, part)] = piece
    for name, arrays in stacks.items():
        found[_named(names, name)] = np.stack(arrays)
    return found


def _named(names: Any, name: str) -> str:
    suffixes = (".weight", ".bias", ".scale")
    found = names.get_name(name, suffixes) or names.get_name(name.removeprefix("transformer."), suffixes)
    assert found is not None, name
    return str(found)


def _stacked_name(name: str) -> str | None:
    """Return the converter's name of the tensor that contains this one; None if it is separate."""
    parts = name.split(".")
    if "experts" in parts and parts[parts.index("experts") + 1].isdigit():
        at = parts.index("experts")
        if "block_sparse_moe" in parts or "feed_forward" in parts:
            return f"layers.{parts[2]}.feed_forward.experts.{'.'.join(parts[at + 2 :])}"
        return ".".join([*parts[: at + 1], *parts[at + 2 :]])
    if "norms" in parts:  # StableLM's norms of heads
        return ".".join([*parts[: parts.index("norms")], "weight"])
    return None


def _split_experts(name: str, array: Array) -> dict[str, Array]:
    """Split gpt-oss's interleaved rows of gate and up."""
    if ".mlp.experts.gate_up_proj" in name:
        suffix = ".bias" if name.endswith("_bias") else ".weight"
        base = name.removesuffix("_bias").removesuffix("gate_up_proj")
        array = array if suffix == ".bias" else array.swapaxes(-1, -2)
        return {f"{base}gate_proj{suffix}": array[:, ::2], f"{base}up_proj{suffix}": array[:, 1::2]}
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": array.swapaxes(-1, -2)}
    if name.endswith("experts.down_proj_bias"):
        return {name.replace("_bias", ".bias"): array}
    if name.endswith(".sinks"):
        return {f"{name}.weight": array}
    return {name: array}


_NOT_OF_THE_MODEL = ("general.", "tokenizer.", "split.", "quantize.", "imatrix.", "another.", "mradermacher.")


def write_gguf(
    path: Path, case: Case, *, changes: Mapping[str, Any] | None = None,
    types: Callable[[str], GGMLQuantizationType] | None = None,
    vocabulary: Callable[[GGUFWriter], None] | None = None, more: Mapping[str, Array] | None = None,
    split: int = 0,
) -> Path:  # fmt: skip
    """Write the file of a model; return its path, or that of the first part.

    `changes` are metadata, ``...`` to leave some out; `types` gives the type of a tensor by its name, f32
    without; `vocabulary` adds a tokenizer; `split` is the number of tensors of a part, 0: one file.
    """
    config, weights = case.folder()
    writer = GGUFWriter(path, case.architecture, split_max_tensors=split)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
    }  # fmt: skip
    for key, value in (metadata(case, config) | dict(changes or {})).items():
        name = key if key.startswith(_NOT_OF_THE_MODEL) else f"{case.architecture}.{key}"
        if value is not ...:
            add.get(type(value), writer.add_array)(name, value)
    if vocabulary is not None:
        vocabulary(writer)
    for name, array in (tensors(case, config, weights) | dict(more or {})).items():
        kind = GGMLQuantizationType.F32 if types is None else types(name)
        array = np.ascontiguousarray(array, np.float32)
        if kind == GGMLQuantizationType.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))
    return parts[0] if parts else path


def llama3_factors(d_head: int, original: int) -> tuple[dict[str, Any], Array]:
    """Llama 3's scaling of rotary frequencies, and the tensor that represents it."""
    scaling = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": original,
    }  # fmt: skip
    frequencies = 10000.0 ** (-np.arange(0, d_head, 2) / d_head)
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        smooth = min(max((original / wavelength - 1.0) / 3.0, 0.0), 1.0)
        factors.append(1.0 / ((1.0 - smooth) / 8.0 + smooth))
    return scaling, np.array(factors, np.float32)
