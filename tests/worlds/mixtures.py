"""Folders of small mixtures of experts, written with NumPy only: separate, stacked, and in MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worlds.folders import llama_config, llama_tensors

Arrays = dict[str, NDArray[Any]]

N_EXPERTS, D_EXPERT = 5, 24


def qwen3_moe_config(**changes: Any) -> dict[str, Any]:
    """A config.json for Qwen3MoeForCausalLM."""
    own = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 8,
        "num_experts": N_EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": D_EXPERT,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "mlp_bias": ...,
    }  # fmt: skip
    return llama_config(**{**own, **changes})


def _llama_with(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], seed: int) -> Arrays:
    """A Llama whose layers have tensors of these shapes instead of the feed-forward."""
    rng = np.random.default_rng(seed + 1)
    tensors: Arrays = {
        name: array for name, array in llama_tensors(config, seed).items() if ".mlp." not in name
    }
    for i in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            tensors[f"model.layers.{i}.{name}"] = rng.normal(0.0, 0.4, shape).astype(np.float32)
    return tensors


def qwen3_moe_tensors(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Random weights by the names of published checkpoints; every layer has experts."""
    d, width, n = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{role}_norm.weight": (config["head_dim"],) for role in "qk"
    }
    shapes["mlp.gate.weight"] = (n, d)
    for e in range(n):
        for part, shape in (("gate", (width, d)), ("up", (width, d)), ("down", (d, width))):
            shapes[f"mlp.experts.{e}.{part}_proj.weight"] = shape
    return _llama_with(config, shapes, seed)


def stacked(tensors: Arrays, n_layer: int, n_experts: int) -> Arrays:
    """Rename to transformers 5: one tensor for the experts of a layer, gate above up."""
    found = {name: array for name, array in tensors.items() if ".experts." not in name}
    for i in range(n_layer):
        ours = f"model.layers.{i}.mlp.experts"
        gate, up, down = (
            np.stack([tensors[f"{ours}.{e}.{part}_proj.weight"] for e in range(n_experts)])
            for part in ("gate", "up", "down")
        )
        found |= {f"{ours}.gate_up_proj": np.concatenate([gate, up], axis=1), f"{ours}.down_proj": down}
    return found


def gpt_oss_config(**changes: Any) -> dict[str, Any]:
    """A config.json for GptOssForCausalLM."""
    own = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
        "intermediate_size": 32, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": 8, "swiglu_limit": 7.0, "attention_bias": True, "mlp_bias": ...,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False,
        },
    }  # fmt: skip
    return llama_config(**{**own, **changes})


def gpt_oss_tensors(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Random weights; the experts' matrices in MXFP4, as blocks and scales of bytes."""
    rng = np.random.default_rng(seed)
    d, width, n = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    shapes = {
        "self_attn.sinks": (config["num_attention_heads"],), "mlp.router.weight": (n, d),
        "mlp.router.bias": (n,), "mlp.experts.gate_up_proj_bias": (n, 2 * width),
        "mlp.experts.down_proj_bias": (n, d),
    }  # fmt: skip
    tensors = _llama_with(config, shapes, seed)
    for i in range(config["num_hidden_layers"]):
        for part, n_out, n_in in (("gate_up_proj", 2 * width, d), ("down_proj", d, width)):
            name, rows = f"model.layers.{i}.mlp.experts.{part}", (n, n_out, n_in // 32)
            tensors[f"{name}_blocks"] = rng.integers(0, 256, (*rows, 16), dtype=np.uint8)
            tensors[f"{name}_scales"] = rng.integers(122, 126, rows, dtype=np.uint8)
    return tensors


def mxfp4_values(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Dequantize blocks: the value of an E2M1 code times 2^(scale - 127)."""
    found = np.empty((*scales.shape, 32), np.float32)
    for at in np.ndindex(*scales.shape):
        for k in range(32):
            code = int(blocks[at][k // 2]) >> (4 * (k % 2)) & 15
            exponent, mantissa = code >> 1 & 3, code & 1
            size = mantissa * 0.5 if exponent == 0 else (1 + mantissa * 0.5) * 2.0 ** (exponent - 1)
            found[(*at, k)] = (-size if code & 8 else size) * 2.0 ** (int(scales[at]) - 127)
    return found.reshape(*scales.shape[:-1], -1)


def unpacked(tensors: Arrays) -> Arrays:
    """Dequantize weights to transformers' layout [n_experts, columns, rows]."""
    found: Arrays = {}
    for name, array in tensors.items():
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            values = mxfp4_values(array, tensors[f"{base}_scales"])
            found[base] = np.ascontiguousarray(values.transpose(0, 2, 1))
        elif not name.endswith("_scales"):
            found[name] = array
    return found
