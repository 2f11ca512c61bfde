"""Number formats of weights and caches by name, bf16 in NumPy, and what multiplies matrices."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Dtype: TypeAlias = Literal["f32", "bf16", "int8", "int4"]
"""A number format of the matrices of a model."""
MatrixDtype: TypeAlias = Dtype | Literal["file"]
"""The same, or "file": each matrix has the type that it has in its GGUF file or folder of codes."""
CacheDtype: TypeAlias = Literal["f32", "bf16"]
"""A number format of cached keys and values."""
PrefillMethod: TypeAlias = Literal["rows", "tiles", "blas"]
"""What multiplies matrices: the row kernels, these in the order of tiles, or OpenBLAS."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
CACHE_DTYPES: tuple[CacheDtype, ...] = get_args(CacheDtype)
PREFILL_METHODS: tuple[PrefillMethod, ...] = get_args(PrefillMethod)


def one_dtype(dtype: MatrixDtype) -> Dtype:
    """The format of what has no type of its own beside matrices in one, or in the types of a file: int8."""
    return "int8" if dtype == "file" else dtype


def widened(stored: NDArray[Any], number_format: str) -> NDArray[np.float32]:
    """The numbers of a stored tensor, of bf16 its bits as uint16, as float32; of f32 the array itself."""
    if number_format == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def rounded_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of finite numbers in bf16, rounded to nearest, ties to even; what is too large is infinite."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
