"""Softmax, soft caps, and activations of a decoder, in the type of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax(x: Array, sinks: Array | None = None) -> Array:
    """Softmax along the last axis; for x [n_head, n_rows, n_rows], sinks take mass and are dropped."""
    largest = x.max(axis=-1, keepdims=True)
    sink: Array | float = 0.0
    if sinks is not None:
        largest = np.maximum(largest, sinks[:, None, None])
        sink = np.exp(sinks[:, None, None] - largest)
    x = np.exp(x - largest)
    total: Array = x.sum(axis=-1, keepdims=True) + sink
    return x / total


def softcap(x: Array, cap: float) -> Array:
    """Bound x smoothly to ± `cap`; 0: no bound."""
    return cap * np.tanh(x / cap) if cap else x


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 0.5 + 0.5 * np.tanh(x / 2)


def gelu(x: Array) -> Array:
    """Return x times the normal distribution's probability of less than x."""
    erf: Array = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
    return x * (0.5 + 0.5 * erf)


ACTIVATIONS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "gelu": gelu,
    "gelu_tanh": lambda x: x * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}
