"""`specdec eval`: lm-evaluation-harness with specdec as its model."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from specdec.commands.verb import CONTEXT, examples, gamma_value
from specdec.errors import SpecdecError
from specdec.models.number_formats import DTYPES

__all__ = ["command", "harness_arguments"]

_OTHER_COMMANDS = ("ls", "validate")
"""Commands of the harness that evaluate nothing."""


@click.command(
    "eval",
    context_settings=CONTEXT | {"ignore_unknown_options": True},
    epilog=examples(
        "specdec eval --target big --draft small --tasks hellaswag,gsm8k --batch_size 16",
        "specdec eval --target big --draft copy --gamma auto --tasks humaneval --limit 20",
        "specdec eval --tasks my_task --include_path folder    the target in the package, plainly",
        "specdec eval ls tasks                                 what can be evaluated",
        "specdec eval -- --help                                the options of the harness",
    ),
)
@click.option(
    "--target", metavar="MODEL", default="embedded", help="Path or hub name (default: the package's)."
)
@click.option("--draft", metavar="DRAFT", help="What guesses ahead; specdec drafts lists names.")
@click.option("--dtype", type=click.Choice(DTYPES), metavar="FORMAT", help=f"{', '.join(DTYPES)}.")
@click.option("--draft-dtype", type=click.Choice(DTYPES), metavar="FORMAT", help="The same for the draft.")
@click.option("--gamma", type=gamma_value, metavar="N", help="Drafted tokens a round, or 'auto'.")
@click.argument("arguments", metavar="[HARNESS OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...], **given: Any) -> int:
    """Evaluate a model by the tasks of lm-evaluation-harness (pip install lm-eval jinja2).

    All other options are those of the harness, lm-eval; --model_args adds to what is said here. A draft
    changes no score, but the time that texts take.
    """
    from specdec.integrations.lm_eval import main as evaluate

    try:
        evaluate(harness_arguments(arguments, given))
    except SystemExit as end:
        if isinstance(end.__cause__, SpecdecError):
            raise end.__cause__ from None
        if isinstance(end.code, str):  # as Python would say it
            print(end.code, file=sys.stderr)
            return 2
        return end.code or 0
    return 0


def harness_arguments(arguments: tuple[str, ...], given: dict[str, Any]) -> list[str]:
    """What the harness is called with: its own arguments, behind the model."""
    if arguments[:1] and arguments[0] in _OTHER_COMMANDS:
        return list(arguments)
    own = arguments[1:] if arguments[:1] == ("run",) else arguments
    if "--help" in own or not own:
        return ["run", "--help"]
    model = {name: value for name, value in given.items() if value is not None}
    return ["run", "--model", "specdec", "--model_args", json.dumps(model), *own]
