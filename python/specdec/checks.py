"""Checks of arguments: any value is accepted or refused with `InputError`.

Errors of Python because of an object's type become `InputError`; exceptions raised by the object's own code
propagate.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from operator import length_hint
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from specdec.errors import InputError, SpecdecError, pass_signals_on, shown

Choice = TypeVar("Choice", bound=str)
"""A word of a Literal type."""

CONVERSION_ERRORS = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Exceptions of Python and NumPy for a value of the wrong type or outside a C type's range."""


def as_integer(value: Any) -> int | None:
    """Return the value of an integer, None for anything else, including bool."""
    if type(value) is int:  # faster than the abstract class
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    try:
        # int(value) would call a subclass's __int__.
        return int.__index__(value) if isinstance(value, int) else int(value)
    except CONVERSION_ERRORS as error:
        pass_signals_on(error)
        return None


def as_iterator(value: Any) -> Iterator[Any] | None:
    """Return an iterator over a value, or None if it is not iterable or its length is invalid.

    Exceptions of the iteration propagate: they belong to the caller's code.
    """
    try:
        iterator: Iterator[Any] = iter(value)
        length_hint(iterator)  # list() calls it too
    except CONVERSION_ERRORS as error:
        pass_signals_on(error)
        return None
    return iterator


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Check the argument `name`: an int, at least `low` and at most `high`."""
    number = as_integer(value)
    if number is None or number < low or (high is not None and number > high):
        expected = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InputError.of(name, value, expected)
    return number


def check_timeout(timeout: float | None) -> float | None:
    """Check a timeout: 0 or more seconds; None: no limit."""
    if timeout is None:
        return None
    longest = threading.TIMEOUT_MAX
    expected = f"a number of seconds from 0 to {longest:.0f}, or None"
    return check_number("timeout", timeout, expected, lambda x: 0.0 <= x <= longest)


def check_number(
    name: str, value: Any, expected: str, fits: Callable[[float], bool], verb: str = "is"
) -> float:
    """Check the argument `name`: a float for which `fits` is true, not a bool."""
    number = None
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)):
        try:
            number = float.__float__(value) if isinstance(value, float) else float(value)
        except CONVERSION_ERRORS as error:  # for example too large an integer
            pass_signals_on(error)
    if number is None or not fits(number):
        raise InputError.of(name, value, expected, verb=verb)
    return number


def check_flag(name: str, value: Any) -> bool:
    """Check the argument `name`: a bool, or 0 or 1."""
    if isinstance(value, bool | np.bool_) or as_integer(value) in (0, 1):
        return bool(value)
    raise InputError.of(name, value, "True or False")


@overload
def check_choice(name: str, value: Any, choices: Sequence[Choice]) -> Choice: ...
@overload
def check_choice(name: str, value: Any, choices: Sequence[Choice], *, optional: bool) -> Choice | None: ...
def check_choice(
    name: str, value: Any, choices: Sequence[Choice], *, optional: bool = False
) -> Choice | None:
    """Check the argument `name`: one of some words, or None if `optional`."""
    if optional and value is None:
        return None
    for choice in choices:
        if isinstance(value, str) and str.__eq__(choice, value):
            return choice
    expected = f"{'None or ' if optional else ''}one of {', '.join(map(repr, choices))}"
    raise InputError.of(name, value, expected)


def check_items(name: str, value: Any, expected: str) -> list[Any]:
    """Return the items of the iterable argument `name`."""
    iterator = as_iterator(value)
    if iterator is None:
        raise InputError.of(name, value, expected)
    return list(iterator)


def check_array(name: str, value: Any, expected: str) -> NDArray[Any]:
    """Check the argument `name`: an array of numbers of any type and shape."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} is not a rectangular array: {error}") from error
    except CONVERSION_ERRORS as error:
        raise InputError.of(name, value, expected) from error
    if array.dtype.kind not in "biufc":
        raise InputError(f"{name} has dtype {array.dtype}; expected {expected}")
    return array


def check_real(name: str, value: Any) -> NDArray[np.float64]:
    """Check the argument `name`: real numbers as a C-ordered float64 array."""
    array = check_array(name, value, "real numbers")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} has dtype {array.dtype}; expected real numbers")
    with np.errstate(over="ignore"):  # a longdouble may overflow float64
        return np.asarray(array, dtype=np.float64, order="C")


def check_path(name: str, value: Any, error: type[SpecdecError] = InputError) -> Path:
    """Check the argument `name`: a path, with ``~`` expanded."""
    try:
        text = os.fspath(value)
    except CONVERSION_ERRORS as reason:
        pass_signals_on(reason)
        text = None
    if not isinstance(text, str):
        raise InputError.of(name, value, "a path")
    try:
        if "\0" in text:
            raise ValueError("a path has no null character")
        location = Path(text).expanduser()
        location.exists()
    except (OSError, RuntimeError, ValueError) as reason:  # too long, unknown user, no permission
        message = getattr(reason, "strerror", None) or reason
        raise error(f"{name} {shown(text)} cannot be accessed: {message}") from reason
    return location
