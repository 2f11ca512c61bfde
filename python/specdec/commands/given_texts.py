"""The texts that a command line gives: in words, by standard input, in files."""

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
    """(prompt and decoder_prompt as `specdec.generate` takes them); the prompt may be None."""
    if target.config.encoder is None:
        if source is not None:
            raise InputError(f"--source is given, but {target.path} has no encoder; expected a prompt alone")
        return _text_of(words), None
    if source == "-" or (source is None and is_piped()):
        source = _read_standard_input()
    if source is None:
        raise InputError(f"--source is missing; expected what the encoder of {target.path} reads")
    return source, " ".join(words) if words else None


def given_prompts(words: tuple[str, ...], file: str | None) -> list[str] | None:
    """The prompts that the options give; None where there are none."""
    if file is not None:
        if words:
            raise click.UsageError("a prompt and --prompts are both given; expected one of them")
        if file.endswith((".jsonl", ".parquet")):
            return [question.turns[0] for question in read_questions(file)]
        return _read_lines(file)
    text = _text_of(words) if words else None
    return None if text is None else [text]


def _text_of(words: Sequence[str]) -> str | None:
    """The words as one text; "-" alone is standard input, and so are no words where something is piped in.

    None where there is neither.
    """
    if tuple(words) == ("-",) or (not words and is_piped()):
        return _read_standard_input()
    return " ".join(words) if words else None


def is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file, rather than a terminal or another device."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or an object without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_standard_input() -> str:
    """All of standard input, without the line end that ends it."""
    if sys.stdin is None:
        raise InputError("standard input is closed; expected a text in UTF-8")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"standard input is no UTF-8: {error.reason} at byte {error.start}"
        raise InputError(f"{found}; expected a text in UTF-8") from None
    text = re.sub(r"\r?\n\Z", "", text)
    if not text:
        raise InputError("standard input is empty; expected a text in UTF-8")
    return text


def _read_lines(path: str) -> list[str]:
    """The lines of a file that are not empty; "-" is standard input."""
    if path == "-":
        text, name = _read_standard_input(), "standard input"
    else:
        text, name = read_text_file(Path(path), "a prompt a line", name="--prompts"), path
    lines = lines_of(text)
    if not lines:
        raise InputError(f"{name} has no line that is not empty; expected a prompt a line")
    return lines


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line for line in re.split(r"\r?\n", text) if line.strip()]
