"""The number formats of weights and caches by name, and the engines that multiply matrices."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["CACHE_DTYPES", "DTYPES", "ENGINES", "CacheDtype", "Dtype", "Engine"]

Dtype: TypeAlias = Literal["f32", "bf16", "int8", "int4"]
"""A number format of the matrices of a model."""
CacheDtype: TypeAlias = Literal["f32", "bf16"]
"""A number format of cached keys and values."""
Engine: TypeAlias = Literal["rows", "blas"]
"""What multiplies matrices: the row kernels, or OpenBLAS."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
CACHE_DTYPES: tuple[CacheDtype, ...] = get_args(CacheDtype)
ENGINES: tuple[Engine, ...] = get_args(Engine)
