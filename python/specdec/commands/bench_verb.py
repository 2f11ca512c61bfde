"""`specdec bench`: the questions of a benchmark, with and without a draft."""

from __future__ import annotations

from typing import Any

import click

from specdec.analysis.bench import bench
from specdec.analysis.questions import read_questions
from specdec.commands.decoding_options import TRUNCATIONS, setting_option, setting_options
from specdec.commands.given_models import open_named_or_pair
from specdec.commands.measuring_options import chosen, json_option, name_options, named, print_tables
from specdec.commands.model_options import model_options
from specdec.commands.verb import verb

__all__ = ["command"]


@verb(
    "bench",
    "specdec bench question.jsonl                                  the pair in the package",
    "specdec bench question.jsonl --target big --draft small --answers answers",
    "specdec bench qualitative.parquet --draft copy --limit 5 --category coding",
    "specdec bench prompts.jsonl --target big --gamma auto --draft small --json > bench.json",
)
@click.argument("questions", metavar="FILE")
@model_options
@name_options
@click.option(
    "--category", "categories", multiple=True, metavar="NAME", help="Of this category alone; repeatable."
)
@click.option("--limit", type=int, metavar="N", help="The first so many questions of each category.")
@setting_option("gamma")
@setting_option("max_new_tokens", "1024", "Of each turn")
@setting_options("temperature", *TRUNCATIONS, "verify", "stop", temperature="0", verify="rejection")
@click.option("--ignore-eos", is_flag=True, help="Go on behind an end of text: every answer has N tokens.")
@setting_option("seed", "0", "Of the first repetition")
@click.option("--repeats", type=int, metavar="N", help="How often all questions are answered (default: 3).")
@click.option("--plain/--no-plain", default=None, help="Answer without the draft too (default: yes).")
@click.option(
    "--chat/--no-chat", default=None, help="Through the chat template (default: where there is one)."
)
@click.option(
    "--too-long", type=click.Choice(("error", "skip")), help="Questions that do not fit (default: error)."
)
@click.option(
    "--answers", metavar="DIR", help="Keep the answers, as Spec-Bench has them; an interrupted run goes on."
)
@setting_option("n_threads")
@json_option
def command(
    questions: str,
    as_json: bool,
    categories: tuple[str, ...],
    limit: int | None,
    stop: tuple[str, ...],
    **given: Any,
) -> None:
    """Answer the questions of a benchmark with and without a draft, and count by category.

    FILE is Spec-Bench's question.jsonl, a file of SPEED-Bench, or any JSONL of prompts: a text, or an object
    with turns, prompt, messages or question, a line. It prints tokens per second, the speed-up with its
    spread, alpha, and vLLM's mean_acceptance_length and draft_acceptance_rate. The answers in DIR are in
    Spec-Bench's format.
    """
    target, draft = open_named_or_pair(given)
    target, draft = named(target, given["target_name"]), named(draft, given["name"])
    given["stop"] = list(stop) or None
    asked = read_questions(questions, categories=categories or None, limit=limit)
    found = bench(target, draft, asked, **chosen(given))
    print_tables(found, as_json)
