"""Prompts: words of the command line, standard input, files."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec.checks import check_path
from specdec.errors import InputError

__all__ = ["is_piped", "lines_of", "read_lines", "read_standard_input", "text_of"]


def text_of(words: Sequence[str]) -> str | None:
    """The words as one text; "-" alone is standard input, and so are no words where something is piped in.

    None where there is neither.

    Raises
    ------
    InputError
        As `read_standard_input`.
    """
    if tuple(words) == ("-",) or (not words and is_piped()):
        return read_standard_input()
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


def read_standard_input() -> str:
    """All of standard input, without the line end that ends it.

    Raises
    ------
    InputError
        It is closed, empty, or not UTF-8.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; expected a text in UTF-8")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input is no UTF-8: {error.reason} at byte {error.start}; expected a text in UTF-8"
        ) from None
    text = re.sub(r"\r?\n\Z", "", text)
    if not text:
        raise InputError("standard input is empty; expected a text in UTF-8")
    return text


def read_lines(path: str) -> list[str]:
    """The lines of a file that are not empty; "-" is standard input.

    Raises
    ------
    InputError
        It cannot be read as UTF-8, or has no such line.
    """
    if path == "-":
        text, name = read_standard_input(), "standard input"
    else:
        text, name = _read(check_path("--prompts", path)), path
    lines = lines_of(text)
    if not lines:
        raise InputError(f"{name} has no line that is not empty; expected a prompt a line")
    return lines


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line for line in re.split(r"\r?\n", text) if line.strip()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8: {error}; expected a prompt a line") from error
