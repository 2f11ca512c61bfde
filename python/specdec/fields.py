"""Typed reading of JSON objects; errors name file, field, value and expectation."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Final

from specdec.checks import as_integer
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    FieldError,
    InputError,
    SpecdecError,
    UnsupportedModelError,
    UnusedFieldWarning,
    as_json,
    type_of,
    warn,
)

__all__ = ["NOT_KNOWN", "REQUIRED", "Fields", "as_json", "parse_json", "read_json_object", "without_nan"]

MAX_INT: Final = 2**31 - 1

MAX_TIME: Final = float(2**31)
"""Exclusive bound of times and shares in results, which keeps their sums finite."""
_TIME: Final = f"a finite number, at least 0 and below {MAX_TIME:.0f}"

NOT_KNOWN: Final = "without effect: not known to specdec"
"""Reason in the warning about an unread field."""

REQUIRED: Final[Any] = type("_Required", (), {"__repr__": lambda _: "REQUIRED"})()
"""Marks a field without default."""


def parse_json(text: str | bytes, *, infinite: bool = False) -> Any:
    """Parse JSON, refusing NaN and, unless `infinite`, infinities; raises ValueError or RecursionError."""

    def constant(name: str) -> float:
        if infinite and name == "Infinity":
            return math.inf
        raise ValueError(f"{name} is not a JSON number")

    return json.loads(text, parse_constant=constant)


def without_nan(value: Any) -> Any:
    """Return a copy of nested dicts and lists with None for NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(one) for one in value]
    return value


def read_json_object(path: Path, error_type: type[SpecdecError] = CheckpointError) -> dict[str, Any]:
    """Read a JSON file that holds an object; files of checkpoints may hold Infinity, as limits do."""
    try:
        values = parse_json(path.read_bytes(), infinite=error_type is CheckpointError)
    except FileNotFoundError as error:
        missing = CheckpointNotFoundError if error_type is CheckpointError else error_type
        raise missing(f"{path}: no such file") from error
    except OSError as error:
        raise error_type(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise error_type(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise error_type(f"{path}: holds a JSON {type(values).__name__}; expected an object")
    return values


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number in double precision."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


class Fields:
    """Typed access to the fields of `values`, an object from `file` ("" if a caller passed it).

    Absent and ``null`` fields take their default, or are refused if it is :data:`REQUIRED`. Fields that were
    never read can be reported, see `unread`. `prefix` is the object's name inside the file, with a trailing
    dot; `error_type` is CheckpointError, TokenizerError or InputError.
    """

    _noun = "field"

    def __init__(
        self, values: Mapping[str, Any], file: Path | str, prefix: str = "",
        error_type: type[SpecdecError] = CheckpointError,
    ) -> None:  # fmt: skip
        self.file: Any = file
        self._values, self._prefix, self._error_type = values, prefix, error_type
        if not isinstance(values, Mapping):
            self._prefix = prefix[:-1] or "values"
            raise self.error("", f"a dict, not {type_of(values)}", values)
        self._absent: Mapping[str, Any] = {}
        self._read: set[str] = set()
        self._objects: dict[str, Fields] = {}

    def error(self, name: str, expected: str, *value: Any) -> SpecdecError:
        """Return the exception for a wrong field, or for a wrong `value` inside it."""
        return self._error(self._error_type, name, expected, *value)

    def unsupported(self, name: str, expected: str) -> SpecdecError:
        """Return the exception for a valid field that asks for something specdec does not support."""
        return self._error(
            UnsupportedModelError if self._error_type is CheckpointError else self._error_type, name, expected
        )

    def _error(self, error_type: type[Any], name: str, expected: str, *value: Any) -> SpecdecError:
        found = None if value or name in self._values else "missing"
        given, field = value[0] if value else self._values.get(name), f"{self._prefix}{name}"
        if issubclass(error_type, FieldError):
            return error_type.of(self.file, field, given, expected, found=found, noun=self._noun)
        prefix = f"{self.file}: " if self.file else ""
        return InputError.of(f"{prefix}{field}", given, expected, found=found)

    def has(self, name: str) -> bool:
        """Return whether the field is present, null or not."""
        return name in self._values

    def raw(self, name: str) -> Any:
        """Return the unchecked value; if absent, its default (see `with_absent`) or None."""
        self._read.add(name)
        return self._values[name] if name in self._values else self._absent.get(name)

    def given(self, name: str) -> Any:
        """Return the unchecked value of a field that must be present."""
        if name not in self._values:
            raise self.error(name, "a value")
        return self.raw(name)

    def with_absent(self, absent: Mapping[str, Any]) -> Fields:
        """Return the same object with defaults for absent fields."""
        other = self.replaced()
        other._absent = absent
        return other

    def replaced(self, **values: Any) -> Fields:
        """Return the same object with some values replaced; both share the record of read fields."""
        other = Fields({**self._values, **values}, self.file, self._prefix, self._error_type)
        other._absent, other._read, other._objects = self._absent, self._read, self._objects
        return other

    def as_dict(self) -> dict[str, Any]:
        """Return a copy of the object."""
        return dict(self._values)

    def same_as(self, other: Fields) -> bool:
        """Return whether both are equal JSON objects."""
        try:
            return self._values == other._values
        except RecursionError as error:
            raise CheckpointError(f"{self.file}: field '{self._prefix}' is nested too deeply") from error

    def unread(self, harmless: Container[str] = ()) -> list[str]:
        """Return unread non-null fields, dotted if nested, except names in `harmless` at any depth."""
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
        """Warn about unread fields; see `unread`."""
        if names := self.unread(harmless):
            warn(UnusedFieldWarning(self.file, names, NOT_KNOWN))

    def skip(self, *names: str) -> None:
        """Mark fields, by default all of them, as read."""
        self._read.update(names or self._values)

    def skip_false(self, *names: str) -> None:
        """Mark the named fields that are false as read."""
        self._read.update(name for name in names if self._values.get(name) is False)

    def require(self, name: str, wanted: Any, *, because: str) -> None:
        """Refuse any value but `wanted`, null or an absent field."""
        value = self.raw(name)
        if value is not None and value != wanted:
            raise self.unsupported(name, f"{json.dumps(wanted)} or nothing: {because}")

    def _checked(self, name: str, default: Any, expected: str, fits: Callable[[Any], bool]) -> Any:
        """Return a value that `fits` accepts, or the default if the field is absent or null."""
        value = self.raw(name)
        if value is None and default is not REQUIRED:
            return default
        if value is None or not fits(value):
            raise self.error(name, expected)
        return value

    def check_version(self, name: str, version: int) -> None:
        """Refuse another format version."""
        if as_integer(self.given(name)) != version:
            raise self.error(name, f"{version}, the version that this specdec reads")

    def integer(
        self, name: str, *, minimum: int = 1, maximum: int | None = MAX_INT, default: Any = REQUIRED
    ) -> Any:
        """Return an integer in [minimum, maximum]."""

        def fits(value: Any) -> bool:
            number = as_integer(value)
            return number is not None and number >= minimum and (maximum is None or number <= maximum)

        value = self._checked(name, default, _whole(minimum, maximum), fits)
        return value if value is default else as_integer(value)

    def number(self, name: str, *, default: Any = REQUIRED, maximum: float = math.inf) -> float:
        """Return a finite number above 0, at most `maximum`."""
        expected = "a finite number above 0" + (f", at most {maximum:g}" if maximum < math.inf else "")
        return float(self._checked(name, default, expected, lambda x: is_finite(x) and 0 < x <= maximum))

    def amount(self, name: str, default: Any = REQUIRED, *, below: float = math.inf) -> Any:
        """Return a finite number, at least 0 and less than `below`."""
        expected = "a finite number, at least 0" + (f" and below {below:.0f}" if below < math.inf else "")
        return self._checked(name, default, expected, lambda x: is_finite(x) and 0 <= x < below)

    def boolean(self, name: str, *, default: Any = REQUIRED) -> Any:
        """Return true or false."""
        return self._checked(name, default, "true or false", lambda x: isinstance(x, bool))

    def text(self, name: str, *, default: Any = REQUIRED) -> Any:
        """Return a string."""
        return self._checked(name, default, "a string", lambda x: isinstance(x, str))

    def choice(self, name: str, choices: Mapping[str, str], *, default: Any = REQUIRED) -> str:
        """Return what `choices` maps the string to."""
        expected = "one of " + ", ".join(repr(choice) for choice in choices)
        value = self._checked(name, default, expected, lambda x: isinstance(x, str))
        if value not in choices:
            raise self.unsupported(name, expected)
        return choices[value]

    def object(self, name: str) -> Fields | None:
        """Return a nested object; None if absent, null or empty."""
        return None if self.raw(name) in (None, {}) else self.inner(name)

    def inner(self, name: str) -> Fields:
        """Return a nested object, which must be present."""
        value = self._checked(name, REQUIRED, "an object", lambda x: isinstance(x, Mapping))
        if name not in self._objects:
            self._objects[name] = Fields(value, self.file, f"{self._prefix}{name}.", self._error_type)
        return self._objects[name]

    def empty(self, name: str) -> Fields:
        """Return an empty nested object, whose messages name `name`."""
        return Fields({}, self.file, f"{self._prefix}{name}." if name else self._prefix, self._error_type)

    def items(self, name: str, expected: str = "a list") -> list[Any]:
        """Return a list."""
        return list(self._checked(name, REQUIRED, expected, lambda x: isinstance(x, list | tuple)))

    def inner_items(self, name: str) -> list[Fields]:
        """Return a list of objects."""
        items = enumerate(self.items(name))
        return [Fields(item, self.file, f"{self._prefix}{name}[{i}].", self._error_type) for i, item in items]

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        items = self.items(name)
        if not all(isinstance(item, str) for item in items):
            raise self.error(name, "a list of strings")
        return items

    def integers(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> list[int]:
        """Return a list of integers in [minimum, maximum]."""
        found = []
        for i, item in enumerate(self.items(name)):
            number = as_integer(item)
            if number is None or not minimum <= number <= maximum:
                raise self.error(f"{name}[{i}]", _whole(minimum, maximum), item)
            found.append(number)
        return found

    def numbers(
        self, name: str, length: int | None = None, expected: str = "a finite number above 0",
        fits: Callable[[Any], bool] = lambda item: item > 0,
    ) -> list[float]:  # fmt: skip
        """Return a list of `length` numbers that `fits` accepts; `expected` describes them."""
        items = self.items(name)
        if length is not None and len(items) != length:
            raise self.error(name, f"a list of {length} items, each {expected}")
        for i, item in enumerate(items):
            if not is_finite(item) or not fits(item):
                raise self.error(f"{name}[{i}]", expected, item)
        return [float(item) for item in items]

    def amounts(self, name: str) -> list[float]:
        """Return a list of finite numbers, at least 0 and below `MAX_TIME`."""
        return self.numbers(name, None, _TIME, lambda item: 0 <= item < MAX_TIME)

    def rows_of_amounts(self, name: str) -> list[list[float]]:
        """Return a list of lists of numbers as in `amounts`."""
        rows = {f"{name}[{i}]": row for i, row in enumerate(self.items(name))}
        inner = Fields(rows, self.file, self._prefix, self._error_type)
        return [inner.amounts(row) for row in rows]

    def token_ids(self, name: str, n_vocab: int, outside: list[str]) -> tuple[int, ...]:
        """Return the ids below `n_vocab` in a field such as ``eos_token_id``; report others in `outside`."""
        value = self.raw(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            raise self.error(name, f"a token id, or a list of ids, from 0 to {n_vocab - 1}")
        inside = [token for token in ids if 0 <= token < n_vocab]
        if len(inside) < len(ids):
            outside.append(f"'{self._prefix}{name}' is {as_json(value)}")
        return tuple(dict.fromkeys(inside))


def _whole(minimum: int, maximum: int | None) -> str:
    if maximum is None:
        return f"a whole number, at least {minimum}"
    return f"a whole number from {minimum} to {maximum}"


class MetadataFields(Fields):
    """Metadata of a GGUF file."""

    _noun = "metadata field"
