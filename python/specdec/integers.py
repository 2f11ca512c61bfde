"""An integer that a caller gives, checked."""

from __future__ import annotations

from typing import Any

from specdec.checks import as_integer
from specdec.errors import InputError, shown

__all__ = ["check_integer"]


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """The argument `name` as an int, at least `low` and at most `high`.

    Raises
    ------
    InputError
    """
    number = as_integer(value)
    if number is None or number < low or (high is not None and number > high):
        expected = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InputError(f"{name} is {shown(value)}; expected {expected}")
    return number
