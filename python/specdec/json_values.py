"""Results as JSON holds them, and read again from a dict of somebody's file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from specdec.checks import as_integer, check_integer, check_number
from specdec.errors import InputError, kind_of, shown

__all__ = ["Described", "without_nan"]

_MAX_ID = 2**31 - 1
_MAX_NUMBER = float(2**31)
"""Times and shares are below it, so that sums of them are finite."""


def without_nan(value: Any) -> Any:
    """The same dicts, lists and numbers with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(one) for one in value]
    return value


class Described:
    """A dict that `to_dict` made or a file holds, read field by field.

    What is wrong raises InputError with the field's name.

    Parameters
    ----------
    values : Mapping
    name : str
        What it is called in messages, such as "rounds[3]"; empty for the whole dict.
    place : str
        The file and the line that it was read from; empty for a dict that a caller gives.

    Raises
    ------
    InputError
        It is no mapping.
    """

    def __init__(self, values: object, name: str = "", *, place: str = "") -> None:
        self._name, self._place = name, place
        if not isinstance(values, Mapping):
            whole = self._called(name or ("it" if place else "values"))
            raise InputError(f"{whole} is {kind_of(values)}; expected {self._as('a dict')}")
        self._values = values

    def _called(self, path: str) -> str:
        return f"{self._place}: {path}" if self._place else path

    def _as(self, expected: str) -> str:
        return expected if self._place else f"{expected}, as to_dict gives it"

    def _path(self, field: str) -> str:
        return f"{self._name}.{field}" if self._name else field

    def name(self, field: str) -> str:
        """What a field is called in messages."""
        return self._called(self._path(field))

    def error(self, field: str, expected: str) -> InputError:
        """The exception for a field whose value is wrong."""
        return InputError(f"{self.name(field)} is {shown(self.value(field))}; expected {expected}")

    def value(self, field: str) -> Any:
        """The value as it is.

        Raises
        ------
        InputError
            There is no such field.
        """
        if field not in self._values:
            raise InputError(f"{self.name(field)} is missing; expected {self._as('it')}")
        return self._values[field]

    def inner(self, field: str) -> Described:
        """A dict within this one."""
        return Described(self.value(field), self._path(field), place=self._place)

    def inner_items(self, field: str) -> list[Described]:
        """A list of dicts."""
        path, items = self._path(field), enumerate(self.items(field))
        return [Described(item, f"{path}[{i}]", place=self._place) for i, item in items]

    def check_version(self, field: str, version: int) -> None:
        """Refuse a dict of another version of the format, or of something else."""
        if as_integer(self.value(field)) != version:
            raise self.error(field, f"{version}, the version that this specdec reads")

    def integer(self, field: str, low: int, high: int | None = None) -> int:
        """A whole number of [low, high]."""
        return check_integer(self.name(field), self.value(field), low, high)

    def number(self, field: str) -> float:
        """A finite number, at least 0 and below 2³¹."""
        return _number(self.name(field), self.value(field))

    def optional(self, field: str) -> float | None:
        """The same, or None."""
        return None if self.value(field) is None else self.number(field)

    def text(self, field: str) -> str:
        """A text."""
        value = self.value(field)
        if not isinstance(value, str):
            raise self.error(field, "a str")
        return value

    def optional_text(self, field: str) -> str | None:
        """A text or None."""
        value = self.value(field)
        if value is None or isinstance(value, str):
            return value
        raise self.error(field, "a str or None")

    def texts(self, field: str) -> list[str]:
        """A list of texts."""
        items = self.items(field)
        if not all(isinstance(item, str) for item in items):
            raise self.error(field, "a list of str")
        return items

    def items(self, field: str) -> list[Any]:
        """A list."""
        value = self.value(field)
        if not isinstance(value, list | tuple):
            raise self.error(field, "a list")
        return list(value)

    def integers(self, field: str, low: int = 0, high: int = _MAX_ID) -> list[int]:
        """A list of whole numbers of [low, high]."""
        items = enumerate(self.items(field))
        return [check_integer(f"{self.name(field)}[{i}]", item, low, high) for i, item in items]

    def numbers(
        self, field: str, expected: str = "", fits: Callable[[float], bool] | None = None
    ) -> list[float]:
        """A list of such numbers, or of those that `fits` takes."""
        return [
            _number(f"{self.name(field)}[{i}]", item, expected, fits)
            for i, item in enumerate(self.items(field))
        ]

    def rows_of_numbers(self, field: str) -> list[list[float]]:
        """A list of lists of such numbers."""
        rows = self.items(field)
        if not all(isinstance(row, list | tuple) for row in rows):
            raise self.error(field, "a list of lists of numbers")
        name = self.name(field)
        return [
            [_number(f"{name}[{i}][{j}]", item) for j, item in enumerate(row)] for i, row in enumerate(rows)
        ]


def _number(name: str, value: Any, expected: str = "", fits: Callable[[float], bool] | None = None) -> float:
    if fits is None:
        expected = f"a finite number, at least 0 and below {_MAX_NUMBER:.0f}"
        return check_number(name, value, expected, lambda x: 0.0 <= x < _MAX_NUMBER)
    return check_number(name, value, expected, fits)
