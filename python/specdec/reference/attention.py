"""Attention of prompts and sources in tile order, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.reference.formats import BLOCK, add_tiles, fma, product

Array = NDArray[Any]

SPAN = 128
"""Positions per span of scores."""

LANES = 16
"""Partial sums of a row's weights."""


def attention_in_tiles(
    queries: ArrayLike, keys: ArrayLike, values: ArrayLike, seen: ArrayLike, scale: float,
    biases: ArrayLike | None = None,
) -> Array:  # fmt: skip
    """Return attention outputs with the exact bits of the core's tile order.

    Scores are products of rounded queries and keys in that order, in spans of 128 positions. When a span
    raises a row's largest score, its previous sums are multiplied by the corresponding power, flushing
    numbers below 2^-126 to 0. Weights are `coarse_power` of the difference to the largest score, times
    ``scale * log2(e)``, and 0 for invisible positions. Their sum is in float32 over 16 lanes; rounded to
    bf16, they are multiplied with the rounded values in tile order.

    Parameters
    ----------
    queries : array_like, [n_rows, d_head]
        Converted to float32, like all inputs.
    keys, values : array_like, [n_positions, d_head]
    seen : array_like of bool, [n_rows, n_positions]
        Whether a row attends to a position.
    scale : float
        Factor of the scores.
    biases : array_like, [n_rows, n_positions], optional
        Added to the scores after scaling by `scale`.

    Returns
    -------
    ndarray of float32, [n_rows, d_head]
    """
    values = np.asarray(values, np.float32)
    scores = product(queries, keys, "bf16", "tiles")
    factor = np.float32(scale)
    if biases is not None:
        scores = scores * factor + np.asarray(biases, np.float32)
        factor = np.float32(1)
    scores = np.where(np.asarray(seen), scores, np.float32(-np.inf))
    to_power = factor * np.float32(1.44269504)
    n_rows, n_positions = scores.shape
    largest = np.full((n_rows, 1), -np.inf, np.float32)
    lanes, sums = np.zeros((n_rows, LANES), np.float32), np.zeros((n_rows, values.shape[1]), np.float32)
    for first in range(0, n_positions, SPAN):
        here = scores[:, first : first + SPAN]
        before, largest = largest, np.maximum(largest, here.max(axis=1, keepdims=True))
        with np.errstate(invalid="ignore"):  # -inf minus -inf, if nothing is visible
            fall = coarse_power((before - largest) * to_power)
            weights = coarse_power((here - largest) * to_power)
        lanes, sums = (_without_subnormals(part * fall) for part in (lanes, sums))
        for i in range(here.shape[1]):
            lanes[:, i % LANES] += weights[:, i]
        for k in range(0, here.shape[1], BLOCK):
            sums = add_tiles(sums, weights[:, k : k + BLOCK], values[first + k : first + k + BLOCK].T)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return (sums + np.float32(0)) * (np.float32(1) / lanes)


def coarse_power(x: ArrayLike) -> Array:
    """2^x in float32 for x <= 0: 0 below -125 and for NaN, 1 for 0, else within a relative 1.1e-4."""
    x = np.asarray(x, np.float32)
    kept = x >= -125
    x = np.where(kept, x, np.float32(-125))
    whole = np.rint(x)
    part = x - whole
    p = fma(np.float32(0.05500832), part, np.float32(0.24221115))
    p = fma(p, part, np.float32(0.69328302))
    p = fma(p, part, np.float32(1))
    return np.where(kept, np.ldexp(p, whole.astype(int)), np.float32(0)).astype(np.float32)


def _without_subnormals(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)
