"""Learnt drafts of random weights, for random targets and as sound files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec import Model
from specdec.drafts.learnt.folder import LearntWeights

__all__ = ["random_recurrent"]


def random_recurrent(
    target: Model, shape: Sequence[int], tokens: Sequence[int] | None, seed: int
) -> LearntWeights:
    """A recurrent draft; shape: d_embed, d_hidden, n_layers."""
    rng = np.random.default_rng(seed)
    d_embed, d_hidden, n_layers = shape
    n_vocab = target.config.n_vocab
    n_outputs = n_vocab if tokens is None else len(tokens)
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (n_vocab, d_embed)}
    for i in range(n_layers):
        shapes[f"cells.{i}.weight_ih"] = (3 * d_hidden, d_hidden if i else d_embed)
        shapes[f"cells.{i}.weight_hh"] = (3 * d_hidden, d_hidden)
        shapes[f"cells.{i}.bias_ih"] = shapes[f"cells.{i}.bias_hh"] = (3 * d_hidden,)
    shapes |= {"output.weight": (n_outputs, d_hidden), "output.bias": (n_outputs,)}
    tensors = {name: rng.normal(0.0, 1.0, size).astype(np.float32) for name, size in shapes.items()}
    fields = {"d_embed": d_embed, "d_hidden": d_hidden, "n_layers": n_layers}
    return LearntWeights.of("recurrent", target, fields, tensors, tokens=tokens)
