"""Texts and token ids in containers of other libraries: tensors, encodings, table columns.

No library is imported; containers are recognized by their interface: `__array__` for PyTorch and JAX tensors
and pandas Series, "input_ids" for a BatchEncoding of transformers, `ids` and `attention_mask` for an Encoding
of tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import CONVERSION_ERRORS, check_items
from specdec.errors import InputError, shown, type_of


class SupportsArray(Protocol):
    """A tensor or a table column."""

    def __array__(self) -> NDArray[Any]:
        """Return the numbers."""
        ...


Container: TypeAlias = SupportsArray | Mapping[str, Any]
"""A container of texts or token ids from another library; a mapping has "input_ids"."""

_KNOWN = (str, bytes, bytearray, list, tuple, int, float, np.generic, type(None))


def plain(value: Any) -> Any:
    """Convert a container of another library to a list or array; return anything else unchanged.

    "input_ids" come without those masked by "attention_mask"; a tensor with one number as that number.
    """
    if isinstance(value, _KNOWN):
        return value
    if isinstance(value, Mapping):
        return _unmasked(value["input_ids"], value.get("attention_mask")) if "input_ids" in value else value
    if hasattr(type(value), "__array__"):
        array = _array(value)
        return array.tolist() if array.dtype.kind in "OUT" or array.ndim == 0 else array
    if hasattr(type(value), "ids") and hasattr(type(value), "attention_mask"):
        return _unmasked(value.ids, value.attention_mask)
    return value


def text_of(value: Any) -> Any:
    """Convert like `plain` to a single text: a batch with one row becomes that row."""
    found = plain(value)
    if isinstance(found, np.ndarray) and found.ndim == 2 and len(found) == 1:
        return found[0]
    if isinstance(found, list) and found is not value and len(found) == 1:
        return found[0] if isinstance(found[0], list | str) else found
    return found


def prompts_of(name: str, value: Any) -> tuple[list[Any], bool]:
    """Return (prompts in an argument, whether it holds several).

    A text, a list of integers and a one-dimensional array are one prompt; a list of texts or token id lists,
    a two-dimensional array and a batch of another library are several.
    """
    expected = "text, token ids, or a list of prompts"
    value = plain(value)
    if isinstance(value, str):
        return [value], False
    if isinstance(value, np.ndarray) and value.ndim != 2:
        return [value], False
    if not isinstance(value, list | tuple | np.ndarray):
        raise InputError.of(name, value, expected, type_of(value))
    items = check_items(name, value, expected)
    items = [item if isinstance(item, int) else text_of(item) for item in items]
    if not items:
        raise InputError.of(name, value, expected, "an empty list")
    n_prompts = sum(isinstance(item, str | list | tuple | np.ndarray) for item in items)
    if n_prompts not in (0, len(items)):
        raise InputError.of(name, value, "a list of prompts or of token ids", "both", "mixes")
    return (items, True) if n_prompts else ([items], False)


def _array(value: Any) -> NDArray[Any]:
    """Convert a tensor to an array, copying it from another device if necessary."""
    if isinstance(value, np.ndarray):
        return value
    move = getattr(value, "cpu", None)
    try:
        return np.asarray(move() if callable(move) else value)
    except (*CONVERSION_ERRORS, RuntimeError) as error:  # RuntimeError: PyTorch
        raise InputError(f"{shown(type(value).__name__)} cannot be read as an array: {error}") from error


def _unmasked(ids: Any, mask: Any) -> Any:
    """Remove padding from token ids [n] or [rows, n]: where the mask, if any, is 0."""
    ids, mask = plain(ids), plain(mask)
    if mask is None:
        return ids
    for name, given in (("input_ids", ids), ("attention_mask", mask)):
        if not isinstance(given, list | tuple | np.ndarray):
            raise InputError(f"{name} is {type_of(given)}; expected lists or arrays if both are given")
    if len(ids) != len(mask):
        raise InputError(f"attention_mask has {len(mask)} entries for {len(ids)} of input_ids")
    if len(ids) and isinstance(ids[0], list | tuple | np.ndarray):
        return [_unmasked(row, kept) for row, kept in zip(ids, mask, strict=True)]
    return [token for token, kept in zip(ids, mask, strict=True) if kept]
