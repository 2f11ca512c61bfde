"""Shared parts of the verbs: help with examples, option values, JSON output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import click

from specdec.errors import shown
from specdec.fields import without_nan

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command."""

VERBS: Final = {
    "generate": "Continue a prompt and print only the new text.",
    "chat": "Chat with a model that has a chat template.",
    "serve": "Serve a model over the OpenAI and Anthropic APIs.",
    "bench": "Run a benchmark's questions with and without a draft.",
    "eval": "Evaluate a model with lm-evaluation-harness.",
    "compare": "Compare several drafts of one target.",
    "recommend": "Find compatible drafts for a target and recommend the fastest.",
    "measure": "Measure a draft's acceptance rate, cost and speed-up.",
    "tune": "Choose gamma for a pair on this machine.",
    "drafts": "List the draft names that --draft accepts.",
    "train": "Train a draft for a target.",
    "convert": "Convert a model to another file format.",
}
"""One-line help of each verb."""

EXIT_OK: Final = 0
EXIT_INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""

Function = TypeVar("Function", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """Format the examples of a help page so that click does not wrap them."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def verb(name: str, *lines: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorate a function as the command of a verb; its docstring is the help, `lines` are examples."""
    return click.command(name, epilog=examples(*lines), context_settings=CONTEXT)


def several(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Combine options into one decorator, in help order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


number = partial(click.option, type=int, metavar="N")
"""An integer option."""


def gamma_value(text: str) -> int | str:
    """Parse --gamma: an integer or "auto"."""
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise click.BadParameter(f"{shown(text)}; expected an integer or 'auto'") from None


def _list_of(number: Callable[[str], Any], expected: str) -> Callable[[str], list[Any]]:
    """Make a parser of comma-separated values."""

    def read(text: str) -> list[Any]:
        try:
            return [number(part) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(f"{shown(text)}; expected {expected}") from None

    return read


integers = _list_of(int, "integers such as 1,2,4")
numbers = _list_of(float, "numbers such as 0,0.7")


def json_line(value: Any) -> str:
    """Format a value as one line of ASCII JSON; numbers that are not finite become null."""
    return json.dumps(without_nan(value), allow_nan=False)


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
"""Option of each argument whose name differs."""


def by_option(message: str) -> str:
    """Replace the argument that starts an error message by its option."""
    found = re.match(r"(\w+)(?= is |: )", message)
    if found is None or found[1] not in OPTION_OF:
        return message
    return OPTION_OF[found[1]] + message[found.end() :]
