"""`specdec tune`: the gamma that pays."""

from __future__ import annotations

from typing import Any

import click

from specdec.analysis.tune import tune
from specdec.commands.decoding_options import TRUNCATIONS, setting_options
from specdec.commands.given_models import open_pair, open_target
from specdec.commands.given_texts import given_prompts
from specdec.commands.measuring_options import (
    chosen,
    json_option,
    name_options,
    named,
    print_tables,
    prompt_options,
)
from specdec.commands.model_options import model_options
from specdec.commands.verb import verb
from specdec.drafts.early_exit import EarlyExit
from specdec.errors import InputError
from specdec.models.model import Model

__all__ = ["command"]


@verb(
    "tune",
    "specdec tune                                         the pair in the package",
    "specdec tune --target big --draft small --prompts mine.txt --temperature 0.7",
    "specdec tune --target my-exits --draft exit          which layer should draft, and how far",
    "specdec tune --json | jq .gamma                      the number alone",
)
@prompt_options
@model_options
@name_options
@click.option("--max-gamma", type=int, metavar="N", help="The largest gamma looked at (default: 8).")
@click.option("--n-tokens", type=int, metavar="N", help="Tokens that the target generates (default: 400).")
@setting_options("temperature", *TRUNCATIONS, "seed", "n_threads", temperature="0", seed="0")
@json_option
def command(prompt: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> None:
    """Choose gamma, the drafted tokens a round, by what is measured on this machine.

    The acceptance rate, the cost of the draft and the time of verification say what each gamma gains; the
    best one is marked. Prompts that resemble your use give the gamma of your use. With --draft exit every
    layer at which the target may leave early is tried, and the best is marked.
    """
    texts = given_prompts(prompt, prompts)
    is_exit = given["draft"] == "exit"
    target, draft = _target_and_exits(given) if is_exit else open_pair(given)
    if is_exit and given["name"] is not None:
        raise InputError("--name is for one draft, and exits are several; expected none")
    pair = named(target, given["target_name"]), named(draft, given["name"])
    print_tables(tune(*pair, texts, **chosen(given)), as_json)


def _target_and_exits(given: dict[str, Any]) -> tuple[Model, type[EarlyExit]]:
    """The target, and all layers at which it may be left.

    Raises
    ------
    InputError
        A number format is given for the draft, which has no weights.
    """
    if given["draft_dtype"] is not None:
        raise InputError(
            f"--draft-dtype is {given['draft_dtype']}, but an exit has the weights of the target; "
            "expected --dtype"
        )
    return open_target(given), EarlyExit
