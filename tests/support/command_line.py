"""The command line, run in this process with a test's models instead of the ones it would load."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import specdec
from specdec.commands import given_models, side_by_side
from specdec.commands.program import EXIT_ERROR, main, program
from specdec.drafts import named

VERBS = program.list_commands(click.Context(program))


def run(
    *arguments: object, sent: bytes | str | None = None, color: bool = False, terminal: bool = False
) -> Result:
    """Run `specdec ARGUMENTS` with `sent` as standard input, in a terminal or not."""
    with pytest.MonkeyPatch.context() as patch:
        if terminal:
            patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
        return CliRunner().invoke(program, list(map(str, arguments)), input=sent, color=color)


def parse(arguments: list[str]) -> None:
    """Read a command line as the program does, without carrying it out."""
    command: Any = program
    context = program.make_context("specdec", list(arguments))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def fails(*arguments: str, status: int = 2, sent: bytes | str | None = None) -> str:
    """Check that a command fails with one line on standard error and no output; return the line."""
    done = run(*arguments, sent=sent)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (status, "", 1), done.output
    return done.stderr


def figure(output: str, name: str) -> str:
    """Return the value printed next to a label."""
    found = re.search(rf"^{re.escape(name)} +(.*)$", output, re.MULTILINE)
    assert found, f"no {name!r} in:\n{output}"
    return found[1]


def use_models(
    patch: pytest.MonkeyPatch, pair: tuple[specdec.Model, Any] | Callable[..., Any] | None = None, *,
    targets: Any = None, drafts: Any = None,
) -> None:  # fmt: skip
    """Replace the bundled pair and named models, given directly or by a function of their names."""
    if pair is not None:
        patch.setattr(given_models, "embedded_pair", pair if callable(pair) else lambda *_, **__: pair)
    if targets is not None:
        patch.setattr(
            given_models, "load", targets if callable(targets) else lambda name, dtype, **_: targets[name]
        )
    if drafts is not None:

        def open_draft(text: str, target: Any, *, dtype: Any = None) -> Any:
            return drafts[text] if text in drafts else named(text, target, dtype=dtype)

        patch.setattr(specdec.drafts, "named", drafts if callable(drafts) else open_draft)


def time_quickly(patch: pytest.MonkeyPatch) -> None:
    """Time two pairs of runs, on one thread, because test models are too small to gain from two."""
    patch.setenv("SPECDEC_NUM_THREADS", "1")
    patch.setattr(side_by_side, "_MOST_PAIRS", 2)


def ends_with_an_error(arguments: list[str]) -> bool:
    """Return whether the program, run in this process with its own error handling, reports failure."""
    return main(arguments) == EXIT_ERROR
