"""The measuring verbs: `measure`, `compare`, `tune`, `bench` and `recommend`."""

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
    help="Text file with one prompt per line, or .jsonl (first turns); - reads standard input.",
)
_prompt = several(click.argument("prompt", nargs=-1), _prompts)
_target_name = click.option(
    "--target-name", metavar="NAME", help="Name of the target in tables (default: from its file)."
)
_names = several(
    click.option("--name", metavar="NAME", help="Draft name in tables (default: from its file or class)."),
    _target_name,
)
_seconds = number("--seconds", type=float, default=60.0, metavar="S", help="Time budget.", show_default=True)
_drawn = setting_options(*TRUNCATIONS, "seed", "n_threads", seed="0")
_judged = several(setting_option("verify", "auto"), _drawn)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")

_LISTS: Final[dict[str, Any]] = {"gammas": integers, "temperatures": numbers, "leniences": numbers}
_GAMMAS, _TEMPERATURES, _TIMING = "Draft tokens per round", "Sampling temperatures", "Measure times too"
_LINES: Final[dict[str, Any]] = {"progress": False, "say": partial(click.echo, err=True)}
"""Arguments that print rows as they are measured, instead of a progress bar."""


def _parameters(function: Callable[..., Any], **said: str) -> Callable[[Function], Function]:
    """Make options for parameters of a function, with their help texts and its defaults."""
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
    """Print a result as tables that fit the terminal or as one JSON object; return the exit status."""
    if as_json:
        print(json_line(found.to_dict()))
    else:
        print(found.plain_text(get_terminal_size().columns if sys.stdout.isatty() else None))
    return EXIT_INTERRUPTED if getattr(found, "stopped", "").startswith("interrupted") else EXIT_OK


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options except those of models, with a progress bar on a terminal."""
    models = (
        "target", "adapter", "draft", "dtype", "draft_dtype", "cache_dtype", "prefill", "src_lang",
        "tgt_lang", "name", "target_name",
    )  # fmt: skip
    found = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if name not in models and value not in (None, ())
    }
    looks = sys.stderr is not None and sys.stderr.isatty() and find_spec("tqdm") is not None
    return found | {"progress": looks}


def _named(given: dict[str, Any], target: Any, draft: Any = None) -> tuple[Any, Any]:
    """Pair target and draft with their names for tables, if given."""
    pairs = ((given["target_name"], target), (given.get("name"), draft))
    named = [one if name is None or one is None else {name: one} for name, one in pairs]
    return named[0], named[1]


@verb(
    "measure",
    "specdec measure                                              the bundled pair",
    "specdec measure --target big --draft small --prompts mine.txt",
    "specdec measure --draft ngram:novels.txt --gammas 1,2,4 --temperatures 0,0.7",
    "specdec measure --no-timing --json > measured.json           acceptance only",
)
@_prompt
@model_options
@_names
@_parameters(
    measure, gammas=_GAMMAS, temperatures=_TEMPERATURES, leniences="1 is exact", timing=_TIMING,
    n_tokens="Tokens per temperature",
)  # fmt: skip
@_parameters(Timing, repeats="Timed runs of each configuration")
@_seconds
@_drawn
@_json
def measure_verb(
    prompt: tuple[str, ...], prompts: str | None, as_json: bool, repeats: int | None, **given: Any
) -> int:
    """Measure a draft's acceptance rate, its cost and the speed-up on a target.

    The target continues the prompts, by default a few English sentence openings. Print alpha with its
    interval, the cost coefficient c, the time of a forward pass by number of positions, and predicted and
    measured speed-ups with their spread. Rows go to standard error as they are measured; tables follow at
    the end, after --seconds, or on Ctrl-C.
    """
    texts = given_prompts(prompt, prompts)
    target, draft = open_pair(given)
    if repeats is not None and given["timing"] is not False:
        given["timing"] = Timing(repeats=repeats)
    found = measure(*_named(given, target, draft), texts, **_chosen(given) | _LINES)
    return _print(found, as_json)


@verb(
    "compare",
    "specdec compare embedded prompt-lookup lookahead:2,2         for the bundled target",
    "specdec compare --target big small=path/to/small copies=prompt-lookup --prompts mine.txt",
    "specdec compare --target big both=ensemble:prompt-lookup+path/to/small small=path/to/small --gammas 2,4",
)
@click.argument("drafts", metavar="[NAME=]DRAFT...", nargs=-1, required=True)
@target_options
@_target_name
@_prompts
@_parameters(
    compare, temperatures=_TEMPERATURES, timing=_TIMING, gammas=f"{_GAMMAS} (default: each draft's own)",
    n_tokens="New tokens per draft and repetition", repeats="Repetitions",
)  # fmt: skip
@_judged
@_json
def compare_verb(drafts: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
    """Compare drafts of any type for one target, in interleaved runs on the same prompts.

    A DRAFT is a name (see specdec drafts), a path or a hub name, as for --draft. Tables call it NAME; the
    default is the text given, or a path's last folder. One table has acceptance, tokens per target forward
    pass, costs and speed-ups with their spread; others show them by position and by prompt.
    """
    target = open_target(given)
    texts = given_prompts((), prompts)
    opened = {name: open_draft(text, target, None, given) for name, text in _drafts_by_name(drafts).items()}
    return _print(compare(_named(given, target)[0], opened, texts, **_chosen(given)), as_json)


def _drafts_by_name(given: Sequence[str]) -> dict[str, str]:
    """Return the drafts of a command line by their names in tables."""
    found: dict[str, str] = {}
    unnamed = [text for text in given if "=" not in text]
    short = dict(zip(unnamed, short_names(unnamed), strict=True))
    for text in given:
        name, equals, draft = text.partition("=")
        name, draft = (name, draft) if equals else (short[text], text)
        if not name or not draft:
            raise click.UsageError(f"{text!r} is not a draft; expected NAME=DRAFT or DRAFT")
        if name in found:
            raise click.UsageError(f"two drafts are named {name!r}; expected NAME=DRAFT with unique names")
        found[name] = draft
    return found


@verb(
    "tune",
    "specdec tune                                         the bundled pair",
    "specdec tune --target big --draft small --prompts mine.txt --temperature 0.7",
    "specdec tune --target my-exits --draft early-exit          choose the exit layer too",
    "specdec tune --json | jq .gamma                      only the number",
)
@_prompt
@model_options
@_names
@_parameters(tune, max_gamma="Largest gamma to consider", n_tokens="Tokens for the target to generate")
@setting_option("temperature", "0")
@_drawn
@_json
def tune_verb(prompt: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
    """Choose gamma, the draft tokens per round, from measurements on this machine.

    Predict the speed-up of each gamma from the acceptance rate, the draft's cost and the verification time,
    and mark the best. Use prompts that resemble yours. With --draft early-exit, also try every exit layer of
    the target.
    """
    texts = given_prompts(prompt, prompts)
    target, draft = _target_and_exits(given) if given["draft"] == "early-exit" else open_pair(given)
    return _print(tune(*_named(given, target, draft), texts, **_chosen(given)), as_json)


def _target_and_exits(given: dict[str, Any]) -> tuple[Any, Any]:
    """Load the target, to be drafted for by its own early exits."""
    if given["draft_dtype"] is not None:
        found = f"--draft-dtype is {given['draft_dtype']}, but an early exit uses the target's weights"
        raise InputError(f"{found}; expected --dtype")
    if given["name"] is not None:
        raise InputError("--name is for one draft, but --draft early-exit tries several; leave it out")
    return open_target(given), EarlyExit


@verb(
    "bench",
    "specdec bench question.jsonl                                  the bundled pair",
    "specdec bench question.jsonl --target big --draft small --answers answers",
    "specdec bench qualitative.parquet --draft prompt-lookup --limit 5 --category coding",
    "specdec bench prompts.jsonl --target big --gamma auto --draft small --json > bench.json",
)
@click.argument("questions", metavar="FILE")
@model_options
@_names
@click.option("--category", "categories", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@number("--limit", help="Use only the first N questions of each category.")
@setting_option("gamma")
@setting_option("max_new_tokens", "1024", "New tokens per turn")
@setting_options("temperature", *TRUNCATIONS, "verify", "stop", temperature="0", verify="auto")
@click.option("--ignore-eos", is_flag=True, help="Ignore end-of-text tokens: every answer has N tokens.")
@setting_option("seed", "0", "Seed of the first repetition")
@_parameters(bench, repeats="Repetitions of all questions", plain="Also answer without the draft")
@click.option(
    "--chat/--no-chat", default=None, help="Apply the chat template (default: if the model has one)."
)
@click.option(
    "--too-long",
    type=click.Choice(("error", "skip")),
    help="What to do with questions that are too long (default: error).",
)
@click.option("--answers", metavar="DIR", help="Save answers as Spec-Bench does; resume an interrupted run.")
@setting_option("n_threads")
@_json
def bench_verb(
    questions: str, as_json: bool, categories: tuple[str, ...], limit: int | None, **given: Any
) -> int:
    """Run a benchmark's questions with and without a draft, and report by category.

    FILE is Spec-Bench's question.jsonl, a SPEED-Bench file, or JSONL with one prompt per line: a string, or
    an object with turns, prompt, messages or question. Print tokens per second, the speed-up with its
    spread, alpha, and vLLM's mean_acceptance_length and draft_acceptance_rate.
    """
    pair = _named(given, *open_pair(given, optional=True))
    asked = read_questions(questions, categories=categories or None, limit=limit)
    return _print(bench(*pair, asked, **_chosen(given)), as_json)


@verb(
    "recommend",
    "specdec recommend embedded                                  drafts that need no model",
    "specdec recommend big path/to/small --prompts mine.txt",
    "specdec recommend big Qwen/Qwen3-0.6B copies=prompt-lookup --temperature 0.7",
    "specdec recommend big path/to/small --json | jq .reason     the choice, in one sentence",
)
@click.argument("target", metavar="TARGET")
@click.argument("drafts", metavar="[[NAME=]DRAFT...]", nargs=-1)
@format_options
@_target_name
@_prompts
@click.option(
    "--gammas", "--gamma", type=integers, metavar="N,N", help=f"{_GAMMAS} (default: 2, 4, 8, the draft's)."
)
@setting_option("temperature", "0")
@number("--n-tokens", "--max-new-tokens", help="New tokens per draft and repetition (default: 120).")
@_parameters(recommend_draft, repeats="Repetitions")
@_seconds
@_judged
@_json
def recommend_verb(drafts: tuple[str, ...], prompts: str | None, as_json: bool, **given: Any) -> int:
    """Check which drafts fit a target, measure their speed-up and memory, and recommend one.

    TARGET is a path, a hub name or "embedded". A DRAFT is what --draft takes; a model with another vocabulary
    is measured with each translation method. Without a DRAFT, measure the drafts that need no model and list
    small public models with the target's vocabulary. Rows go to standard error as they are measured; tables
    follow at the end, after --seconds, or on Ctrl-C.
    """
    target = open_target(given)
    texts = given_prompts((), prompts)
    openers = {
        name: partial(open_draft, text, target, given["draft_dtype"], given)
        for name, text in _drafts_by_name(drafts).items()
    }
    arguments = _chosen(given) | _LINES
    return _print(recommend_draft(_named(given, target)[0], openers or None, texts, **arguments), as_json)
