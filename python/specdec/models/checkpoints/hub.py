"""Repositories on the Hugging Face Hub, through ``huggingface_hub`` (the extra ``specdec[hub]``)."""

from __future__ import annotations

import re
from pathlib import Path

from specdec.errors import CheckpointError

__all__ = ["download", "is_repository_name"]

# The hub's own rule: words of letters, digits, "-", "_" and ".", one slash. A name that could be a relative
# path on this disk ("./x", "../x") does not match.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

# Everything the loader reads and nothing else: repositories also hold the same weights in other formats.
_WANTED = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer.model", "merges.txt"]
_UNWANTED = ["*/*", "consolidated*"]


def is_repository_name(text: str) -> bool:
    """Whether ``text`` has the form ``org/name``."""
    return _REPOSITORY.fullmatch(text) is not None


def download(name: str) -> Path:
    """The local folder of a hub repository, downloaded where the hub's cache does not have it.

    Raises
    ------
    CheckpointError
        ``huggingface_hub`` is not installed, or the download failed.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"{name}: no such file or folder; to fetch it from the Hugging Face Hub: pip install specdec[hub]"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:  # the library's own errors, and those of its HTTP client, share no base class
        raise CheckpointError(
            f"{name}: no such file or folder here, and the Hugging Face Hub did not give it: "
            f"{type(error).__name__}: {error}"
        ) from error
