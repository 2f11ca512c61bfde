"""The `specdec` program: verb dispatch, error reporting and exit statuses."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import shell_complete

from specdec.commands.verb import CONTEXT, EXIT_INTERRUPTED, EXIT_OK, VERBS, by_option, examples
from specdec.errors import SpecdecError, printable

PROMPT_VERB: Final = "prompt-alone"
"""The implicit verb of a command line that names none: `specdec "Once upon a time"`."""

EXIT_ERROR, EXIT_NO_READER = 2, 141
_MODULES: Final = {
    **dict.fromkeys(("bench", "compare", "measure", "recommend", "tune"), "measuring_verbs"),
    **dict.fromkeys(("convert", "drafts", "eval", "train"), "tool_verbs"),
}
"""Modules that hold several verbs."""
_COMPLETION: Final = "_SPECDEC_COMPLETE"
_SIMILAR: Final = 0.8
"""Minimum similarity (0 to 1) at which a word counts as a misspelled verb."""


class Program(click.Group):
    """Command group that imports verbs lazily and treats a command line without a verb as a prompt."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in help order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb of this name."""
        if cmd_name == PROMPT_VERB:
            return prompt_command()
        if cmd_name not in VERBS:
            return None
        module = import_module(f"specdec.commands.{_MODULES.get(cmd_name, f'{cmd_name}_verb')}")
        command: click.Command = getattr(module, f"{cmd_name}_verb")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without a verb all of them belong to the prompt."""
        if not args and ctx.resilient_parsing:  # shell completion
            return super().parse_args(ctx, args)
        if args and not ctx.resilient_parsing and (meant := _meant_by(args)):
            raise click.UsageError(
                f"there is no verb {args[0]!r}; did you mean specdec {meant}? To use it as a prompt, put two "
                f"dashes before it: specdec -- {shlex.join(args)}"
            )
        return super().parse_args(ctx, args if args and args[0] in VERBS else [PROMPT_VERB, *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete verbs, and the options of a command line without a verb."""
        return super().shell_complete(ctx, incomplete) + prompt_command().shell_complete(ctx, incomplete)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage with and without a verb."""
        formatter.write_usage("specdec", "[OPTIONS] [PROMPT]...")
        formatter.write_usage("specdec", "VERB [OPTIONS] ...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, then the options of a command line without one."""
        with formatter.section("Verbs (specdec VERB --help describes each)"):
            formatter.write_dl(list(VERBS.items()))
        prompt_command().format_options(ctx, formatter)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run like any click command, with the exit statuses of `specdec.commands.program.main`."""
        status = _status(list(sys.argv[1:] if args is None else args))
        if standalone_mode:
            sys.exit(status)
        return status


def prompt_command() -> click.Command:
    """Import and return the command for a command line without a verb."""
    command: click.Command = import_module("specdec.commands.prompt_command").command
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments, by default those of the process.

    Returns
    -------
    int
        Exit status: 0 on success; 1 if outputs differ that must be identical (a bug in specdec); 2 on bad
        input; 130 on Ctrl-C; 141 if standard output was closed.
    """
    return int(program.main(argv, standalone_mode=False))


def _status(given: list[str]) -> int:
    if instruction := os.environ.get(_COMPLETION):
        return shell_complete(program, {}, "specdec", _COMPLETION, instruction)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # do not fail on characters the terminal lacks
    name, hint = _name(given), ""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            with program.make_context("specdec", given) as context:
                status = program.invoke(context)
        sys.stdout.flush()
        return EXIT_OK if status is None else int(status)
    except click.exceptions.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (such as head) exited: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    except click.ClickException as error:
        message, hint = error.format_message(), _hint(name, given, error)
    except (SpecdecError, OSError) as error:
        message = by_option(str(error))
    except MemoryError:
        message = "out of memory"
    print(f"{name}: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)
    return EXIT_ERROR


def _name(given: Sequence[str]) -> str:
    """Return the program and verb as messages name them."""
    words = ["specdec", *given[:1]] if given and given[0] in VERBS else ["specdec"]
    return " ".join([*words, "draft"] if given[:2] == ["train", "draft"] else words)


def _meant_by(given: Sequence[str]) -> str:
    """Return the verb that a misspelled first word probably means; "" for a prompt."""
    first, *rest = given
    if first == "help" and (not rest or rest[0] in VERBS):
        return " ".join([*rest[:1], "--help"])
    if first.startswith(tuple(VERBS)) or " " in first:  # a verb, its inflection ("measured by"), or prose
        return ""
    return next(iter(get_close_matches(first, VERBS, 1, _SIMILAR)), "")


def _hint(name: str, given: Sequence[str], error: click.ClickException) -> str:
    """Return advice for a command line that cannot be parsed."""
    hint = f"Try {name} --help."
    if _may_be_prose(given, error):
        prompt = shlex.join(given)
        hint += f" To use {given[0]!r} as the start of a prompt, put two dashes first: specdec -- {prompt}"
    return hint


def _may_be_prose(given: Sequence[str], error: click.ClickException) -> bool:
    """Return whether words after a verb that takes none may be a prompt."""
    if len(given) < 2 or given[0] not in VERBS or given[1].startswith("-"):
        return False
    if isinstance(error, click.NoSuchOption | click.BadParameter):
        return False
    command = program.get_command(click.Context(program), given[0])
    return command is not None and all(parameter.nargs != -1 for parameter in command.params)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning on one line, without its source location."""
    print(f"specdec: warning: {' '.join(str(message).split())}", file=sys.stderr)


program = Program(
    "specdec",
    help="Exact speculative decoding on CPUs. Given only a prompt, decode it with and without a draft: show "
    "each round as in Figure 1 of arXiv 2211.17192, then the text, then statistics of both runs. "
    "Verbs do everything else.",
    epilog=examples(
        'specdec "Once upon a time"                      the bundled pair',
        "specdec --target big --draft small A ship       your own pair: paths or hub names",
        "echo Once upon a time | specdec generate        prompt from a pipe, text only",
        "specdec generate --draft prompt-lookup --json Tell me    another draft; JSON output",
        "specdec chat --target model --draft small       a conversation",
        "specdec -- train of thought                     a prompt that starts with a verb",
    )
    + '\n\nShell completion: add eval "$(_SPECDEC_COMPLETE=bash_source specdec)" to .bashrc, or use '
    "zsh_source or fish_source.",
    context_settings=CONTEXT,
)
"""Entry point of the `specdec` command."""
