"""Where in a JSON schema its fault is, which ``llguidance`` does not say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["place_of_fault"]

_MOST_S: Final = 1.0  # seconds in which parts of a schema are tried
_NO_SCHEMAS: Final = ("const", "default", "enum", "examples")
_SHARED: Final = ("$defs", "definitions")


def place_of_fault(schema: Any, error_of: Callable[[Any], str]) -> str:
    """The JSON pointer of the innermost part that has the error of the whole, as far as time allows.

    Parameters
    ----------
    schema : dict
        One that has an error.
    error_of : function
        The library's error of a schema; "" where it has none.
    """
    shared = {name: schema[name] for name in _SHARED if name in schema}
    wanted, until = error_of(schema), time.monotonic() + _MOST_S
    place, left = "", _parts(schema)
    while time.monotonic() < until and (tried := next(left, None)) is not None:
        names, part = tried
        if error_of(shared | part) == wanted:
            place += "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)
            left = _parts(part)
    return place


def _parts(schema: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """What may be schemas right within a schema, by their names: values, and what lists and maps hold."""
    for name, value in schema.items():
        if name in _NO_SCHEMAS or not isinstance(value, dict | list):
            continue
        if isinstance(value, dict):
            yield (name,), value
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (((name, str(key)), part) for key, part in inner if isinstance(part, dict))
