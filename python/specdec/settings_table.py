"""Rows of the settings table: dataclass fields with their check, help and scope.

The table itself is `specdec.DecodingOptions`, which extends `specdec.Sampling`: each field is a row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdec.checks import as_integer, check_choice, check_flag, check_number
from specdec.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing import Optional as Unpack  # subscriptable at run time

__all__ = [
    "DOORS", "Scope", "Setting", "Unpack", "check_settings", "choice", "flag", "integer", "number", "other",
    "table_of",
]  # fmt: skip

Scope: TypeAlias = Literal["text", "engine", "batch", "samples", "logits", "display"]
"""Scope of a setting: one text, all texts of an engine, batching, the number of samples, kept logits, or the
terminal."""

DOORS: Final[Mapping[str, tuple[Scope, ...]]] = {
    "generate": ("text", "engine", "batch", "samples", "logits", "display"),
    "stream": ("text", "engine", "logits"),
    "agenerate": ("text", "engine", "batch", "samples"),
    "astream": ("text", "engine", "batch"),
    "submit": ("text", "samples"),
}
"""Functions that take settings as keyword arguments, with the scopes that each accepts."""


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    default: Any
    """Default in every function. A setting whose default is None may be None."""
    check: Callable[[str, Any], Any]
    """``check(name, value)`` returns the validated value, or raises `InputError`."""
    scope: Scope = "text"
    value_type: type | None = None
    """Type of a flag's value on the command line: int, float or str. None: not a plain value."""
    help: str = ""
    """One line for the command line and the server's field description."""
    flag: str = ""
    """Placeholder of the value in the command's help; empty without a flag."""
    many: bool = False
    """Whether the value is a list: a flag that may be repeated."""
    served: tuple[float, float] | None = None
    """(smallest, largest) value that a server accepts from clients; None: no such field."""
    neutral: Any = None
    """Value passed to the core for None."""
    truncates: bool = False
    """Whether the setting drops tokens by their probability, which does not affect the argmax."""

    def row(self) -> Any:
        """Return the dataclass field of this row."""
        return field(default=self.default, metadata={"setting": self})


def number(default: float | None, expected: str, fits: Callable[[float], bool], **more: Any) -> Any:
    """Make a row whose value is a float for which `fits` is true."""
    expected += ", or None" if default is None else ""
    more["value_type"] = float
    return Setting(default, lambda name, x: check_number(name, x, expected, fits), **more).row()


def integer(
    default: int | None, low: int, high: int | None = None, *, optional: bool = False, **more: Any
) -> Any:
    """Make a row whose value is an int from `low` to `high`, or None if `optional` or the default."""
    optional = optional or default is None
    expected = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
    expected += ", or None" if optional else ""

    def check(name: str, value: Any) -> int | None:
        if value is None and optional:
            return None
        found = as_integer(value)
        if found is None or found < low or (high is not None and found > high):
            raise InputError.of(name, value, expected)
        return found

    return Setting(default, check, value_type=int, **more).row()


def flag(default: bool = False, **more: Any) -> Any:
    """Make a row whose value is a bool."""
    return Setting(default, check_flag, **more).row()


def choice(default: str, words: tuple[str, ...], **more: Any) -> Any:
    """Make a row whose value is one of some words."""
    return Setting(default, lambda name, x: check_choice(name, x, words), value_type=str, **more).row()


def other(default: Any, check: Callable[[str, Any], Any] | None = None, **more: Any) -> Any:
    """Make a row with a custom check; without one the class checks the value together with others."""
    return Setting(default, check or (lambda name, x: x), **more).row()


def table_of(table: Any, door: str | None = None) -> Mapping[str, Setting]:
    """Return the rows of a dataclass by name: all, or those that one of `DOORS` accepts."""
    return _rows(table, door)


@cache
def _rows(table: Any, door: str | None) -> Mapping[str, Setting]:
    rows: dict[str, Setting] = {
        row.name: row.metadata["setting"] for row in fields(table) if "setting" in row.metadata
    }
    return {name: row for name, row in rows.items() if door is None or row.scope in DOORS[door]}


def check_settings(given: Any) -> None:
    """Validate every value of a frozen dataclass of rows, and replace the values by the validated ones."""
    for name, row in table_of(type(given)).items():
        value = getattr(given, name)
        if value is not row.default:
            object.__setattr__(given, name, row.check(name, value))
