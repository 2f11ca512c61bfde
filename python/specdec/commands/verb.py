"""What the verbs have in common: help with examples, kinds of values, results as JSON."""

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
    "generate": "Continue a prompt and print the text alone.",
    "chat": "Talk with a model that has a chat template.",
    "serve": "Serve a model to programs that speak the OpenAI API.",
    "bench": "Answer the questions of a benchmark with and without a draft.",
    "eval": "Evaluate a model by lm-evaluation-harness.",
    "compare": "Compare several drafts of one target.",
    "recommend": "Recommend a draft for a target: which fit, and which is fastest.",
    "measure": "Measure how well a draft predicts, what it costs and what it gains.",
    "tune": "Choose gamma for a pair on this machine.",
    "drafts": "List the drafts that --draft takes by name.",
    "train": "Train a draft for a target.",
    "convert": "Write a model in another file format.",
}
"""One line of help for each verb."""

EXIT_OK: Final = 0
EXIT_INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""

Function = TypeVar("Function", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """Examples for the end of a help page, which is not to be wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def verb(name: str, *lines: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator: the function is the command of a verb; its docstring is the help, `lines` are examples."""
    return click.command(name, epilog=examples(*lines), context_settings=CONTEXT)


def several(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


number = partial(click.option, type=int, metavar="N")
"""An option whose value is a whole number."""


def gamma_value(text: str) -> int | str:
    """The value of --gamma: a whole number, or "auto"."""
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise click.BadParameter(f"{shown(text)} is no whole number and not 'auto'") from None


def _list_of(number: Callable[[str], Any], expected: str) -> Callable[[str], list[Any]]:
    """Values with commas."""

    def read(text: str) -> list[Any]:
        try:
            return [number(part) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(f"{shown(text)}; expected {expected}") from None

    return read


integers = _list_of(int, "whole numbers such as 1,2,4")
numbers = _list_of(float, "numbers such as 0,0.7")


def json_line(value: Any) -> str:
    """A value as one line of JSON, in ASCII; what is not finite becomes null, for JSON has no such number."""
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
"""Options by the arguments that they become."""


def by_option(message: str) -> str:
    """Return an error message with the option in place of its argument."""
    found = re.match(r"(\w+)(?= is |: )", message)
    if found is None or found[1] not in OPTION_OF:
        return message
    return OPTION_OF[found[1]] + message[found.end() :]
