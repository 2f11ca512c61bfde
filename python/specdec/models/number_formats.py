"""The number formats of weights and caches by name."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["CACHE_DTYPES", "DTYPES", "CacheDtype", "Dtype"]

Dtype: TypeAlias = Literal["f32", "bf16", "int8", "int4"]
"""A number format of the matrices of a model."""
CacheDtype: TypeAlias = Literal["f32", "bf16"]
"""A number format of cached keys and values."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
CACHE_DTYPES: tuple[CacheDtype, ...] = get_args(CacheDtype)
