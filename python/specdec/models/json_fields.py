"""A JSON object read field by field, with errors that name file, field, found value and expectation."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from specdec.errors import (
    LONGEST_VALUE,
    CheckpointError,
    CheckpointNotFoundError,
    UnsupportedModelError,
    UnusedFieldWarning,
    shown,
    warn,
)

__all__ = ["NOT_KNOWN", "REQUIRED", "Fields", "as_json", "parse_json", "read_json_object"]

MAX_INT: Final = 2**31 - 1

NOT_KNOWN: Final = "without effect: not known to specdec"
"""The reason in the warning of a field that was not read."""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""Default of a field that has none."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises
    ------
    ValueError, RecursionError
        It is not JSON, which has no NaN and no infinities.
    """
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises
    ------
    CheckpointNotFoundError
        There is no such file.
    CheckpointError
        The file cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        values = parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(values).__name__}; expected an object")
    return values


class Fields:
    """Typed access to a JSON object.

    A field that is absent or ``null`` takes its default; :data:`REQUIRED` means it has none. The object
    records which fields were read, so that the others can be reported: see `unread`.

    Parameters
    ----------
    values : Mapping
        The object.
    file : Path
        Where it was read, for messages.
    prefix : str
        Name of the object inside the file, with a trailing dot; empty for the whole file.
    """

    _noun = "field"

    def __init__(self, values: Mapping[str, Any], file: Path, prefix: str = "") -> None:
        self._values = values
        self._file = file
        self._prefix = prefix
        self._absent: Mapping[str, Any] = {}
        self._read: set[str] = set()
        self._objects: dict[str, Fields] = {}

    @property
    def file(self) -> Path:
        """Where the object was read."""
        return self._file

    def error(self, name: str, expectation: str) -> CheckpointError:
        """The exception for a field whose value is wrong."""
        return CheckpointError(self._message(name, expectation))

    def unsupported(self, name: str, expectation: str) -> UnsupportedModelError:
        """The exception for a field whose value is right but asks for what specdec does not have."""
        return UnsupportedModelError(self._message(name, expectation))

    def _message(self, name: str, expectation: str) -> str:
        found = f"is {as_json(self._values[name])}" if name in self._values else "is missing"
        return f"{self._file}: {self._noun} '{self._prefix}{name}' {found}; expected {expectation}"

    def has(self, name: str) -> bool:
        """Whether the field is there, null or not."""
        return name in self._values

    def raw(self, name: str) -> Any:
        """The value, unchecked. If the field is absent: its default (see `with_absent`), or None."""
        self._read.add(name)
        return self._values[name] if name in self._values else self._absent.get(name)

    def with_absent(self, absent: Mapping[str, Any]) -> Fields:
        """The same object with defaults for absent fields."""
        other = self.replaced()
        other._absent = absent
        return other

    def unread(self, harmless: Container[str] = ()) -> list[str]:
        """The fields that were not read, with dots for those of nested objects that were opened.

        Fields that are null count as absent.

        Parameters
        ----------
        harmless : container of str
            Names, at any depth, to leave out.
        """
        found: list[str] = []
        for name, value in self._values.items():
            if value is None or name in harmless:
                continue
            if name in self._objects:
                found += self._objects[name].unread(harmless)
            elif name not in self._read:
                found.append(f"{self._prefix}{name}")
        return found

    def warn_of_unread(self, harmless: Container[str] = ()) -> None:
        """Warn of the fields that were not read; see `unread`."""
        if names := self.unread(harmless):
            warn(UnusedFieldWarning(self._file, names, NOT_KNOWN))

    def skip(self, *names: str) -> None:
        """Count fields as read, all of them if none is named: their values do not matter here."""
        self._read.update(names or self._values)

    def skip_false(self, *names: str) -> None:
        """Count those of the fields as read that are false."""
        self._read.update(name for name in names if self._values.get(name) is False)

    def _value(self, name: str, default: Any, expectation: str) -> tuple[Any, bool]:
        """(value, True), or (default, False) where the field is absent or null."""
        value = self.raw(name)
        if value is not None:
            return value, True
        if default is REQUIRED:
            raise self.error(name, expectation)
        return default, False

    def integer(self, name: str, *, minimum: int = 1, maximum: int = MAX_INT, default: Any = REQUIRED) -> Any:
        """A whole number of [minimum, maximum]."""
        expectation = f"a whole number from {minimum} to {maximum}"
        value, present = self._value(name, default, expectation)
        # bool is an int to Python, not to JSON.
        if present and (
            isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum
        ):
            raise self.error(name, expectation)
        return value

    def number(self, name: str, *, default: Any = REQUIRED, maximum: float = math.inf) -> float:
        """A finite number above 0, at most ``maximum``."""
        expectation = "a finite number above 0" + (f", at most {maximum:g}" if maximum < math.inf else "")
        value, _ = self._value(name, default, expectation)
        if not _is_positive(value) or value > maximum:
            raise self.error(name, expectation)
        return float(value)

    def boolean(self, name: str, *, default: Any = REQUIRED) -> bool:
        """true or false."""
        value, present = self._value(name, default, "true or false")
        if present and not isinstance(value, bool):
            raise self.error(name, "true or false")
        flag: bool = value
        return flag

    def choice(self, name: str, choices: Mapping[str, str], *, default: Any = REQUIRED) -> str:
        """One of the strings in ``choices``, translated by it."""
        expectation = "one of " + ", ".join(repr(choice) for choice in choices)
        value, _ = self._value(name, default, expectation)
        if not isinstance(value, str):
            raise self.error(name, expectation)
        if value not in choices:
            raise self.unsupported(name, expectation)
        return choices[value]

    def object(self, name: str) -> Fields | None:
        """A JSON object inside this one; None if absent, null or empty."""
        value, present = self._value(name, None, "")
        if not present or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        if name not in self._objects:
            self._objects[name] = Fields(value, self._file, f"{self._prefix}{name}.")
        return self._objects[name]

    def empty(self, name: str) -> Fields:
        """An object without fields, for messages that speak of ``name`` inside this one."""
        return Fields({}, self._file, f"{self._prefix}{name}." if name else self._prefix)

    def as_dict(self) -> dict[str, Any]:
        """A copy of the object."""
        return dict(self._values)

    def replaced(self, **values: Any) -> Fields:
        """The same object with other values of some fields. What is read of one counts as read of both."""
        other = Fields({**self._values, **values}, self._file, self._prefix)
        other._absent, other._read, other._objects = self._absent, self._read, self._objects
        return other

    def numbers(self, name: str, length: int) -> list[float]:
        """A list of ``length`` finite numbers above 0."""
        expectation = f"a list of {length} finite numbers above 0"
        values, _ = self._value(name, REQUIRED, expectation)
        if not isinstance(values, list) or len(values) != length or not all(map(_is_positive, values)):
            raise self.error(name, expectation)
        return [float(value) for value in values]

    def token_ids(self, name: str, n_vocab: int, outside: list[str]) -> tuple[int, ...]:
        """One id or a list of ids in [0, n_vocab), as ``eos_token_id`` is; () if absent.

        An id outside the vocabulary is left out, and `outside` gets a description of the field:
        ``transformers`` writes the ids of its default vocabulary for models of smaller ones, which never give
        such a token.
        """
        value, present = self._value(name, (), "")
        ids = list(value) if isinstance(value, list) else [value] if present else []
        expectation = f"a token id, or a list of ids, from 0 to {n_vocab - 1}"
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise self.error(name, expectation)
        inside = [token for token in ids if 0 <= token < n_vocab]
        if len(inside) < len(ids):
            outside.append(f"'{self._prefix}{name}' is {as_json(value)}")
        return tuple(dict.fromkeys(inside))

    def same_as(self, other: Fields) -> bool:
        """Whether both are the same JSON object."""
        try:
            return self._values == other._values
        except RecursionError as error:
            raise CheckpointError(f"{self._file}: field '{self._prefix}' is nested too deeply") from error

    def require(self, name: str, wanted: Any, *, because: str) -> None:
        """Refuse any value but ``wanted`` (absent and null are fine)."""
        value = self.raw(name)
        if value is not None and value != wanted:
            raise self.unsupported(name, f"{json.dumps(wanted)} or nothing: {because}")


def _is_positive(value: Any) -> bool:
    """Whether a value is a finite number above 0 in double precision."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max


def as_json(value: Any) -> str:
    """A value from a file as a message quotes it: as JSON, shortened. It cannot fail.

    A value that JSON has not, such as bytes from a Parquet file, is quoted as Python shows it.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        return shown(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, nesting as deep as the stack
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
