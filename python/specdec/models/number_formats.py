"""Names of number formats and prefill methods, the fastest method, and bf16 in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Dtype: TypeAlias = Literal["f32", "bf16", "int8", "int4"]
"""Number format of a model's matrices."""
MatrixDtype: TypeAlias = Dtype | Literal["file"]
"""Number format, or "file": each matrix keeps its type in a quantized file."""
CacheDtype: TypeAlias = Literal["f32", "bf16", "int8"]
"""Number format of the KV cache."""
PrefillMethod: TypeAlias = Literal["rows", "tiles", "blas"]
"""Matrix multiplication for prompts, see `specdec.load`."""
PrefillChoice: TypeAlias = Literal["auto", "rows", "tiles", "blas"]
"""Method, or "auto": the fastest on this processor."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
CACHE_DTYPES: tuple[CacheDtype, ...] = get_args(CacheDtype)
PREFILL_CHOICES: tuple[PrefillChoice, ...] = get_args(PrefillChoice)

_FASTEST: Final[Mapping[str, Mapping[MatrixDtype, PrefillMethod]]] = {
    "amx": {"bf16": "tiles", "int8": "tiles", "int4": "tiles", "file": "tiles"},
}
"""Fastest method by instruction set and number format; "rows" for others (times in benchmarks/SPEED.md)."""


def fastest_prefill(kernels: str, dtype: MatrixDtype) -> PrefillMethod:
    """Return what prefill="auto" means for an instruction set; never measured, since it decides bits."""
    return _FASTEST.get(kernels, {}).get(dtype, "rows")


def default_cache_dtype(dtype: MatrixDtype | None) -> CacheDtype:
    """Return the number format of the KV cache of a model in this format, unless another is chosen."""
    return "f32" if dtype == "f32" else "bf16"


def one_dtype(dtype: MatrixDtype) -> Dtype:
    """Return the format of tensors without type in the file; int8 for a quantized file."""
    return "int8" if dtype == "file" else dtype


def widened(stored: NDArray[Any], number_format: str) -> NDArray[np.float32]:
    """Convert a stored tensor (bf16 as uint16 bits) to float32; f32 is returned as is."""
    if number_format == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def rounded_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite values to bf16 bits, to nearest, ties to even; overflow becomes infinite."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
