"""Readers of model files; :func:`open_checkpoint` picks the one a path needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.checks import check_integer, check_path
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError, shown
from specdec.models.checkpoints.checkpoint import CanonicalTensor, Checkpoint, StoredTensors, UnreadTensor
from specdec.text_files import reading

if TYPE_CHECKING:
    from specdec.models.checkpoints.hub import HubOptions

_SINGLE = (".gguf", ".specdec", ".bin")
"""Suffixes of files that hold a whole model."""

__all__ = ["CanonicalTensor", "Checkpoint", "StoredTensors", "UnreadTensor", "open_checkpoint"]


def open_checkpoint(
    path: str | os.PathLike[str], *, tokenizer: Any = None, n_ctx: int | None = None,
    revision: str | None = None, cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
) -> Checkpoint:  # fmt: skip
    """Open a checkpoint and check everything except the weights.

    Parameters
    ----------
    path : path-like
        A Hugging Face folder, a GGUF file (any part of a split one), a llama2.c ``.bin`` file, or a name on
        the Hugging Face Hub. A path on disk takes precedence over a hub name. Packed files are refused.
    tokenizer, n_ctx, revision, cache_dir, token
        As in :func:`specdec.load`, with the same errors.
    """
    from specdec.models.checkpoints.hub import HubOptions

    location = check_path("path", path, CheckpointError)
    options = HubOptions(revision, cache_dir, token)
    n_ctx = None if n_ctx is None else check_integer("n_ctx", n_ctx, 1)
    with reading(location, CheckpointError):
        return _open(location, os.fspath(path), tokenizer, n_ctx, options)


def _open(location: Path, name: str, tokenizer: Any, n_ctx: int | None, options: HubOptions) -> Checkpoint:
    # Imported late: the loaders pull in tokenizers, which `import specdec` must not.
    from specdec.models.checkpoints import gguf_file, gguf_model, hf_folder, hub, llama2c_file

    if options.revision is not None and location.exists():
        raise InputError.of("revision", options.revision, f"None, because {location} is on disk")
    if location.is_dir():
        if (location / "config.json").is_file():
            return hf_folder.open_folder(location, tokenizer, n_ctx)
        if (location / "adapter_config.json").is_file():
            expected = f"the path of its base model, with adapter={str(location)!r}"
            raise CheckpointNotFoundError(f"{location}: is a LoRA adapter folder; expected {expected}")
        single = sorted(file.name for file in location.iterdir() if file.suffix in _SINGLE)
        held = f" and has {', '.join(single[:5])}" if single else ""
        raise CheckpointNotFoundError(
            f"{location}: has no config.json{held}; expected a Hugging Face folder, or the path of a GGUF "
            "file, a packed file or a llama2.c .bin file"
        )
    if location.is_file():
        if location.suffix == ".bin":
            checkpoint = llama2c_file.open_file(location, tokenizer)
            own = checkpoint.config["n_ctx"]
            if n_ctx not in (None, own):
                raise InputError.of("n_ctx", n_ctx, f"None or {own}, the context of {location}")
            return checkpoint
        if location.suffix == ".gguf" or gguf_file.is_gguf(location):
            return gguf_model.open_gguf(location, tokenizer, n_ctx)
        what = "expected a Hugging Face folder, a GGUF file or a llama2.c .bin file"
        if location.name == "config.json" or location.suffix == ".safetensors":
            what = f"is part of a Hugging Face folder; pass the folder, {location.parent}"
        elif location.suffix == ".specdec":
            what = "is a packed file, which only specdec.load reads; expected the original model"
        raise CheckpointError(f"{location}: {what}")
    if (asked := hub.parse_hub_name(name)) is not None:
        found = hub.fetch(asked, options)
        opener = gguf_model.open_gguf if found.is_file() else hf_folder.open_folder
        return opener(found, tokenizer, n_ctx)
    raise CheckpointNotFoundError(
        f"{shown(name)}: no such file or folder, and not a hub name such as org/name, org/name:Q4_K_M or "
        "hf://org/name/file.gguf"
    )
