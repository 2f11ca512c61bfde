"""`specdec generate`: continue prompts and print the text."""

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
    'specdec generate "Once upon a time"                          the bundled target, no draft',
    "specdec generate --target big --draft small A ship           two models: the same text, faster",
    "specdec generate --draft prompt-lookup - < chapter.txt                standard input; a draft by name",
    "specdec generate --draft ensemble:prompt-lookup+embedded Tell me      two drafts combined",
    "specdec generate --json --lines - < prompts.txt > out.jsonl  one prompt and result per line",
)
@click.argument("prompt", nargs=-1)
@model_options
@source_option
@decoding_options(
    gamma="the draft's own",
    temperature="0, or 0.6 without --target",
    repetition_penalty="none, or 1.1 without --target and --temperature",
    verify="auto",
    seed="random; --json shows it",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: text, tokens, seed, statistics.")
@click.option("--lines", is_flag=True, help="Treat each input line as a prompt (with --json).")
@setting_options("n", "logprobs", "batch_size")
def generate_verb(
    prompt: tuple[str, ...], source: str | None, as_json: bool, lines: bool, **given: Any
) -> None:
    """Continue a prompt and print only the new text, as it is generated.

    Everything that is not an option is the prompt. A single -, or a pipe without a prompt, reads standard
    input without its final line end. Without --draft the target decodes one token at a time.
    """
    needing = {"--lines": lines or None, "--samples": given["n"], "--logprobs": given["logprobs"]}
    for option, value in needing.items():
        if value is not None and not as_json:
            raise click.UsageError(f"{option} needs --json, which prints one result per line")
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
    """Return the sampling defaults; the bundled target repeats itself at temperature 0."""
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
    """Print one line for each sample of each prompt, in order."""
    if not prompts:
        raise InputError("the prompt has no nonempty line; expected at least one")
    results: Any = generate(target, draft, prompts, **options)
    for prompt, found in zip(prompts, results, strict=True):
        for result in found if isinstance(found, list) else [found]:
            print(json_line(_figures(prompt, result)))


def _figures(prompt: str, result: Result) -> dict[str, Any]:
    """Return the fields of a result's JSON object."""
    names = ("acceptance_rate", "tokens_per_call", "total_s", "tokens_per_s")
    return {
        "prompt": prompt, **result_fields(result), **{name: getattr(result.trace, name) for name in names},
    }  # fmt: skip
