"""`specdec recommend`: which draft for a target."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from specdec.analysis.recommend import recommend_draft
from specdec.commands.compare_verb import drafts_by_name
from specdec.commands.decoding_options import TRUNCATIONS, setting_option, setting_options
from specdec.commands.given_models import open_draft, open_target
from specdec.commands.given_texts import given_prompts
from specdec.commands.measuring_options import (
    LINES,
    chosen,
    json_option,
    named,
    print_found,
    prompts_option,
    seconds_option,
    target_name_option,
)
from specdec.commands.model_options import format_options
from specdec.commands.verb import integers, verb

__all__ = ["command"]


@verb(
    "recommend",
    "specdec recommend embedded                                  what needs no model",
    "specdec recommend big path/to/small --prompts mine.txt",
    "specdec recommend big Qwen/Qwen3-0.6B copies=copy --temperature 0.7",
    "specdec recommend big path/to/small --json | jq .reason     the choice in a sentence",
)
@click.argument("target", metavar="TARGET")
@click.argument("drafts", metavar="[[NAME=]DRAFT...]", nargs=-1)
@format_options
@target_name_option
@prompts_option
@click.option(
    "--gammas", "--gamma", type=integers, metavar="N,N",
    help="Drafted tokens a round (default: 2, 4, 8 and each draft's own).",
)  # fmt: skip
@setting_option("temperature", "0")
@click.option(
    "--n-tokens", "--max-new-tokens", type=int, metavar="N",
    help="New tokens of each draft in each turn (default: 120).",
)  # fmt: skip
@click.option("--repeats", type=int, metavar="N", help="Turns (default: 3).")
@seconds_option
@setting_options(*TRUNCATIONS, "verify", "seed", "n_threads", verify="rejection", seed="0")
@json_option
def command(drafts: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
    """Say which drafts fit a target, by which way, what they give, what they take, and which to take.

    TARGET is a path or a hub name, or embedded. A DRAFT is what --draft takes elsewhere; a model may have
    another vocabulary than the target, and is then measured by each way that leads back. Without a DRAFT it
    measures what needs no model, and lists small public models with the target's vocabulary, by name. Rows
    are shown on standard error as they are measured; the tables come at the end, after --seconds, or with
    Ctrl-C.
    """
    target = open_target(given)
    texts = given_prompts((), prompts)
    openers = {
        name: partial(open_draft, text, target, given["draft_dtype"], given)
        for name, text in drafts_by_name(drafts).items()
    }
    target = named(target, given["target_name"])
    found = recommend_draft(target, openers or None, texts, **chosen(given) | LINES)
    return print_found(found, as_json)
