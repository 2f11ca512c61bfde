"""The options of what measures a pair: prompts, sampling, output."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from shutil import get_terminal_size
from typing import Any, Final

import click

from specdec.analysis.measurement import Measurement
from specdec.analysis.recommend import DraftRecommendation
from specdec.commands.verb import EXIT_INTERRUPTED, EXIT_OK, json_line, several
from specdec.tables import Tabular

__all__ = [
    "LINES",
    "chosen",
    "json_option",
    "name_options",
    "named",
    "print_found",
    "print_tables",
    "prompt_options",
    "prompts_option",
    "seconds_option",
    "target_name_option",
]

prompts_option = click.option(
    "--prompts",
    metavar="FILE",
    help="A text file with a prompt a line, or the first turns of .jsonl; - is standard input.",
)
"""A file of prompts."""
prompt_options = several(click.argument("prompt", nargs=-1), prompts_option)
"""One prompt in words, or a file of prompts."""

target_name_option = click.option(
    "--target-name", metavar="NAME", help="What the target is called in the tables (default: after its file)."
)
"""A name for the target."""
name_options = several(
    click.option(
        "--name", metavar="NAME", help="What the draft is called (default: after its file or class)."
    ),
    target_name_option,
)
"""Names for draft and target."""

seconds_option = click.option(
    "--seconds", type=float, default=60.0, metavar="S", help="How long to measure.", show_default=True
)
"""A limit of time."""

json_option = click.option("--json", "as_json", is_flag=True, help="One object of JSON instead of tables.")
"""JSON instead of tables."""


def _shows_progress() -> bool:
    """Whether a progress bar is shown: to somebody who looks, where tqdm is installed."""
    return sys.stderr is not None and sys.stderr.isatty() and find_spec("tqdm") is not None


def print_tables(found: Tabular, as_json: bool) -> None:
    """Print what was measured, as tables that fit the terminal or as one object of JSON."""
    if as_json:
        print(json_line(found.to_dict()))
    else:
        print(found.plain_text(get_terminal_size().columns if sys.stdout.isatty() else None))


def _print_line(line: str) -> None:
    """Print a measured row on standard error: standard output has the tables."""
    click.echo(line, err=True)


LINES: Final[dict[str, Any]] = {"progress": False, "say": _print_line}
"""Arguments with which rows are printed as they are measured, in place of a progress bar."""


def print_found(found: Measurement | DraftRecommendation, as_json: bool) -> int:
    """Print what was measured, until Ctrl-C if it was pressed; return the exit status."""
    print_tables(found, as_json)
    return EXIT_INTERRUPTED if found.stopped.startswith("interrupted") else EXIT_OK


def chosen(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, without those of models."""
    models = ("target", "draft", "dtype", "draft_dtype", "src_lang", "tgt_lang", "name", "target_name")
    found = {name: value for name, value in given.items() if name not in models and value is not None}
    return found | {"progress": _shows_progress()}


def named(model: Any, name: str | None) -> Any:
    """Give a model its name for tables, if there is one."""
    return model if name is None or model is None else {name: model}
