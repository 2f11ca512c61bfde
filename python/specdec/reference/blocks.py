"""GGUF block types: codes, scales and minima.

A row is a sequence of blocks of 32 or 256 numbers. Every number is ``code * scale + minimum``, with one
scale, and in some types one minimum, per sub-block of 32 or 16 numbers. Both are exact in float32, and so is
the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


class Coded(NamedTuple):
    """A quantized matrix.

    Attributes
    ----------
    codes : ndarray of int, [n_out, n_in]
    scales : ndarray of float32, [n_out, n_sub_blocks]
    minima : ndarray of float32, [n_out, n_sub_blocks], or None
    """

    codes: Array
    scales: Array
    minima: Array | None


def coded(raw: Array, dtype: str) -> Coded:
    """Decode rows of blocks into codes, scales and minima.

    Parameters
    ----------
    raw : ndarray of uint8, [n_out, bytes of a row]
    dtype : str
        One of `BLOCK_TYPES`.
    """
    size, read = _TYPES[dtype]
    rows = len(raw)
    codes, scales, minima = read(raw.reshape(-1, size))
    numbers = codes.reshape(rows, -1), scales.reshape(rows, -1)
    return Coded(*numbers, None if minima is None else minima.reshape(rows, -1))


def decoded(raw: Array, dtype: str) -> Array:
    """Return the numbers of rows of blocks, float32 [n_out, n_in], each rounded once."""
    codes, scales, minima = coded(raw, dtype)
    shape = (*scales.shape, -1)
    values: Array = codes.reshape(shape).astype(np.float32) * scales[..., None]
    if minima is not None:
        values = values + minima[..., None]
    return values.reshape(codes.shape)


_Read = tuple[Array, Array, Array | None]


def _f16(b: Array, at: int) -> Array:
    """Read the f16 number at a byte of each block, [n_blocks, 1] float32."""
    return np.ascontiguousarray(b[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(b: Array) -> Array:
    """Return the low halves of 16 bytes, then the high halves."""
    return np.concatenate([b & 15, b >> 4], axis=-1).astype(np.int32)


def _fifth(b: Array) -> Array:
    """Return the bits of 4 bytes, lowest first, as the fifth bits of 32 codes."""
    return np.unpackbits(b, axis=-1, bitorder="little").astype(np.int32) << 4


def _spread(b: Array, bits: int) -> Array:
    """Split runs of 32 bytes into the codes of 8 / bits runs, lowest bits first."""
    shifts = np.arange(0, 8, bits)[:, None]
    spread = b.reshape(len(b), -1, 1, 32) >> shifts & (1 << bits) - 1
    return spread.reshape(len(b), -1).astype(np.int32)


def _q8_0(b: Array) -> _Read:
    return b[:, 2:].view(np.int8).astype(np.int32), _f16(b, 0), None


def _q4_0(b: Array) -> _Read:
    return _nibbles(b[:, 2:]) - 8, _f16(b, 0), None


def _q4_1(b: Array) -> _Read:
    return _nibbles(b[:, 4:]), _f16(b, 0), _f16(b, 2)


def _q5_0(b: Array) -> _Read:
    return (_nibbles(b[:, 6:]) | _fifth(b[:, 2:6])) - 16, _f16(b, 0), None


def _q5_1(b: Array) -> _Read:
    return _nibbles(b[:, 8:]) | _fifth(b[:, 4:8]), _f16(b, 0), _f16(b, 2)


def _q2_k(b: Array) -> _Read:
    scales, d, least = b[:, :16], _f16(b, 80), _f16(b, 82)
    return _spread(b[:, 16:80], 2), d * (scales & 15), -(least * (scales >> 4))


def _q3_k(b: Array) -> _Read:
    low, high = b[:, 96:104], b[:, 104:108]
    scales = np.concatenate([low & 15, low >> 4], axis=1) | np.concatenate(
        [(high >> shift & 3) << 4 for shift in (0, 2, 4, 6)], axis=1
    )
    codes = _spread(b[:, 32:96], 2) + (_spread(b[:, :32], 1) << 2) - 4
    return codes, _f16(b, 108) * (scales.astype(np.int32) - 32).astype(np.float32), None


def _six_bits(b: Array) -> tuple[Array, Array]:
    """Unpack 8 scales and 8 minima of 6 bits from 12 bytes: four each, then low bits of four more each."""
    first, second, rest = b[:, :4], b[:, 4:8], b[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(b: Array) -> _Read:
    scales, minima = _six_bits(b[:, 4:16])
    return _spread(b[:, 16:], 4), _f16(b, 0) * scales, -(_f16(b, 2) * minima)


def _q5_k(b: Array) -> _Read:
    scales, minima = _six_bits(b[:, 4:16])
    codes = _spread(b[:, 48:], 4) | _spread(b[:, 16:48], 1) << 4
    return codes, _f16(b, 0) * scales, -(_f16(b, 2) * minima)


def _q6_k(b: Array) -> _Read:
    low = b[:, :128].reshape(len(b), 2, 1, 64) >> np.array([0, 4])[:, None] & 15
    codes = low.reshape(len(b), -1).astype(np.int32) | _spread(b[:, 128:192], 2) << 4
    return codes - 32, _f16(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32), None


def _iq4_nl(b: Array) -> _Read:
    return _IQ4[_nibbles(b[:, 2:])], _f16(b, 0), None


def _iq4_xs(b: Array) -> _Read:
    shifts = np.arange(0, 16, 2)
    high = np.ascontiguousarray(b[:, 2:4]).view(np.uint16) >> shifts & 3
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=-1).reshape(len(b), -1)
    scales = (low | high << 4).astype(np.int32) - 32
    codes = _nibbles(b[:, 8:].reshape(len(b), 8, 16)).reshape(len(b), -1)
    return _IQ4[codes], _f16(b, 0) * scales.astype(np.float32), None


def _mxfp4(b: Array) -> _Read:
    scales = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128).astype(np.float32)
    return _MXFP4[_nibbles(b[:, 1:])], scales, None


_TYPES: dict[str, tuple[int, Callable[[Array], _Read]]] = {
    "q8_0": (34, _q8_0),
    "q4_0": (18, _q4_0),
    "q4_1": (20, _q4_1),
    "q5_0": (22, _q5_0),
    "q5_1": (24, _q5_1),
    "q2_k": (84, _q2_k),
    "q3_k": (110, _q3_k),
    "q4_k": (144, _q4_k),
    "q5_k": (176, _q5_k),
    "q6_k": (210, _q6_k),
    "iq4_nl": (18, _iq4_nl),
    "iq4_xs": (136, _iq4_xs),
    "mxfp4": (17, _mxfp4),
}
"""Bytes of a block, and the reader of blocks [n_blocks, bytes]."""

BLOCK_TYPES = tuple(_TYPES)
"""Block types, in lower case."""
