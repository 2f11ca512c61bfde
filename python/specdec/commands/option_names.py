"""What arguments of functions are called on the command line, where the names differ."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["OPTION_OF", "by_option"]

OPTION_OF: Final = {
    "n": "--samples",
    "n_threads": "--threads",
    "n_slots": "--slots",
    "n_text": "--text-tokens",
    "max_bytes": "--cache-bytes",
    "n_waiting": "--max-waiting",
    "n_body_bytes": "--max-body-bytes",
    "n_new_tokens": "--max-tokens",
    "n_texts": "--max-n",
    "n_constraint_bytes": "--max-constraint-bytes",
    "n_connections": "--max-connections",
    "idle_s": "--idle-seconds",
    "event_s": "--stream-interval",
    "drain_s": "--drain-seconds",
    "schema": "--schema",
    "regex": "--regex",
    "grammar": "--grammar",
}
"""Options by the arguments that they become."""


def by_option(message: str) -> str:
    """An error about an argument, told of the option that gave it."""
    found = re.match(r"(\w+)(?= is |: )", message)
    if found is None or found[1] not in OPTION_OF:
        return message
    return OPTION_OF[found[1]] + message[found.end() :]
