"""The options of decoding, as the keyword arguments of `specdec.generate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from specdec.commands.verb import Function, gamma_value, several
from specdec.errors import InputError
from specdec.text_files import read_text_file
from specdec.verification.rules import DECODING_RULES

__all__ = [
    "MAX_NEW_TOKENS",
    "PAIR_GAMMA",
    "READABLE",
    "decoding_arguments",
    "decoding_options",
    "sampling_options",
    "stop_option",
    "threads_option",
]

READABLE: Final = {"temperature": 0.6, "repetition_penalty": 1.2}
"""With these the text of the target in the package reads best."""
PAIR_GAMMA: Final = 2
"""The fastest for the pair in the package, whose draft is right two times in three.

`specdec` without a verb takes it. A server goes by the draft's own gamma, 4: that of a server bounds what its
requests may ask for.
"""
MAX_NEW_TOKENS: Final = 200


threads_option = click.option(
    "--threads", type=int, metavar="N", help="Default: SPECDEC_NUM_THREADS, or the CPUs at hand."
)
"""How many threads compute."""

stop_option = click.option(
    "--stop", multiple=True, metavar="TEXT", help="End before this text or special token; may be repeated."
)
"""Texts that end what is written."""


form_options = (
    click.option("--schema", metavar="FILE", help="The text is JSON that has the JSON schema in this file."),
    click.option("--regex", metavar="PATTERN", help="The text matches this regular expression as a whole."),
    click.option("--grammar", metavar="FILE", help="The text has the grammar in this file: Lark or GBNF."),
)
"""The form of the text."""


def _form(given: Mapping[str, Any]) -> dict[str, str]:
    """The form that options ask for, read from its file.

    Raises
    ------
    InputError
        For a file that cannot be read.
    """
    files = {"schema": "a JSON schema", "grammar": "a grammar"}
    found = {name: given[name] for name in (*files, "regex") if given.get(name) is not None}
    if len(found) > 1:
        raise InputError(f"{' and '.join(f'--{name}' for name in found)} are given; expected one of them")
    return {
        name: read_text_file(Path(value), files[name], name=f"--{name}") if name in files else value
        for name, value in found.items()
    }


def sampling_options(temperature: str, penalty: str | None) -> Callable[[Function], Function]:
    """The options of sampling; the arguments say what is default; None: there are no penalties."""
    penalties = [
        click.option(
            "--repetition-penalty",
            type=float,
            metavar="R",
            help=f"Above 1, tokens that have occurred are less likely (default: {penalty}).",
        ),
        click.option(
            "--presence-penalty", type=float, metavar="P",
            help="Subtracted from the logits of tokens of the new text.",
        ),
        click.option(
            "--frequency-penalty", type=float, metavar="F",
            help="The same for each time that a token has occurred there.",
        ),
    ]  # fmt: skip
    return several(
        click.option("--temperature", type=float, metavar="T", help=f"0 is greedy (default: {temperature})."),
        *(penalties if penalty is not None else ()),
        click.option("--top-k", type=int, metavar="K", help="Sample from the K likeliest tokens only."),
        click.option(
            "--top-p", type=float, metavar="P", help="Sample from the likeliest tokens that hold mass P only."
        ),
        click.option(
            "--min-p",
            type=float,
            metavar="P",
            help="Sample from tokens at least P times as likely as the likeliest.",
        ),
    )


def decoding_options(
    *, gamma: str, temperature: str, penalty: str, rule: str, seed: str
) -> Callable[[Function], Function]:
    """The options of decoding; the arguments say what their options are by default."""
    return several(
        click.option(
            "--gamma",
            type=gamma_value,
            metavar="N",
            help=f"Drafted tokens a round, or 'auto': as many as pay (default: {gamma}).",
        ),
        click.option("--max-new-tokens", type=int, default=MAX_NEW_TOKENS, metavar="N", show_default=True),
        sampling_options(temperature, penalty),
        click.option(
            "--verify", type=click.Choice(DECODING_RULES), metavar="RULE",
            help=f"{', '.join(DECODING_RULES)} (default: {rule}).",
        ),
        click.option(
            "--lenience", type=float, default=1.0, metavar="L", help="Below 1 is not exact (default: 1)."
        ),
        click.option("--seed", type=int, metavar="S", help=f"Of the random numbers (default: {seed})."),
        threads_option,
        stop_option,
        *form_options,
    )  # fmt: skip


def decoding_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `specdec.generate` that these options give; what was not given is left out."""
    names = (
        "gamma", "max_new_tokens", "temperature", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "top_k", "top_p", "min_p", "verify", "lenience", "seed",
    )  # fmt: skip
    found = {name: given[name] for name in names if given[name] is not None}
    if given["stop"]:
        found["stop"] = list(given["stop"])
    return found | _form(given) | {"n_threads": given["threads"]}
