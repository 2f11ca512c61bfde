"""`specdec compare`: several drafts of one target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from specdec.analysis.arguments import default_prompts, short_names
from specdec.analysis.compare import compare
from specdec.commands.decoding_options import TRUNCATIONS, setting_options
from specdec.commands.given_models import open_draft, open_target
from specdec.commands.given_texts import given_prompts
from specdec.commands.measuring_options import (
    chosen,
    json_option,
    named,
    print_tables,
    prompts_option,
    target_name_option,
)
from specdec.commands.model_options import target_options
from specdec.commands.verb import integers, numbers, verb

__all__ = ["command", "drafts_by_name"]


@verb(
    "compare",
    "specdec compare embedded copy lookahead:2,2                  for the target in the package",
    "specdec compare --target big small=path/to/small copies=copy --prompts mine.txt",
    "specdec compare --target big both=ensemble:copy+path/to/small small=path/to/small --gammas 2,4",
)
@click.argument("drafts", metavar="[NAME=]DRAFT...", nargs=-1, required=True)
@target_options
@target_name_option
@prompts_option
@click.option("--temperatures", type=numbers, metavar="T,T", help="Of target and drafts (default: 0,1).")
@click.option(
    "--gammas", type=integers, metavar="N,N", help="Drafted tokens a round (default: each draft's own)."
)
@click.option(
    "--n-tokens", type=int, metavar="N", help="New tokens of each draft in each turn (default: 400)."
)
@click.option("--repeats", type=int, metavar="N", help="Turns (default: 5).")
@click.option("--timing/--no-timing", default=None, help="Measure times too (default: yes).")
@setting_options(*TRUNCATIONS, "verify", "seed", "n_threads", verify="rejection", seed="0")
@json_option
def command(drafts: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> None:
    """Compare drafts of any kind for one target, by running them in turns on the same prompts.

    A DRAFT is what --draft takes elsewhere: a name (specdec drafts lists them), a path or a hub name. In the
    tables it is called NAME, or as it was given, a path by its last folder. One table has acceptance, tokens
    per run of the target, costs and speed-ups with their spread; others have them by position and by prompt.
    """
    target = open_target(given)
    texts = given_prompts((), prompts)
    opened = {name: open_draft(text, target, None, given) for name, text in drafts_by_name(drafts).items()}
    texts = default_prompts(target) if texts is None else texts
    found = compare(named(target, given["target_name"]), opened, texts, **chosen(given))
    print_tables(found, as_json)


def drafts_by_name(given: Sequence[str]) -> dict[str, str]:
    """The drafts of a command line by their names in tables.

    Raises
    ------
    UsageError
        Two drafts have one name, or a name or a draft is empty.
    """
    found: dict[str, str] = {}
    unnamed = [text for text in given if "=" not in text]
    short = dict(zip(unnamed, short_names(unnamed), strict=True))
    for text in given:
        name, equals, draft = text.partition("=")
        name, draft = (name, draft) if equals else (short[text], text)
        if not name or not draft:
            raise click.UsageError(f"{text!r} is no draft; expected NAME=DRAFT or DRAFT")
        if name in found:
            raise click.UsageError(
                f"two drafts are called {name!r}; expected another name for each: NAME=DRAFT"
            )
        found[name] = draft
    return found
