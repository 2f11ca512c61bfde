"""Number formats: the bits that a row kernel computes in each.

Each operation below rounds once, to nearest with ties to even, exactly where stated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.reference.blocks import BLOCK_TYPES, coded, decoded

Array = NDArray[Any]

BLOCK = 32
"""Inputs that share one scale in int8 and int4; the last block is padded with zeros."""


def fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """x * y + z in float32, rounded once, elementwise.

    The product is exact in float64. The float64 sum is rounded to odd (the last bit marks lost digits), so
    that rounding again to float32 gives the result of a single rounding.
    """
    with np.errstate(over="ignore"):  # infinities are correct
        rounded: Array = _sum_to_odd(x, y, z).astype(np.float32)
    return rounded


def _sum_to_odd(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """x * y + z of float32 as float64, rounded to odd."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are correct
        product, z = np.asarray(x, np.float64) * np.asarray(y, np.float64), np.asarray(z, np.float64)
        total = np.asarray(product + z)
        part = total - product
        lost = (product - (total - part)) + (z - part)  # exactly (Knuth's two-sum)
        even = total.view(np.int64) & 1 == 0
        odd = np.nextafter(total, np.copysign(np.inf, lost))
        return np.where(even & np.isfinite(lost) & (lost != 0), odd, total)


def _flushed_fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """:func:`fma`, flushed to zero if the sum, rounded to 24 bits at any exponent, is below 2^-126."""
    total = _sum_to_odd(x, y, z)
    subnormal = np.abs(total) < 2.0**-126 - 2.0**-151  # half a unit below 2^-126
    with np.errstate(over="ignore"):
        return np.where(subnormal, np.copysign(0.0, total), total).astype(np.float32)


def round_bf16(x: ArrayLike) -> Array:
    """Round finite float32 to the nearest bf16, ties to even; returns float32."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    carry = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (bits + carry & np.uint32(0xFFFF0000)).view(np.float32)


def quantize(weights: ArrayLike, dtype: str) -> tuple[Array, Array]:
    """Quantize weights [n_out, n_in], converted to float32, to int8 or int4.

    int8: a block's scale is its largest magnitude / 127, so codes are from -127 to 127. int4: the scale is
    the element of largest magnitude (the first of several) / -8, which gets the code -8; codes are from -8 to
    7, and scales may be negative. Scales are rounded to f16 before use. A block whose scale is or rounds to 0
    has codes 0.

    Returns
    -------
    codes : ndarray of int8, [n_out, n_in]
    scales : ndarray of float16, [n_out, n_blocks]
        Per row and block of 32 inputs. ValueError if one is infinite in f16.
    """
    divisor, low, high = {"int8": (127, -127, 127), "int4": (-8, -8, 7)}[dtype]
    weights = np.asarray(weights, dtype=np.float32)
    blocks = _blocks(weights)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    if dtype == "int8":
        largest = np.abs(largest)
    with np.errstate(over="ignore"):
        scales = (largest / np.float32(divisor)).astype(np.float16)
    if np.isinf(scales).any():
        raise ValueError(f"a weight of {largest[np.isinf(scales)][0]:g} has no finite scale in {dtype}")
    codes = _codes(blocks, _inverse(np.float32(1), scales.astype(np.float32)), low, high)
    return codes.reshape(len(weights), -1)[:, : weights.shape[1]], scales[..., 0]


def dequantize(codes: ArrayLike, scales: ArrayLike) -> Array:
    """Return the float32 weights of codes and scales; the products are exact."""
    codes = np.asarray(codes)
    widened = np.repeat(np.asarray(scales, dtype=np.float32), BLOCK, axis=-1)
    weights: Array = codes.astype(np.float32) * widened[:, : codes.shape[1]]
    return weights


def stored(weights: ArrayLike, dtype: str) -> Array:
    """Return a matrix as the model uses it after packing in a format: float32, [n_out, n_in]."""
    if dtype in BLOCK_TYPES:
        return decoded(np.asarray(weights), dtype)
    if dtype == "f32":
        return np.asarray(weights, dtype=np.float32)
    return round_bf16(weights) if dtype == "bf16" else dequantize(*quantize(weights, dtype))


def quantize_activations(x: ArrayLike) -> tuple[Array, Array]:
    """Quantize activations for int8 and int4 weights: int8 with one float32 scale per block.

    Rows [n_rows, n_in], converted to float32, give codes [n_rows, n_in] from -127 to 127 and scales [n_rows,
    n_blocks]. The scale is the smallest power of two 2^e with largest magnitude <= 127 * 2^e (e at most 100).
    Blocks below 2^-100 become scale 0 and codes 0.
    """
    x = np.asarray(x, dtype=np.float32)
    blocks = _blocks(x)
    largest = np.abs(blocks).max(-1, keepdims=True)
    mantissa, exponent = np.frexp(largest)  # largest = mantissa * 2**exponent, mantissa in [1/2, 1)
    exponent = np.minimum(exponent - 7 + (mantissa > np.float32(127 / 128)), 100)
    scales = np.where(largest < np.float32(2.0**-100), np.float32(0), np.ldexp(np.float32(1), exponent))
    codes = _codes(blocks, _inverse(np.float32(1), scales), -127, 127)
    return codes.reshape(len(x), -1)[:, : x.shape[1]], scales[..., 0]


def product(x: ArrayLike, weights: ArrayLike, dtype: str, engine: str = "rows") -> Array:
    """Multiply rows of activations by a matrix of weights, with the exact bits of the core's row kernels.

    Every output is one chain along the inputs, so it depends only on its row and its weights:

    - f32: ``sum = fma(x[k], w[k], sum)``, k ascending;
    - bf16: both sides rounded to bf16, then by pairs, the second of a pair first, ``sum = fma(x[k], w[k],
      fma(x[k + 1], w[k + 1], sum))``, padded with 0; subnormal numbers are zero, in the factors and after
      each fma, where the sum is first rounded to 24 bits. This is the instruction VDPBF16PS;
    - int8, int4: block after block, ``sum = fma(block_sum * x_scale, w_scale, sum)`` with the exact integer
      sum of the products of codes; its product with a power of two is exact too;
    - GGUF block types: the same by sub-blocks of 32 or 16 inputs, followed for types with minima by
      ``sum = fma(x_sum * x_scale, minimum, sum)``, with the sum of the codes of x.

    In tile order (`engine`), that of the instruction TDPBF16PS, a block of 32 inputs, padded with 0, has two
    chains from +0, ``even = fma(x[2i], w[2i], even)`` and ``odd = fma(x[2i + 1], w[2i + 1], odd)``, i
    ascending; then ``sum = sum + (even + odd)``. Both sides are rounded, and subnormal numbers are zero, as
    in bf16. Weights in int8, int4 and block types are those of :func:`stored`, with zeros as +0, rounded to
    bf16.

    Parameters
    ----------
    x : array_like, [n_rows, n_in]
        Activations, converted to float32.
    weights : array_like, [n_out, n_in]
        Before rounding or quantization, which this function does. For block types: uint8, [n_out, bytes of a
        row].
    dtype : {"f32", "bf16", "int8", "int4"} or str
        Or a block type, such as "q4_k" (:mod:`specdec.reference.blocks`).
    engine : {"rows", "tiles"}
        "tiles" raises ValueError for f32.

    Returns
    -------
    ndarray of float32, [n_rows, n_out]
    """
    x = np.asarray(x, dtype=np.float32)
    weights = np.asarray(weights, dtype=None if dtype in BLOCK_TYPES else np.float32)
    total = np.zeros((len(x), len(weights)), dtype=np.float32)
    if engine == "tiles" and dtype == "f32":
        raise ValueError(f"dtype is {dtype!r}, expected 'bf16', 'int8' or 'int4' for tile order")
    if engine == "tiles":
        if dtype != "bf16":
            weights = stored(weights, dtype) + np.float32(0)  # turns -0 into +0
        total = add_tiles(total, x, weights)
    elif dtype == "f32":
        for k in range(x.shape[1]):
            total = fma(x[:, k, None], weights[:, k], total)
    elif dtype == "bf16":
        x, weights = (_flush(round_bf16(_padded(rows, 2))) for rows in (_flush(x), weights))
        for k in range(0, x.shape[1], 2):
            for i in (k + 1, k):
                total = _flushed_fma(x[:, i, None], weights[:, i], total)
    elif dtype in BLOCK_TYPES:
        x_codes, x_scales = quantize_activations(x)
        w_codes, scales, minima = coded(weights, dtype)
        size = w_codes.shape[1] // scales.shape[1]
        for i, k in enumerate(range(0, w_codes.shape[1], size)):
            some, x_scale = x_codes[:, k : k + size].astype(np.int32), x_scales[:, k // BLOCK, None]
            dot = (some @ w_codes[:, k : k + size].T.astype(np.int32)).astype(np.float32)
            total = fma(dot * x_scale, scales[:, i], total)
            if minima is not None:
                total = fma(some.sum(axis=1, keepdims=True).astype(np.float32) * x_scale, minima[:, i], total)
    else:
        x_codes, x_scales = quantize_activations(x)
        w_codes, w_scales = quantize(weights, dtype)
        x_blocks, w_blocks = (_blocks(codes.astype(np.int32)) for codes in (x_codes, w_codes))
        for b in range(x_blocks.shape[1]):
            block_sum = (x_blocks[:, b] @ w_blocks[:, b].T).astype(np.float32)  # below 2**24, so exact
            total = fma(block_sum * x_scales[:, b, None], w_scales[:, b].astype(np.float32), total)
    return total


def add_tiles(total: Array, x: Array, weights: Array) -> Array:
    """Continue the sums of `product` in tile order from `total`; both sides are rounded to bf16."""
    one = np.float32(1)
    x, weights = (_flush(round_bf16(_padded(rows, BLOCK))) for rows in (_flush(x), weights))
    for first in range(0, x.shape[1], BLOCK):
        even = odd = np.zeros_like(total)
        for k in range(first, first + BLOCK, 2):
            even = _flushed_fma(x[:, k, None], weights[:, k], even)
            odd = _flushed_fma(x[:, k + 1, None], weights[:, k + 1], odd)
        total = _flushed_fma(one, _flushed_fma(one, even, odd), total)
    return total


def _padded(rows: Array, multiple: int) -> Array:
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % multiple)))


def _blocks(rows: Array) -> Array:
    """Reshape [n_rows, n_in] to [n_rows, n_blocks, 32]."""
    padded = _padded(rows, BLOCK)
    return padded.reshape(len(rows), padded.shape[1] // BLOCK, BLOCK)


def _inverse(numerator: np.float32, x: Array) -> Array:
    """numerator / x in float32; 0 where x is 0."""
    quotient: Array = np.divide(numerator, x, out=np.zeros_like(x), where=x != 0)
    return quotient


def _codes(blocks: Array, inverse: Array, low: int, high: int) -> Array:
    codes: Array = np.clip(np.rint(blocks * inverse), low, high).astype(np.int8)
    return codes


def _flush(x: Array) -> Array:
    """Flush subnormal numbers to zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)
