"""A small target that drafts can learn in seconds, and trainings for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import specdec
from worlds.folders import llama_config, llama_tensors, write_hf

VOCABULARY = 24
PROMPTS = [[i % VOCABULARY, (7 * i) % VOCABULARY] for i in range(3, 27)]


def learnable_target(folder: Path, eos_token_id: int | None = 2) -> specdec.Model:
    """Write an f32 Hugging Face folder of a target that depends mostly on the last token."""
    ends: Any = {"bos_token_id": 1, "eos_token_id": eos_token_id}
    config = llama_config(vocab_size=VOCABULARY, num_hidden_layers=2, max_position_embeddings=64, **ends)
    tensors = llama_tensors(config, 11)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.3
        if name.endswith("norm.weight"):
            tensor[:] = 1.0
    tensors["model.embed_tokens.weight"] *= 5.0
    tensors["lm_head.weight"] *= 2.5
    return specdec.load(write_hf(folder / "learnable", config, tensors))


def train(target: Any, out: Path, kind: str = "small", **options: Any) -> Any:
    """Train a draft on a little text; options are those of `TrainingOptions` and `train_draft`."""
    from specdec.training import TrainingOptions, train_draft

    given: dict[str, Any] = {
        "prompts": PROMPTS, "steps": 48, "length": 24, "batch": 4, "passes": 3, "weights": "f32",
        "threads": 1, "shape": {"d_model": 32, "n_layers": 1} if kind == "small" else {}, **options,
    }  # fmt: skip
    own = {name: given.pop(name) for name in ("prompts", "dtype", "say", "progress") if name in given}
    return train_draft(target, kind, out, TrainingOptions(**given), **own)
