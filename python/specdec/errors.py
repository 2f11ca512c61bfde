"""Named exceptions; a message says which file or argument, which field, what it is and what was expected."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CheckpointError",
    "CheckpointNotFoundError",
    "InputError",
    "MissingPackageError",
    "SpecdecError",
    "TokenizerError",
    "UnsupportedModelError",
    "VocabularyMismatchError",
    "printable",
]


_LONGEST: Final = 4000
"""Characters of a message; a file may hold names of any length."""


def printable(text: str) -> str:
    """A text that a terminal shows as it is, of bounded length.

    Messages quote what files hold. A control character would be obeyed by the terminal, a lone surrogate
    could not be printed at all; both are written as Python writes them in a string literal.
    """
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class SpecdecError(Exception):
    """Base of every exception that specdec raises on purpose. Its text has printable characters only."""

    def __str__(self) -> str:
        return printable(super().__str__())


class CheckpointError(SpecdecError, ValueError):
    """A checkpoint file is damaged, contradicts itself or lacks something."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint, or a file it needs, is not there."""


class UnsupportedModelError(CheckpointError):
    """A well-formed checkpoint asks for a computation that specdec does not have."""


class TokenizerError(SpecdecError, ValueError):
    """A tokenizer's files are damaged or missing, or the library that reads them is."""


class VocabularyMismatchError(SpecdecError, ValueError):
    """Target and draft do not share one vocabulary, so a draft's token has no meaning for the target."""


class InputError(SpecdecError, ValueError):
    """An argument cannot be used: ids out of range, a prompt longer than the context, a negative gamma."""


class MissingPackageError(SpecdecError, ImportError):
    """Something needs a package that is not installed; the message names the extra that brings it."""
