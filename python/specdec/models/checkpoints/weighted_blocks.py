"""Q4_0 and Q5_0 by the importance of inputs: in each block the scale of the least weighted square error."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["WEIGHTED", "weighted_blocks"]

WEIGHTED: Final = ("Q4_0", "Q5_0")
_BLOCK: Final = 32
_TOGETHER: Final = 1 << 14  # blocks that are looked at together
_TRIALS: Final = np.arange(-9, 10, dtype=np.float32) / np.float32(10)


def weighted_blocks(
    rows: NDArray[np.float32], kind: str, importance: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """The bytes of rows of weights.

    Errors count by the importance of their inputs, and more for large weights, as in the quantiser of the
    core. Of some twenty grids of codes each gives the scale that fits them best; the best of these is taken.

    Parameters
    ----------
    rows : ndarray of float32, [n_rows, n_in]
        n_in is a multiple of 32.
    """
    most = {"Q4_0": 8, "Q5_0": 16}[kind]
    squares = np.mean(np.square(rows, dtype=np.float64), axis=1, keepdims=True).astype(np.float32)
    packed: list[NDArray[np.uint8]] = []
    step = max(1, _TOGETHER * _BLOCK // rows.shape[1])
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        weights = importance * np.sqrt(squares[first : first + step] + some * some)
        x, w = some.reshape(-1, _BLOCK), weights.reshape(-1, _BLOCK)
        d = _best_scale(x, w, np.float32(most)).astype(np.float16)
        packed.append(_packed(_codes(x, _inverse(d.astype(np.float32)), most) + most, d, kind).reshape(-1))
    return np.concatenate(packed)


def _codes(x: NDArray[np.float32], steps: NDArray[np.float32], most: int) -> NDArray[Any]:
    codes: NDArray[Any] = np.clip(np.rint(x * steps[:, None]), -most, most - 1)
    return codes


def _inverse(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / x; 0 where x is 0."""
    result: NDArray[np.float32] = np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)
    return result


def _best_scale(x: NDArray[np.float32], w: NDArray[np.float32], most: np.float32) -> NDArray[np.float32]:
    """The scale of each block, of either sign."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    inverse = _inverse(extreme)
    scale, gain = np.zeros_like(extreme), np.zeros_like(extreme)
    for trial in _TRIALS:
        q = _codes(x, -(most + trial) * inverse, int(most))
        fit, size = (w * q * x).sum(axis=1), (w * q * q).sum(axis=1)
        better = fit * fit * _inverse(size)
        scale = np.where(better > gain, fit * _inverse(size), scale)
        gain = np.maximum(better, gain)
    return scale


def _packed(codes: NDArray[Any], d: NDArray[np.float16], kind: str) -> NDArray[np.uint8]:
    """Blocks: the scale; in Q5_0 the fifth bits; nibbles of the first half, and above them of the second."""
    q = codes.astype(np.uint8)
    low = q[:, : _BLOCK // 2] & 15 | (q[:, _BLOCK // 2 :] & 15) << 4
    fifth = [np.packbits(q >> 4, axis=1, bitorder="little")] if kind == "Q5_0" else []
    return np.concatenate([d[:, None].view(np.uint8), *fifth, low], axis=1)
