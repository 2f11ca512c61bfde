"""An integer that a caller gives, checked."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from specdec.errors import InputError

__all__ = ["check_integer"]


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """The argument `name` as an int, at least `low` and at most `high`.

    Raises
    ------
    InputError
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        expected = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InputError(f"{name} is {value!r}; expected {expected}")
    return int(value)
