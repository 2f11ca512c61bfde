"""Learnt drafts of random weights, for random targets and as sound files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuzz.draws import Draws
from specdec import Model, drafts
from specdec.drafts.learnt.folder import LearntWeights

__all__ = ["draw_heads", "make_heads", "random_heads", "random_look_ahead", "random_recurrent"]


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


def random_heads(
    target: Model, fields: dict[str, Any], tokens: Sequence[int] | None, seed: int
) -> LearntWeights:
    """Heads; fields: n_heads, n_blocks, see_guesses, shared_output."""
    rng = np.random.default_rng(seed)
    d = target.config.d_model
    n_outputs = target.config.n_vocab if tokens is None else len(tokens)
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(fields["n_heads"]):
        if fields["see_guesses"]:
            shapes[f"heads.{k}.input.weight"] = (d, (2 + k) * d)
        for b in range(fields["n_blocks"]):
            shapes |= {f"heads.{k}.blocks.{b}.weight": (d, d), f"heads.{k}.blocks.{b}.bias": (d,)}
        if not fields["shared_output"]:
            shapes[f"heads.{k}.output.weight"] = (n_outputs, d)
    tensors = {name: rng.normal(0.0, 0.3, size).astype(np.float32) for name, size in shapes.items()}
    taps = [target.config.n_layer + 1]
    return LearntWeights.of("heads", target, fields, tensors, taps=taps, tokens=tokens)


def draw_heads(draws: Draws, n_vocab: int) -> dict[str, Any]:
    """A description of heads without a tree."""
    shared = draws.chance(0.4)
    fields = {
        "n_heads": draws.randint(1, 5), "n_blocks": draws.randint(1 if shared else 0, 2),
        "see_guesses": draws.chance(0.4), "shared_output": shared,
    }  # fmt: skip
    found = sorted(set(draws.ids(draws.randint(1, n_vocab), n_vocab)))
    tokens = found if len(found) < n_vocab and draws.chance(0.4) else None
    dtype = draws.one(None, None, "bf16", "int8", "int4")
    return {"kind": "heads", "fields": fields, "tokens": tokens, "dtype": dtype, "seed": draws.randint(0, 99)}


def make_heads(description: dict[str, Any], target: Model, tree: Any) -> drafts.Heads:
    """The heads of a description, for a target."""
    d = description
    weights = random_heads(target, d["fields"], d["tokens"], d["seed"])
    return drafts.Heads(weights, dtype=d["dtype"], tree=tree)


def random_look_ahead(target: Model, n_tokens: int, seed: int) -> LearntWeights:
    """Look-ahead embeddings."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(0.0, 0.7, (n_tokens, target.config.d_model)).astype(np.float32)
    fields = {"n_tokens": n_tokens}
    return LearntWeights.of("look_ahead_embeddings", target, fields, {"embeddings": embeddings})
