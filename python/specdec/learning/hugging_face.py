"""transformers, where it is needed: imported on use, silent, and the decoder of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from specdec.errors import CheckpointError, MissingPackageError

__all__ = ["open_decoder", "silent", "transformers"]


def transformers() -> Any:
    """The module transformers.

    Raises
    ------
    MissingPackageError
        It is not installed.
    """
    try:
        import transformers
    except ImportError:
        raise MissingPackageError(
            "this training needs transformers, which is not installed: pip install transformers"
        ) from None
    return transformers


@contextmanager
def silent() -> Iterator[None]:
    """A block in which transformers draws no progress bars of its own."""
    settings = transformers().utils.logging
    shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            settings.enable_progress_bar()


def open_decoder(folder: Path) -> Any:
    """The decoder of a Hugging Face folder in f32, to be trained on.

    Raises
    ------
    CheckpointError
        transformers cannot read it.
    """
    library = transformers()
    try:
        with silent():
            network = library.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        message = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: transformers cannot read it: {message}") from error
    return network.train()
