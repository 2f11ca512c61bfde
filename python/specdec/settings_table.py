"""Rows of the table of settings: dataclass fields that know their check, their help and where they apply.

The table itself is `specdec.DecodingOptions` with `specdec.Sampling`, which it extends: a field is a row.
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
    from typing import Optional as Unpack  # to be subscripted where types are read at run time

__all__ = [
    "DOORS", "Scope", "Setting", "Unpack", "check_settings", "choice", "flag", "integer", "number", "other",
    "table_of",
]  # fmt: skip

Scope: TypeAlias = Literal["text", "engine", "batch", "samples", "logits", "display"]
"""What a setting belongs to: one text, all texts of an engine, how texts are batched, how many samples there
are, whether logits are kept, or what the caller's terminal shows."""

DOORS: Final[Mapping[str, tuple[Scope, ...]]] = {
    "generate": ("text", "engine", "batch", "samples", "logits", "display"),
    "stream": ("text", "engine", "logits"),
    "agenerate": ("text", "engine", "batch", "samples"),
    "astream": ("text", "engine", "batch"),
    "submit": ("text", "samples"),
}
"""The functions that take settings as keyword arguments, and the scopes of those that each takes."""


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    default: Any
    """Of every function that takes the setting. A setting whose default is None may be None."""
    check: Callable[[str, Any], Any]
    """``check(name, value)`` returns the value as it is kept, or raises `InputError`."""
    scope: Scope = "text"
    value_type: type | None = None
    """The type of a flag's value on the command line: int, float or str. None: it is not a plain value."""
    help: str = ""
    """One line for the command line and for the description of the server's field."""
    flag: str = ""
    """The placeholder of the value in the command's help; empty where there is no such flag."""
    many: bool = False
    """Whether the value is a list: a flag that may be repeated."""
    served: tuple[float, float] | None = None
    """The least and the largest value that a server takes from its clients; None: it has no such field."""
    neutral: Any = None
    """The value that the core gets for None."""
    truncates: bool = False
    """Whether the setting drops tokens by their probability, which changes nothing of the argmax."""

    def row(self) -> Any:
        """The dataclass field of this row."""
        return field(default=self.default, metadata={"setting": self})


def number(default: float | None, expected: str, fits: Callable[[float], bool], **more: Any) -> Any:
    """A row whose value is a float for which `fits` is true."""
    expected += ", or None" if default is None else ""
    more["value_type"] = float
    return Setting(default, lambda name, x: check_number(name, x, expected, fits), **more).row()


def integer(
    default: int | None, low: int, high: int | None = None, *, optional: bool = False, **more: Any
) -> Any:
    """A row whose value is an int from `low` to `high`, or None if it is `optional` or None by default."""
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


def flag(**more: Any) -> Any:
    """A row whose value is a truth value, False by default."""
    return Setting(False, check_flag, **more).row()


def choice(default: str, words: tuple[str, ...], **more: Any) -> Any:
    """A row whose value is one of some words."""
    return Setting(default, lambda name, x: check_choice(name, x, words), value_type=str, **more).row()


def other(default: Any, check: Callable[[str, Any], Any] | None = None, **more: Any) -> Any:
    """A row of another kind with a check of its own; without one the class checks the value with others."""
    return Setting(default, check or (lambda name, x: x), **more).row()


def table_of(table: Any, door: str | None = None) -> Mapping[str, Setting]:
    """The rows of a dataclass by name: all, or those that one of `DOORS` takes."""
    return _rows(table, door)


@cache
def _rows(table: Any, door: str | None) -> Mapping[str, Setting]:
    rows: dict[str, Setting] = {
        row.name: row.metadata["setting"] for row in fields(table) if "setting" in row.metadata
    }
    return {name: row for name, row in rows.items() if door is None or row.scope in DOORS[door]}


def check_settings(given: Any) -> None:
    """Check every value of a frozen dataclass of rows; keep the checked values in place of those given."""
    for name, row in table_of(type(given)).items():
        value = getattr(given, name)
        if value is not row.default:
            object.__setattr__(given, name, row.check(name, value))
