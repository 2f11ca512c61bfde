"""Named exceptions; a message says which file or argument, which field, what it is and what was expected."""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CheckpointNotFoundError",
    "InputError",
    "MissingPackageError",
    "SpecdecError",
    "TokenizerError",
    "UnsupportedModelError",
    "VocabularyMismatchError",
]


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
