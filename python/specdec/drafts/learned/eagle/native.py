"""Native multi-token prediction (MTP) blocks, from the target's files or a file of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from specdec.drafts.learned.eagle.published import PublishedDraft
from specdec.errors import warn
from specdec.models.checkpoints.mtp_blocks import open_mtp_block
from specdec.models.model import Model
from specdec.models.number_formats import Dtype, one_dtype


def open_native(
    target: Model, path: Path, *, normed_input: bool, normed_feedback: bool, dtype: Dtype | None
) -> PublishedDraft:
    """Open the MTP block of a target in `path`: a folder or a GGUF file."""
    block = open_mtp_block(path, target.config, target.path)
    stored = block.stored if dtype is None and target.dtype == "file" else None
    if stored is not None and stored.message:
        warn(stored.message)
    if dtype is None:
        dtype = block.dtype if target.dtype == "file" else one_dtype(target.dtype)
    read = partial(block.unread_tensors, stored.blocks if stored else ())
    layers = (target.config.n_layer + normed_input,)
    return PublishedDraft(
        path, "MTP", block.config, read, dtype, block.weight_files, layers, None, normed_feedback,
        formats=stored.formats if stored else {},
    )  # fmt: skip
