"""Factors of Falcon-H1 as part of the weights, for files that have no place for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

import numpy as np

from specdec.models.checkpoints import Checkpoint
from specdec.models.number_formats import widened

_WITHOUT: Final = {
    "embedding_scale": 1.0, "logit_scale": 1.0, "attn_out_scale": 1.0, "mixer_out_scale": 1.0,
    "mlp_gate_scale": 1.0, "mlp_down_scale": 1.0, "mixer_scales": [], "score_scales": [],
}  # fmt: skip


def folded(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint of the same model whose factors multiply the weights, rounded to f32."""
    config = checkpoint.config
    factors = {name: factor for name, factor in _factors(config).items() if not np.all(factor == 1.0)}

    def factor_of(canonical: str) -> Any:
        return factors.get(canonical.split(".", 2)[2] if canonical.startswith("layers.") else canonical)

    def tensors(as_blocks: Container[str], unread: bool) -> Iterator[Any]:
        for name, array, number_format in checkpoint.tensors(as_blocks):
            if (factor := factor_of(name)) is not None:
                rows = np.asarray(factor, np.float32)
                array = widened(array, number_format) * (rows[:, None] if rows.ndim else rows)
                number_format = "f32"
            yield name, array, number_format

    stored = checkpoint.stored
    if stored is not None:
        blocks = {name: ggml for name, ggml in stored.blocks.items() if factor_of(name) is None}
        stored = dataclasses.replace(stored, blocks=blocks)
    plain = {**config, **{name: value for name, value in _WITHOUT.items() if name in config}}
    if config["tied"]:  # one matrix cannot have both factors
        plain |= {name: config[name] for name in ("embedding_scale", "logit_scale") if name in config}
    return dataclasses.replace(checkpoint, config=plain, stored=stored, _tensors=tensors)


def _factors(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the factors of tensors, or of each of their rows, by names without the layer."""
    attn_out, gate, down = (config.get(f"{name}_scale", 1.0) for name in ("attn_out", "mlp_gate", "mlp_down"))
    scores = config.get("score_scales") or [config["d_head"] ** -0.5]
    query, key, value, of_gate, step = config.get("mixer_scales") or [1.0] * 5
    keys, values = (config[f"n_mixer_{name}_head"] * config[f"d_mixer_{name}"] for name in ("key", "value"))
    found = {
        "attn_k": scores[0] * math.sqrt(config["d_head"]), "attn_out": attn_out, "mlp_gate": gate,
        "mlp_down": down, "mixer_out": config.get("mixer_out_scale", 1.0),
    }  # fmt: skip
    rows: dict[str, Any] = {f"{name}.{part}": found[name] for name in found for part in ("weight", "bias")}
    rows |= {
        "mixer_in.weight": np.repeat([query, key, value], [keys, keys, values]),
        "mixer_gate.weight": of_gate,
        "mixer_decay.weight": step,
    }
    if not config["tied"]:
        rows |= {
            "token_embedding": config.get("embedding_scale", 1.0),
            "head": config.get("logit_scale", 1.0),
        }
    return rows
