"""The verbs that measure: `measure`, `compare`, `tune`, `bench` and `recommend`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from inspect import signature
from shutil import get_terminal_size
from typing import Any, Final

import click

from specdec.analysis.arguments import short_names
from specdec.analysis.bench import bench
from specdec.analysis.compare import compare, tune
from specdec.analysis.measure import Timing, measure
from specdec.analysis.questions import read_questions
from specdec.analysis.recommend import recommend_draft
from specdec.commands.decoding_options import setting_option, setting_options
from specdec.commands.given_models import (
    format_options,
    model_options,
    open_draft,
    open_pair,
    open_target,
    target_options,
)
from specdec.commands.given_texts import given_prompts
from specdec.commands.verb import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    Function,
    integers,
    json_line,
    number,
    numbers,
    several,
    verb,
)
from specdec.drafts.self_drafts import EarlyExit
from specdec.errors import InputError
from specdec.verification.sampling import TRUNCATIONS

_prompts = click.option(
    "--prompts",
    metavar="FILE",
    help="A text file with a prompt a line, or the first turns of .jsonl; - is standard input.",
)
_prompt = several(click.argument("prompt", nargs=-1), _prompts)
_target_name = click.option(
    "--target-name", metavar="NAME", help="What the target is called in the tables (default: after its file)."
)
_names = several(
    click.option("--name", metavar="NAME", help="The draft's name (default: after its file or class)."),
    _target_name,
)
_seconds = number("--seconds", type=float, default=60.0, metavar="S", help="How long.", show_default=True)
_drawn = setting_options(*TRUNCATIONS, "seed", "n_threads", seed="0")
_judged = several(setting_option("verify", "rejection"), _drawn)
_json = click.option("--json", "as_json", is_flag=True, help="One object of JSON instead of tables.")

_LISTS: Final[dict[str, Any]] = {"gammas": integers, "temperatures": numbers, "leniences": numbers}
_GAMMAS, _TEMPERATURES, _TIMING = "Drafted tokens a round", "Of target and drafts", "Measure times too"
_LINES: Final[dict[str, Any]] = {"progress": False, "say": partial(click.echo, err=True)}
"""Arguments with which rows are printed as they are measured, in place of a progress bar."""


def _parameters(function: Callable[..., Any], **said: str) -> Callable[[Function], Function]:
    """Options for parameters of a function: what each is, and its default."""
    options = []
    for name, text in said.items():
        default, flag = signature(function).parameters[name].default, f"--{name.replace('_', '-')}"
        how = {"type": _LISTS.get(name, int), "metavar": "N,N" if name in _LISTS else "N"}
        if isinstance(default, bool):
            default, flag, how = "yes" if default else "no", f"{flag}/--no-{flag[2:]}", {"default": None}
        elif isinstance(default, tuple):
            default = ",".join(f"{one:g}" for one in default)
        text += "" if default is None else f" (default: {default})"
        options.append(click.option(flag, help=f"{text}.", **how))
    return several(*options)


def _print(found: Any, as_json: bool) -> int:
    """Print what was found, as tables that fit the terminal or as one object of JSON; return the status."""
    if as_json:
        print(json_line(found.to_dict()))
    else:
        print(found.plain_text(get_terminal_size().columns if sys.stdout.isatty() else None))
    return EXIT_INTERRUPTED if getattr(found, "stopped", "").startswith("interrupted") else EXIT_OK


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, without those of models; a progress bar for somebody who looks."""
    models = ("target", "draft", "dtype", "draft_dtype", "src_lang", "tgt_lang", "name", "target_name")
    found = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if name not in models and value not in (None, ())
    }
    looks = sys.stderr is not None and sys.stderr.isatty() and find_spec("tqdm") is not None
    return found | {"progress": looks}


def _named(given: dict[str, Any], target: Any, draft: Any = None) -> tuple[Any, Any]:
    """Target and draft, each with its name for tables if it is given one."""
    pairs = ((given["target_name"], target), (given.get("name"), draft))
    named = [one if name is None or one is None else {name: one} for name, one in pairs]
    return named[0], named[1]


@verb(
    "measure",
    "specdec measure                                              the pair in the package",
    "specdec measure --target big --draft small --prompts mine.txt",
    "specdec measure --draft ngram:novels.txt --gammas 1,2,4 --temperatures 0,0.7",
    "specdec measure --no-timing --json > measured.json           acceptance alone",
)
@_prompt
@model_options
@_names
@_parameters(
    measure, gammas=_GAMMAS, temperatures=_TEMPERATURES, leniences="1 is exact", timing=_TIMING,
    n_tokens="Tokens at each temperature",
)  # fmt: skip
@_parameters(Timing, repeats="Timed runs of each kind")
@_seconds
@_drawn
@_json
def measure_verb(
    prompt: tuple[str, ...], prompts: str | None, as_json: bool, repeats: int | None, **given: Any
) -> int:
    """Measure how well a draft predicts a target, what both cost and what speculation gains.

    The target continues the prompts; by default a few openings of English sentences. It prints
    alpha with its interval, the cost coefficient c, the time of a run by its positions, and speed-ups,
    predicted and measured, with their spread. Rows are shown on standard error as they are measured; the
    tables come at the end, after --seconds, or with Ctrl-C.
    """
    texts = given_prompts(prompt, prompts)
    target, draft = open_pair(given)
    if repeats is not None and given["timing"] is not False:
        given["timing"] = Timing(repeats=repeats)
    found = measure(*_named(given, target, draft), texts, **_chosen(given) | _LINES)
    return _print(found, as_json)


@verb(
    "compare",
    "specdec compare embedded copy lookahead:2,2                  for the target in the package",
    "specdec compare --target big small=path/to/small copies=prompt-lookup --prompts mine.txt",
    "specdec compare --target big both=ensemble:prompt-lookup+path/to/small small=path/to/small --gammas 2,4",
)
@click.argument("drafts", metavar="[NAME=]DRAFT...", nargs=-1, required=True)
@target_options
@_target_name
@_prompts
@_parameters(
    compare, temperatures=_TEMPERATURES, timing=_TIMING, gammas=f"{_GAMMAS} (default: each draft's own)",
    n_tokens="New tokens of each draft in each turn", repeats="Turns",
)  # fmt: skip
@_judged
@_json
def compare_verb(drafts: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
    """Compare drafts of any kind for one target, by running them in turns on the same prompts.

    A DRAFT is what --draft takes elsewhere: a name (specdec drafts lists them), a path or a hub name. In the
    tables it is called NAME, or as it was given, a path by its last folder. One table has acceptance, tokens
    per run of the target, costs and speed-ups with their spread; others have them by position and by prompt.
    """
    target = open_target(given)
    texts = given_prompts((), prompts)
    opened = {name: open_draft(text, target, None, given) for name, text in _drafts_by_name(drafts).items()}
    return _print(compare(_named(given, target)[0], opened, texts, **_chosen(given)), as_json)


def _drafts_by_name(given: Sequence[str]) -> dict[str, str]:
    """The drafts of a command line by their names in tables."""
    found: dict[str, str] = {}
    unnamed = [text for text in given if "=" not in text]
    short = dict(zip(unnamed, short_names(unnamed), strict=True))
    for text in given:
        name, equals, draft = text.partition("=")
        name, draft = (name, draft) if equals else (short[text], text)
        if not name or not draft:
            raise click.UsageError(f"{text!r} is no draft; expected NAME=DRAFT or DRAFT")
        if name in found:
            raise click.UsageError(f"two drafts are called {name!r}; expected NAME=DRAFT with other names")
        found[name] = draft
    return found


@verb(
    "tune",
    "specdec tune                                         the pair in the package",
    "specdec tune --target big --draft small --prompts mine.txt --temperature 0.7",
    "specdec tune --target my-exits --draft early-exit          which layer should draft, and how far",
    "specdec tune --json | jq .gamma                      the number alone",
)
@_prompt
@model_options
@_names
@_parameters(tune, max_gamma="The largest gamma looked at", n_tokens="Tokens that the target generates")
@setting_option("temperature", "0")
@_drawn
@_json
def tune_verb(prompt: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
    """Choose gamma, the drafted tokens a round, by what is measured on this machine.

    The acceptance rate, the cost of the draft and the time of verification say what each gamma gains; the
    best one is marked. Prompts that resemble your use give the gamma of your use. With --draft early-exit,
    try every layer at which the target may exit, and mark the best.
    """
    texts = given_prompts(prompt, prompts)
    target, draft = _target_and_exits(given) if given["draft"] == "early-exit" else open_pair(given)
    return _print(tune(*_named(given, target, draft), texts, **_chosen(given)), as_json)


def _target_and_exits(given: dict[str, Any]) -> tuple[Any, Any]:
    """The target, and all layers at which it may be left."""
    if given["draft_dtype"] is not None:
        found = f"--draft-dtype is {given['draft_dtype']}, but an exit has the weights of the target"
        raise InputError(f"{found}; expected --dtype")
    if given["name"] is not None:
        raise InputError("--name is for one draft, and exits are several; expected none")
    return open_target(given), EarlyExit


@verb(
    "bench",
    "specdec bench question.jsonl                                  the pair in the package",
    "specdec bench question.jsonl --target big --draft small --answers answers",
    "specdec bench qualitative.parquet --draft prompt-lookup --limit 5 --category coding",
    "specdec bench prompts.jsonl --target big --gamma auto --draft small --json > bench.json",
)
@click.argument("questions", metavar="FILE")
@model_options
@_names
@click.option("--category", "categories", multiple=True, metavar="NAME", help="This alone; repeatable.")
@number("--limit", help="The first so many questions of each category.")
@setting_option("gamma")
@setting_option("max_new_tokens", "1024", "Of each turn")
@setting_options("temperature", *TRUNCATIONS, "verify", "stop", temperature="0", verify="rejection")
@click.option("--ignore-eos", is_flag=True, help="Continue after an end of text: every answer has N tokens.")
@setting_option("seed", "0", "Of the first repetition")
@_parameters(bench, repeats="How often all questions are answered", plain="Answer without the draft too")
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
@_json
def bench_verb(
    questions: str, as_json: bool, categories: tuple[str, ...], limit: int | None, **given: Any
) -> int:
    """Answer the questions of a benchmark with and without a draft, and count by category.

    FILE is Spec-Bench's question.jsonl, a file of SPEED-Bench, or any JSONL of prompts: a text, or an object
    with turns, prompt, messages or question, a line. It prints tokens per second, the speed-up with its
    spread, alpha, and vLLM's mean_acceptance_length and draft_acceptance_rate. The answers in DIR are in
    Spec-Bench's format.
    """
    pair = _named(given, *open_pair(given, optional=True))
    asked = read_questions(questions, categories=categories or None, limit=limit)
    return _print(bench(*pair, asked, **_chosen(given)), as_json)


@verb(
    "recommend",
    "specdec recommend embedded                                  what needs no model",
    "specdec recommend big path/to/small --prompts mine.txt",
    "specdec recommend big Qwen/Qwen3-0.6B copies=prompt-lookup --temperature 0.7",
    "specdec recommend big path/to/small --json | jq .reason     the choice in a sentence",
)
@click.argument("target", metavar="TARGET")
@click.argument("drafts", metavar="[[NAME=]DRAFT...]", nargs=-1)
@format_options
@_target_name
@_prompts
@click.option(
    "--gammas", "--gamma", type=integers, metavar="N,N", help=f"{_GAMMAS} (default: 2, 4, 8, each draft's)."
)
@setting_option("temperature", "0")
@number("--n-tokens", "--max-new-tokens", help="New tokens of each draft in each turn (default: 120).")
@_parameters(recommend_draft, repeats="Turns")
@_seconds
@_judged
@_json
def recommend_verb(drafts: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
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
        for name, text in _drafts_by_name(drafts).items()
    }
    arguments = _chosen(given) | _LINES
    return _print(recommend_draft(_named(given, target)[0], openers or None, texts, **arguments), as_json)
