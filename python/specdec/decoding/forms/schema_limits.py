"""What a form may cost; JSON schemas that ``llguidance`` would compile or write for ever are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from specdec.errors import FormError, shown

__all__ = ["LIBRARY_LIMITS", "check_joined", "check_separators"]

# Bounds of the library, in its units: building a grammar takes some seconds at most, the states of its lexer
# some hundred megabytes. They say little about time, which mask_time.py bounds.
LIBRARY_LIMITS: Final = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 20_000,
    "verbose_errors": False,
}

_MOST_JOINED: Final = 16  # patterns that a text has to match at once: time doubles with each

# In a regular expression: white space any number of times.
_SPACE: Final = re.compile(r"(\\[snrt]| |\[( |\\[snrt]|[\n\r\t])+\])([*+]|\{\d+,\})")


def check_joined(schema: str) -> None:
    """Refuse what the library would compile for ever: patterns joined by ``allOf``."""
    patterns: set[str] = set()
    n_entries = 0
    for part in _objects(schema):
        patterns |= {str(part[name]) for name in ("pattern", "format") if name in part}
        n_entries += len(part["allOf"]) if isinstance(part.get("allOf"), list) else 0
    n_joined = min(len(patterns), n_entries)
    if n_joined > _MOST_JOINED:
        raise FormError(f"schema: allOf may join {n_joined} patterns; expected at most {_MOST_JOINED}")


def check_separators(schema: str) -> None:
    """Refuse separators of JSON that may have no end: the library would write them for ever."""
    for part in _objects(schema):
        given = part.get("x-guidance")
        for name in ("item_separator", "key_separator", "whitespace_pattern"):
            pattern = given.get(name) if isinstance(given, dict) else None
            if isinstance(pattern, str) and re.search(r"[*+]|\{\d*,\}", _SPACE.sub("", pattern)):
                raise FormError(
                    f"schema: x-guidance.{name} is {shown(pattern)}; expected nothing but white space "
                    "any number of times"
                )


def _objects(schema: str) -> Iterator[dict[str, Any]]:
    """All objects within a schema."""
    left = [json.loads(schema)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part
