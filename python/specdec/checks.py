"""What a caller gives, checked: whatever the value is, it is taken or refused with `InputError`.

What Python raises because an object has no such value becomes `InputError`; what the object itself raises
comes through.
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
"""What Python and NumPy raise where a value is not what it says it is, or does not fit a C number."""


def as_integer(value: Any) -> int | None:
    """The value of an integer, None for anything else; a truth value is none."""
    if type(value) is int:  # asking the abstract class takes longer
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    try:
        # int(value) would ask the __int__ of a subclass.
        return int.__index__(value) if isinstance(value, int) else int(value)
    except CONVERSION_ERRORS as error:
        pass_signals_on(error)
        return None


def as_iterator(value: Any) -> Iterator[Any] | None:
    """An iterator over a value, None for what has none or a length that is none.

    What the iterator raises on the way comes through: it is an error of the caller's own code.
    """
    try:
        iterator: Iterator[Any] = iter(value)
        length_hint(iterator)  # list() asks for it, and so for the length of a sequence
    except CONVERSION_ERRORS as error:
        pass_signals_on(error)
        return None
    return iterator


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """The argument `name` as an int, at least `low` and at most `high`."""
    number = as_integer(value)
    if number is None or number < low or (high is not None and number > high):
        expected = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InputError.of(name, value, expected)
    return number


def check_timeout(timeout: float | None) -> float | None:
    """Seconds to wait at most, 0 or more; None: without end."""
    if timeout is None:
        return None
    longest = threading.TIMEOUT_MAX
    expected = f"a number of seconds from 0 to {longest:.0f}, or None"
    return check_number("timeout", timeout, expected, lambda x: 0.0 <= x <= longest)


def check_number(
    name: str, value: Any, expected: str, fits: Callable[[float], bool], verb: str = "is"
) -> float:
    """The argument `name` as a float, for which `fits` is true; a truth value is none."""
    number = None
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)):
        try:
            number = float.__float__(value) if isinstance(value, float) else float(value)
        except CONVERSION_ERRORS as error:  # among others an integer that is too large
            pass_signals_on(error)
    if number is None or not fits(number):
        raise InputError.of(name, value, expected, verb=verb)
    return number


def check_flag(name: str, value: Any) -> bool:
    """The argument `name` as a truth value: a bool, or 0 or 1."""
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
    """The argument `name`, which is one of some words, or None where it is `optional`."""
    if optional and value is None:
        return None
    for choice in choices:
        if isinstance(value, str) and str.__eq__(choice, value):
            return choice
    expected = f"{'None or ' if optional else ''}one of {', '.join(map(repr, choices))}"
    raise InputError.of(name, value, expected)


def check_items(name: str, value: Any, expected: str) -> list[Any]:
    """The items of an iterable argument `name`."""
    iterator = as_iterator(value)
    if iterator is None:
        raise InputError.of(name, value, expected)
    return list(iterator)


def check_array(name: str, value: Any, expected: str) -> NDArray[Any]:
    """The argument `name` as an array of numbers of any type and shape."""
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
    """The argument `name` as an array of float64, in C order; complex numbers and truth values are none."""
    array = check_array(name, value, "real numbers")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} has dtype {array.dtype}; expected real numbers")
    with np.errstate(over="ignore"):  # a longdouble may be infinite as float64
        return np.asarray(array, dtype=np.float64, order="C")


def check_path(name: str, value: Any, error: type[SpecdecError] = InputError) -> Path:
    """The argument `name` as a path; ``~`` is the home folder."""
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
    except (OSError, RuntimeError, ValueError) as reason:  # too long, no such user, a folder that is closed
        message = getattr(reason, "strerror", None) or reason
        raise error(f"{name} {shown(text)} cannot be looked at: {message}") from reason
    return location
