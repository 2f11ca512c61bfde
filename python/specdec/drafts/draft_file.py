"""Drafts that are one file: which of them a file holds, by what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from specdec.drafts.draft import Draft
from specdec.drafts.ngram import Ngram
from specdec.drafts.ngram_file import METADATA as OF_NGRAM
from specdec.drafts.suffix_memory import METADATA as OF_SUFFIX_MEMORY
from specdec.drafts.suffix_memory import SuffixMemory
from specdec.drafts.token_recycling import METADATA as OF_TOKEN_RECYCLING
from specdec.drafts.token_recycling import TokenRecycling
from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata

__all__ = ["open_draft_file"]

ONLINE_FORMAT: Final = "specdec online draft"
"""What a file of `Online` says of itself."""

_OPENERS: Final[dict[str, Callable[[Path], Draft]]] = {
    OF_SUFFIX_MEMORY["format"]: SuffixMemory.load,
    OF_TOKEN_RECYCLING["format"]: TokenRecycling.load,
    OF_NGRAM["format"]: Ngram.load,
}


def open_draft_file(path: Path) -> Draft | None:
    """The draft of a file that its `save` wrote; None where there is no such file, but a folder or a model's.

    Raises
    ------
    InputError
        The file is one of `Online`, which does not hold the draft that it began with.
    CheckpointError
        The file is damaged.
    """
    form = _format_of(path)
    if form == ONLINE_FORMAT:
        raise InputError(
            f"{path} is what a specdec.drafts.Online has learnt; expected specdec.drafts.Online.load(path, "
            "draft), with the draft that it began with"
        )
    return _OPENERS[form](path) if form in _OPENERS else None


def _format_of(path: Path) -> str:
    """What a safetensors file calls its format; empty for any other file, and where there is none."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            begins = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix != ".safetensors" and begins[8:] != b"{":
        return ""
    return read_safetensors_with_metadata(path)[1].get("format", "")
