"""Prompts from the command line: words, standard input, files."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from specdec.analysis.questions import read_questions
from specdec.errors import InputError
from specdec.models.model import Model
from specdec.text_files import read_text_file


def given_text(target: Model, words: tuple[str, ...], source: str | None) -> tuple[str | None, str | None]:
    """Return (prompt, decoder_prompt) for `specdec.generate`; the prompt may be None."""
    if target.config.encoder is None:
        if source is not None:
            raise InputError(f"--source is given, but {target.path} has no encoder; expected only a prompt")
        return _text_of(words), None
    if source == "-" or (source is None and is_piped()):
        source = _read_standard_input()
    if source is None:
        raise InputError(f"--source is missing; expected a text for the encoder of {target.path}")
    return source, " ".join(words) if words else None


def given_prompts(words: tuple[str, ...], file: str | None) -> list[str] | None:
    """Return the prompts of the command line; None without any."""
    if file is not None:
        if words:
            raise click.UsageError("a prompt and --prompts are both given; expected one of them")
        if file.endswith((".jsonl", ".parquet")):
            return [question.turns[0] for question in read_questions(file)]
        return _read_lines(file)
    text = _text_of(words) if words else None
    return None if text is None else [text]


def _text_of(words: Sequence[str]) -> str | None:
    """Join the words, or read standard input for "-" or a pipe; None without a text."""
    if tuple(words) == ("-",) or (not words and is_piped()):
        return _read_standard_input()
    return " ".join(words) if words else None


def is_piped() -> bool:
    """Return whether standard input is a pipe, socket or file instead of a terminal or other device."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or an object without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_standard_input() -> str:
    """Read all of standard input, without its final line end."""
    if sys.stdin is None:
        raise InputError("standard input is closed; expected UTF-8 text")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"standard input is not UTF-8: {error.reason} at byte {error.start}"
        raise InputError(f"{found}; expected UTF-8 text") from None
    text = re.sub(r"\r?\n\Z", "", text)
    if not text:
        raise InputError("standard input is empty; expected UTF-8 text")
    return text


def _read_lines(path: str) -> list[str]:
    """Read the nonempty lines of a file; "-" is standard input."""
    if path == "-":
        text, name = _read_standard_input(), "standard input"
    else:
        text, name = read_text_file(Path(path), "one prompt per line", name="--prompts"), path
    lines = lines_of(text)
    if not lines:
        raise InputError(f"{name} has no nonempty line; expected one prompt per line")
    return lines


def lines_of(text: str) -> list[str]:
    """Return the nonempty lines of a text."""
    return [line for line in re.split(r"\r?\n", text) if line.strip()]
