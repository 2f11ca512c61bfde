"""The command line in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from specdec.commands.program import program


def command(*arguments: object) -> Result:
    """Run `specdec` with arguments: its exit code and what it printed."""
    return CliRunner().invoke(program, [str(argument) for argument in arguments])
