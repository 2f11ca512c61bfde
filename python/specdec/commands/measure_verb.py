"""`specdec measure`: Tables 2 to 5 of the paper for a pair."""

from __future__ import annotations

from typing import Any

import click

from specdec.analysis.arguments import default_prompts
from specdec.analysis.measure import Timing, measure
from specdec.commands.decoding_options import TRUNCATIONS, setting_options
from specdec.commands.given_models import open_pair
from specdec.commands.given_texts import given_prompts
from specdec.commands.measuring_options import (
    LINES,
    chosen,
    json_option,
    name_options,
    named,
    print_found,
    prompt_options,
    seconds_option,
)
from specdec.commands.model_options import model_options
from specdec.commands.verb import integers, numbers, verb

__all__ = ["command"]


@verb(
    "measure",
    "specdec measure                                              the pair in the package",
    "specdec measure --target big --draft small --prompts mine.txt",
    "specdec measure --draft ngram:novels.txt --gammas 1,2,4 --temperatures 0,0.7",
    "specdec measure --no-timing --json > measured.json           acceptance alone",
)
@prompt_options
@model_options
@name_options
@click.option("--gammas", type=integers, metavar="N,N", help="Drafted tokens a round (default: 1 to 8).")
@click.option("--temperatures", type=numbers, metavar="T,T", help="Of target and draft (default: 0,1).")
@click.option("--leniences", type=numbers, metavar="L,L", help="1 is exact (default: 1,0.5,0.3,0.1).")
@click.option("--n-tokens", type=int, metavar="N", help="Tokens at each temperature (default: 2000).")
@click.option("--timing/--no-timing", default=None, help="Measure times too (default: yes).")
@click.option("--repeats", type=int, metavar="N", help="Timed runs of each kind (default: 5).")
@seconds_option
@setting_options(*TRUNCATIONS, "seed", "n_threads", seed="0")
@json_option
def command(
    prompt: tuple[str, ...], prompts: str | None, as_json: bool, repeats: int | None, **given: Any
) -> int:
    """Measure how well a draft guesses a target, what both cost and what speculation gains.

    The target continues the prompts; without any it continues some beginnings of English sentences. It prints
    alpha with its interval, the cost coefficient c, the time of a run by its positions, and speed-ups,
    predicted and measured, with their spread. Rows are shown on standard error as they are measured; the
    tables come at the end, after --seconds, or with Ctrl-C.
    """
    texts = given_prompts(prompt, prompts)
    target, draft = open_pair(given)
    texts = default_prompts(target) if texts is None else texts
    if repeats is not None and given["timing"] is not False:
        given["timing"] = Timing(repeats=repeats)
    pair = named(target, given["target_name"]), named(draft, given["name"])
    return print_found(measure(*pair, texts, **chosen(given) | LINES), as_json)
