"""Named exceptions; a message says which file or argument, which field, what it is and what was expected."""

from __future__ import annotations

import reprlib

__all__ = [
    "CheckpointError",
    "CheckpointNotFoundError",
    "InputError",
    "MissingPackageError",
    "SpecdecError",
    "TokenizerError",
    "UnsupportedModelError",
    "VocabularyMismatchError",
    "shown",
]

_MOST = 200  # characters of a value in a message


class _Repr(reprlib.Repr):
    """Of a nested value its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = self.maxdeque = self.maxarray = 16
        self.maxstring = self.maxother = self.maxlong = _MOST


_REPR = _Repr()


def shown(value: object) -> str:
    """A value in a message: its ``repr`` on one line, shortened, or its type where there is none to be had.

    Messages are made of whatever a caller gave: integers too long to be printed, lists that hold themselves,
    objects whose ``__repr__`` fails.
    """
    try:
        text = _REPR.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    text = " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())  # no lone surrogates
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


class SpecdecError(Exception):
    """Base of every exception that specdec raises on purpose."""


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
