"""Command-line options generated from the settings table, and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from specdec.commands.verb import OPTION_OF, Function, gamma_value, several
from specdec.decoding.options import DecodingOptions
from specdec.errors import InputError
from specdec.settings_table import table_of
from specdec.text_files import read_text_file
from specdec.verification.rules import DECODING_RULES
from specdec.verification.sampling import Sampling

READABLE: Final = {"temperature": 0.6, "repetition_penalty": 1.1}
"""Sampling settings that make the bundled target's text readable."""

_TABLE: Final = {name: row for name, row in table_of(DecodingOptions).items() if row.flag}
SAMPLING: Final = tuple(name for name in _TABLE if name in table_of(Sampling))
"""Sampling settings that have a command-line option."""
_OF_SOME_VERBS: Final = ("n", "batch_size", "logprobs", "max_reasoning_tokens")
_PARSERS: Final[Mapping[str, Any]] = {"gamma": gamma_value, "verify": click.Choice(DECODING_RULES)}
_FILES: Final = {"schema": "a JSON schema", "grammar": "a grammar"}


def _option(name: str) -> str:
    return OPTION_OF.get(name, f"--{name.replace('_', '-')}")


def setting_option(name: str, default: str = "", text: str = "") -> Callable[[Function], Function]:
    """Make the option of one setting; `text` replaces its help, `default` describes its default."""
    row = _TABLE[name]
    text = text or row.help
    return click.option(
        _option(name),
        name,
        type=_PARSERS.get(name, row.value_type),
        multiple=row.many,
        metavar=row.flag,
        help=f"{text.rstrip('.')} (default: {default})." if default else text,
    )


def setting_options(*names: str, **defaults: str) -> Callable[[Function], Function]:
    """Make the options of several settings; the keyword arguments describe defaults."""
    return several(*(setting_option(name, defaults.get(name, "")) for name in names))


def decoding_options(**defaults: str) -> Callable[[Function], Function]:
    """Make the options for decoding one sequence; the keyword arguments describe defaults."""
    names = ("gamma", "max_new_tokens", *(name for name in _TABLE if name not in _OF_SOME_VERBS))
    return setting_options(*dict.fromkeys(names), **{"max_new_tokens": "200", "lenience": "1"} | defaults)


threads_option = setting_option("n_threads")
"""The --threads option."""


def decoding_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `specdec.generate` for the given options."""
    found = {name: given[name] for name in _TABLE if given.get(name) not in (None, ())}
    constraints = [name for name in (*_FILES, "regex") if name in found]
    if len(constraints) > 1:
        raise InputError(
            f"{' and '.join(f'--{name}' for name in constraints)} are given; expected one of them"
        )
    for name in _FILES.keys() & found.keys():
        found[name] = read_text_file(Path(found[name]), _FILES[name], name=f"--{name}")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def words_of(given: Mapping[str, Any], others: Sequence[str], without: Sequence[str]) -> list[str]:
    """Rebuild command-line words from `others` and all settings except those in `without`."""
    words: list[str] = []
    for name in (*others, *(name for name in _TABLE if name not in without)):
        values = given.get(name)
        for value in values if isinstance(values, tuple) else [values]:
            words += [] if value is None else [_option(name), str(value)]
    return words
