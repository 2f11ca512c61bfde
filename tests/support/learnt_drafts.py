"""Small learnt drafts of random weights for any target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from specdec import _core
from specdec.drafts.learnt.folder import LearntWeights

Arrays = dict[str, NDArray[np.float32]]


def recurrent_tensors(n_vocab: int, n_outputs: int, shape: Sequence[int], seed: int = 0) -> Arrays:
    """The tensors of a recurrent draft; shape: d_embed, d_hidden, n_layers."""
    rng = np.random.default_rng(seed)
    d_embed, d_hidden, n_layers = shape

    def normal(*size: int) -> NDArray[np.float32]:
        return rng.normal(0.0, 0.5, size).astype(np.float32)

    tensors = {"embedding.weight": normal(n_vocab, d_embed)}
    for i in range(n_layers):
        tensors[f"cells.{i}.weight_ih"] = normal(3 * d_hidden, d_hidden if i else d_embed)
        tensors[f"cells.{i}.weight_hh"] = normal(3 * d_hidden, d_hidden)
        tensors[f"cells.{i}.bias_ih"] = normal(3 * d_hidden)
        tensors[f"cells.{i}.bias_hh"] = normal(3 * d_hidden)
    return tensors | {"output.weight": normal(n_outputs, d_hidden), "output.bias": normal(n_outputs)}


def recurrent_weights(
    target: specdec.Model,
    ids: Sequence[int],
    shape: Sequence[int] = (5, 9, 1),
    tokens: Sequence[int] | None = None,
    seed: int = 0,
) -> LearntWeights:
    """A recurrent draft for a target that guesses the frequent tokens of a text more often than others."""
    n_vocab = target.config["n_vocab"]
    tensors = recurrent_tensors(n_vocab, n_vocab if tokens is None else len(tokens), shape, seed)
    counts = np.bincount(ids, minlength=n_vocab).astype(np.float32) + 0.5
    frequencies = np.log(counts if tokens is None else counts[list(tokens)])
    tensors["output.bias"] += frequencies - frequencies.mean()
    fields = dict(zip(("d_embed", "d_hidden", "n_layers"), shape, strict=True))
    return LearntWeights.of("recurrent", target, fields, tensors, tokens=tokens)


def recurrent_logits(tensors: Arrays, ids: Sequence[int], n_layers: int) -> NDArray[np.float64]:
    """The outputs after each token, in float64, from the equations of a GRU as torch has them."""
    weights: dict[str, Any] = {name: array.astype(np.float64) for name, array in tensors.items()}

    def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1.0 / (1.0 + np.exp(-x))

    rows = weights["embedding.weight"][list(ids)]
    for i in range(n_layers):
        weight_ih, weight_hh, bias_ih, bias_hh = (
            weights[f"cells.{i}.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        state, states = np.zeros(weight_hh.shape[1]), []
        for row in rows:
            of_input = np.split(weight_ih @ row + bias_ih, 3)
            of_state = np.split(weight_hh @ state + bias_hh, 3)
            reset, update = (sigmoid(of_input[j] + of_state[j]) for j in (0, 1))
            new = np.tanh(of_input[2] + reset * of_state[2])
            state = (1.0 - update) * new + update * state
            states.append(state)
        rows = np.array(states)
    return rows @ weights["output.weight"].T + weights["output.bias"]


def recurrent_network(
    n_vocab: int, shape: Sequence[int], dtype: Any = "f32", tensors: Arrays | None = None, **options: Any
) -> _core.Recurrent:
    """A recurrent draft of the core; shape: d_embed, d_hidden, n_layers."""
    tensors = recurrent_tensors(n_vocab, n_vocab, shape) if tensors is None else tensors
    sizes = dict(zip(("d_embed", "d_hidden", "n_layers"), shape, strict=True))
    config = {"n_vocab": n_vocab, "n_draft_vocab": len(tensors["output.bias"]), **sizes}
    listed = [(name, array, "f32") for name, array in tensors.items()]
    return _core.Recurrent(config, listed, dtype=dtype, **options)


def look_ahead_weights(target: specdec.Model, n_tokens: int = 3, seed: int = 0) -> LearntWeights:
    """Look-ahead embeddings for a target, as large as what its layers begin with."""
    rng = np.random.default_rng(seed)
    d_model = target.config["d_model"]
    embeddings = rng.normal(0.0, 0.5, (n_tokens, d_model)).astype(np.float32)
    fields = {"n_tokens": n_tokens}
    return LearntWeights.of("look_ahead_embeddings", target, fields, {"embeddings": embeddings})
