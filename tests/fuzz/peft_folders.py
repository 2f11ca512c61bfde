"""Random LoRA adapters in folders as PEFT writes them, over a random folder of every family."""

from __future__ import annotations

import functools
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from fuzz.running import Failure
from specdec import Model
from worlds.described import RANKS, Description
from worlds.draws import Draws
from worlds.families import CONFIGS, random_weights
from worlds.folders import safetensors_bytes, write_hf

_TURNED = ("GPT2LMHeadModel",)
"""Architectures whose modules are of transformers' Conv1D, which have their inputs first."""


def draw_peft(draws: Draws) -> Description:
    """A case: adapters in folders, over a random folder of an architecture."""
    architecture = draws.choice(
        [name for name, config in CONFIGS.items() if "decoder_start_token_id" not in config]
    )
    modules = list(module_shapes(architecture))
    adapters = []
    for _ in range(draws.one(1, 1, 2, 3)):
        chosen = draws.one(modules, draws.some(modules, 1), draws.some(modules, 1))
        fields: Description = {"r": draws.one(*RANKS), "lora_alpha": draws.one(1, 2, 8, 0.5, -3, 0, 16)}
        if draws.chance(0.3):
            fields["use_rslora"] = True
        if draws.chance(0.2):
            fields["use_dora"] = True
        for name, values in (("rank_pattern", RANKS), ("alpha_pattern", (1, 4, 0.25, -2))):
            if draws.chance(0.4):
                fields[name] = {
                    _draw_pattern(draws, modules): draws.one(*values) for _ in range(draws.randint(1, 3))
                }
        adapters.append({"fields": fields, "modules": chosen, "seed": draws.randint(0, 99)})
    return {
        "check": "peft", "architecture": architecture, "adapters": adapters,
        "dtype": draws.one("f32", "f32", "bf16", "int8", "int4"),
        "prompts": [draws.ids(draws.randint(1, 8), 17) for _ in range(draws.randint(1, 4))],
        "settings": {"temperature": 0.9, "verify": "coupled", "seed": draws.randrange(2**32)}
        if draws.chance(0.5)
        else {},
    }  # fmt: skip


def _draw_pattern(draws: Draws, modules: list[str]) -> str:
    """A module's whole name, its end, or a regular expression of it."""
    parts = draws.choice(modules).split(".")
    how = draws.one("whole", "end", "end", "expression", "other")
    if how == "whole":
        return ".".join(parts)
    if how == "end":
        return ".".join(parts[-draws.randint(1, len(parts)) :])
    if how == "expression":
        return re.sub(r"\b\d+\b", r"\\d+", re.escape(".".join(parts[-2:])).replace(r"\_", "_"))
    return parts[-1][:-1]  # a part of a name names no module


@functools.cache
def module_shapes(architecture: str) -> dict[str, tuple[int, int]]:
    """Modules of a folder that hold a matrix, and its shape in the file; no tables, no experts."""
    weights = random_weights(architecture, CONFIGS[architecture])
    return {
        name.removesuffix(".weight"): (array.shape[0], array.shape[1])
        for name, array in weights.items()
        if array.ndim == 2 and name.endswith(".weight") and re.search(r"\.\d+\.", name)
        and not re.search(r"experts?\.|gate\.weight$|router|block_sparse|norm", name)
    }  # fmt: skip


def _value(fields: Description, name: str, patterns: str, module: str) -> Any:
    """What a field is for a module, by the rule of PEFT's `get_pattern_key`."""
    for pattern, value in fields.get(patterns, {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return fields[name]


def check_peft(case: Description) -> str:
    """Adapters of folders, merged and apart, are the sum that PEFT computes; texts are exact.

    The sum is made here, in NumPy, and written as a folder of its own: its logits are compared. Then the
    texts of all adapters and of the base in one batch, drafted by the base, with those of each alone.
    """
    architecture = case["architecture"]
    config = CONFIGS[architecture] | {"architectures": [architecture]}
    weights = random_weights(architecture, CONFIGS[architecture])
    settings = case["settings"] | {"max_new_tokens": 8, "ignore_eos": True, "logits": True, "n_threads": 1}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        base = specdec.load(write_hf(folder / "base", config, weights), case["dtype"], n_threads=1)
        models = [base]
        for i, adapter in enumerate(case["adapters"]):
            tensors, summed = _adapted(architecture, adapter, weights)
            path = folder / f"adapter{i}"
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps(adapter["fields"] | {"peft_type": "LORA"}))
            (path / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors))
            wanted = specdec.load(write_hf(folder / f"summed{i}", config, summed), "f32", n_threads=1)
            merged = specdec.load(folder / "base", "f32", adapter=path, n_threads=1)
            _check_near(case, wanted, merged, "merged")
            if adapter["fields"].get("use_dora"):
                continue
            model = base.with_adapter(path, n_threads=1)
            if case["dtype"] == "f32":
                _check_near(case, wanted, model, "next to the weights")
            models.append(model)
        given = [models[i % len(models)] for i in range(len(case["prompts"]))]
        adapters = [None if model is base else model for model in given]
        found = specdec.generate(base, base, case["prompts"], adapter=adapters, gamma=3, **settings)
        for result, model in zip(found, given, strict=True):
            alone = specdec.generate(
                model, None, [result.prompt_ids], **settings | {"seed": [result.seed]}
            )[0]  # fmt: skip
            if alone.tokens != result.tokens or not np.array_equal(alone.logits, result.logits):
                raise Failure("a text with an adapter is not that of plain decoding")
    return "passed"


def _adapted(
    architecture: str, adapter: Description, weights: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tensors of an adapter's file, and the base's with the adapter."""
    rng, fields = np.random.default_rng(adapter["seed"]), adapter["fields"]
    tensors, summed = {}, dict(weights)
    for module in adapter["modules"]:
        stored = weights[f"{module}.weight"].astype(np.float64)
        matrix = stored.T if architecture in _TURNED else stored
        n_out, n_in = matrix.shape
        rank = _value(fields, "r", "rank_pattern", module)
        alpha = _value(fields, "lora_alpha", "alpha_pattern", module)
        down = rng.normal(0.0, n_in**-0.5, (rank, n_in)).astype("<f4")
        up = rng.normal(0.0, 0.3 / rank, (n_out, rank)).astype("<f4")
        name = f"base_model.model.{module}.lora_"
        tensors |= {f"{name}A.weight": down, f"{name}B.weight": up}
        scale = alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)
        found = matrix + scale * (up.astype(np.float64) @ down)
        if fields.get("use_dora"):
            lengths = tensors[f"{name}magnitude_vector"] = rng.normal(1.0, 0.3, n_out).astype("<f4")
            found *= (lengths / np.linalg.norm(found, axis=1))[:, np.newaxis]
        found = found.T if architecture in _TURNED else found
        summed[f"{module}.weight"] = np.ascontiguousarray(found, "<f4")
    return tensors, summed


def _check_near(case: Description, wanted: Model, found: Model, how: str) -> None:
    for ids in case["prompts"]:
        rows = wanted.logits(ids, n_threads=1)
        apart = np.abs(found.logits(ids, n_threads=1) - rows).max()
        if apart > 1e-4 * max(1.0, np.abs(rows).max()):
            raise Failure(f"logits of an adapter {how} are {apart:.2g} off PEFT's sum")
