"""Folders of random LoRA adapters in PEFT's layout, written with NumPy only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worlds.folders import safetensors_bytes

LLAMA_MODULES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
"""Linear layers of a Llama layer."""


def adapter_config(**changes: Any) -> dict[str, Any]:
    """Make an adapter_config.json; a field given as ``...`` is left out."""
    config: dict[str, Any] = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "bias": "none",
        "fan_in_fan_out": False, "use_rslora": False, "use_dora": False, "init_lora_weights": True,
        "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None, "target_modules": [],
        "task_type": "CAUSAL_LM",
    }  # fmt: skip
    config.update(changes)
    return {name: value for name, value in config.items() if value is not ...}


def low_rank_tensors(
    shapes: Mapping[str, tuple[int, int]], ranks: Mapping[str, int], seed: int, size: float = 0.3
) -> dict[str, NDArray[np.float32]]:
    """A and B for modules of [outputs, inputs], by their names in files."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for module, (n_out, n_in) in shapes.items():
        rank = ranks.get(module, 4)
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = rng.normal(0, n_in**-0.5, (rank, n_in)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = rng.normal(0, size, (n_out, rank)).astype(np.float32)
    return tensors


def llama_shapes(
    config: Mapping[str, Any], modules: Sequence[str] = LLAMA_MODULES
) -> dict[str, tuple[int, int]]:
    """Matrix shapes of all modules in all layers of a Llama's config.json."""
    d, f = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * d // config["num_attention_heads"]
    of_layer = dict(
        zip(LLAMA_MODULES, [(d, d), (kv, d), (kv, d), (d, d), (f, d), (f, d), (d, f)], strict=True)
    )
    return {
        f"model.layers.{i}.{name}": of_layer[name]
        for i in range(config["num_hidden_layers"])
        for name in modules
    }


def write_adapter(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]
) -> Path:
    """Write an adapter folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def llama_adapter(
    folder: Path, config: Mapping[str, Any], seed: int, modules: Sequence[str] = LLAMA_MODULES,
    **settings: Any,
) -> Path:  # fmt: skip
    """An adapter for a Llama of this config.json; `settings` are fields of its own config."""
    own = adapter_config(**settings)
    shapes = llama_shapes(config, modules)
    ranks = dict.fromkeys(shapes, own["r"])
    for pattern, rank in own["rank_pattern"].items():
        ranks |= {module: rank for module in shapes if module.endswith(pattern)}
    return write_adapter(folder, own, low_rank_tensors(shapes, ranks, seed))
