"""Argument checks: every value is accepted or refused with `InputError`.

Conversion errors become `InputError`; exceptions from an object's own code propagate.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from operator import length_hint
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from specdec.errors import InputError, SpecdecError, pass_signals_on, shown

Choice = TypeVar("Choice", bound=str)
"""A string of a Literal type."""
Function = TypeVar("Function", bound=Callable[..., Any])

CONVERSION_ERRORS = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Exceptions of Python and NumPy for values that cannot be converted or do not fit a C number."""


def as_integer(value: Any) -> int | None:
    """Return the value of an integer; None for anything else, bool included."""
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
    """Return an iterator over a value; None if it is not iterable or has an invalid length."""
    try:
        iterator: Iterator[Any] = iter(value)
        length_hint(iterator)  # which list() calls too
    except CONVERSION_ERRORS as error:
        pass_signals_on(error)
        return None
    return iterator


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return the argument `name` as an int in [`low`, `high`]."""
    number = as_integer(value)
    if number is None or number < low or (high is not None and number > high):
        expected = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InputError.of(name, value, expected)
    return number


def check_timeout(timeout: float | None) -> float | None:
    """Return a timeout in seconds, 0 or more; None means no limit."""
    if timeout is None:
        return None
    longest = threading.TIMEOUT_MAX
    expected = f"a number of seconds from 0 to {longest:.0f}, or None"
    return check_number("timeout", timeout, expected, lambda x: 0.0 <= x <= longest)


def check_number(
    name: str, value: Any, expected: str, fits: Callable[[float], bool], verb: str = "is"
) -> float:
    """Return the argument `name` as a float that `fits` accepts; bool is refused."""
    number = None
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)):
        try:
            number = float.__float__(value) if isinstance(value, float) else float(value)
        except CONVERSION_ERRORS as error:  # such as an integer that is too large
            pass_signals_on(error)
    if number is None or not fits(number):
        raise InputError.of(name, value, expected, verb=verb)
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return the argument `name` as a bool; 0 and 1 are accepted."""
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
    """Return the argument `name`, one of `choices`, or None if it is `optional`."""
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
    """Return the argument `name` as a numeric array of any dtype and shape."""
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
    """Return the argument `name` as a C-ordered float64 array; complex and bool are refused."""
    array = check_array(name, value, "real numbers")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} has dtype {array.dtype}; expected real numbers")
    with np.errstate(over="ignore"):  # a longdouble may be infinite as float64
        return np.asarray(array, dtype=np.float64, order="C")


def check_path(name: str, value: Any, error: type[SpecdecError] = InputError) -> Path:
    """Return the argument `name` as a path; ``~`` is the home folder."""
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
    except (OSError, RuntimeError, ValueError) as reason:  # too long, unknown user, folder without access
        message = getattr(reason, "strerror", None) or reason
        raise error(f"{name} {shown(text)} cannot be accessed: {message}") from reason
    return location


def suggesting(meant: Callable[[str, Collection[str]], str]) -> Callable[[Function], Function]:
    """Return a decorator: a TypeError for an unknown argument ends with meant(name, known names)."""

    def decorate(function: Function) -> Function:
        known = inspect.signature(function).parameters

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    found = f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    raise TypeError(found + meant(name, known))
            return function(*args, **kwargs)

        return cast("Function", call)

    return decorate


def similar(name: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Suggest a known name: what others call `name`, or the most similar one; empty if there is none."""
    meant = elsewhere.get(name) or next(iter(get_close_matches(name, known, 1)), None)
    return f"; did you mean {meant}?" if meant in known else ""
