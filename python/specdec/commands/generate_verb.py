"""`specdec generate`: the text alone."""

from __future__ import annotations

import sys
from typing import Any

import click

from specdec.commands.decoding_options import READABLE, decoding_arguments, decoding_options, setting_options
from specdec.commands.given_models import EMBEDDED, model_options, open_models, source_option
from specdec.commands.given_texts import given_text, lines_of
from specdec.commands.verb import json_line, verb
from specdec.decoding.generate import generate, stream
from specdec.decoding.result import Result, result_fields
from specdec.drafts.draft import Draft
from specdec.errors import InputError
from specdec.models.model import Model


@verb(
    "generate",
    'specdec generate "Once upon a time"                          the target in the package, plainly',
    "specdec generate --target big --draft small A ship           two models: the same text, sooner",
    "specdec generate --draft prompt-lookup - < chapter.txt                standard input; a draft by name",
    "specdec generate --draft ensemble:prompt-lookup+embedded Tell me      two drafts at once",
    "specdec generate --json --lines - < prompts.txt > out.jsonl  a prompt a line, a result a line",
)
@click.argument("prompt", nargs=-1)
@model_options
@source_option
@decoding_options(
    gamma="as many as the draft asks for",
    temperature="0, or 0.6 without --target",
    repetition_penalty="none, or 1.2 without --target and --temperature",
    verify="rejection",
    seed="a fresh one, which --json shows",
)
@click.option("--json", "as_json", is_flag=True, help="An object a line: text, tokens, seed, figures.")
@click.option("--lines", is_flag=True, help="Each line of the prompt is a prompt of its own (with --json).")
@setting_options("n", "logprobs", "batch_size")
def generate_verb(
    prompt: tuple[str, ...], source: str | None, as_json: bool, lines: bool, **given: Any
) -> None:
    """Continue a prompt and print the new text alone, as it comes.

    The prompt is all words that are no options. A single - is standard input, and so is no prompt where
    something is piped in; the line end that ends it is left out. Without --draft the target decodes plainly.
    """
    needing = {"--lines": lines or None, "--samples": given["n"], "--logprobs": given["logprobs"]}
    for option, value in needing.items():
        if value is not None and not as_json:
            raise click.UsageError(f"{option} needs --json, which gives each text a line")
    if given["batch_size"] is not None and not lines and given["n"] is None:
        raise click.UsageError("--batch-size needs --lines or --samples")
    target, draft = open_models(given)
    text, decoder_prompt = given_text(target, prompt, source)
    if text is None:
        raise InputError("the prompt is missing; expected a text, or - for standard input")
    options = sampling_defaults(given) | decoding_arguments(given) | {"decoder_prompt": decoder_prompt}
    if as_json:
        _print_json(target, draft, lines_of(text) if lines else [text], options)
    elif target.tokenizer is None:
        print(*generate(target, draft, text, **options).tokens)
    else:
        _stream(target, draft, text, options)


def sampling_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """How is sampled where the command line does not say: the target in the package repeats itself at 0."""
    if given["target"] not in (None, EMBEDDED):
        return {}
    return dict(READABLE) if given["temperature"] is None else {}


def _stream(target: Model, draft: Model | Draft | None, text: str, options: dict[str, Any]) -> None:
    last = ""
    with stream(target, draft, text, **options) as pieces:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            last = piece
    if not last.endswith("\n"):
        print()


def _print_json(
    target: Model, draft: Model | Draft | None, prompts: list[str], options: dict[str, Any]
) -> None:
    """A line for each sample of each prompt, in order."""
    if not prompts:
        raise InputError("the prompt has no line that is not empty; expected at least one")
    results: Any = generate(target, draft, prompts, **options)
    for prompt, found in zip(prompts, results, strict=True):
        for result in found if isinstance(found, list) else [found]:
            print(json_line(_figures(prompt, result)))


def _figures(prompt: str, result: Result) -> dict[str, Any]:
    """What is printed of a result as an object of JSON."""
    names = ("acceptance_rate", "tokens_per_call", "total_s", "tokens_per_s")
    return {
        "prompt": prompt, **result_fields(result), **{name: getattr(result.trace, name) for name in names},
    }  # fmt: skip
