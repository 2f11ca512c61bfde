"""`specdec train`: drafts for a target."""

from __future__ import annotations

import click

from specdec.commands.verb import CONTEXT, examples
from specdec.training.command import train_command

__all__ = ["command"]


@click.group(
    "train",
    context_settings=CONTEXT,
    no_args_is_help=False,
    epilog=examples(
        "specdec train draft --kind small --prompts prompts.txt --out my-draft --minutes 10",
        "specdec train draft --target path/to/model --kind heads --prompts chat.jsonl --out my-heads",
        "specdec train draft --help                  kinds of drafts and what can be set",
    ),
)
def command() -> None:
    """Train something: specdec train draft."""


@command.command(
    "draft",
    short_help="Train a draft for a target, from texts that they write themselves.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def draft(arguments: tuple[str, ...]) -> int:
    """Train a draft for a target; the arguments are read where the training is."""
    return train_command(arguments)
