"""Readers of model files. :func:`open_checkpoint` finds out which one a path needs."""

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
"""How files end that hold a model each."""

__all__ = ["CanonicalTensor", "Checkpoint", "StoredTensors", "UnreadTensor", "open_checkpoint"]


def open_checkpoint(
    path: str | os.PathLike[str], *, tokenizer: Any = None, n_ctx: int | None = None,
    revision: str | None = None, cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
) -> Checkpoint:  # fmt: skip
    """Open a checkpoint and check everything about it that does not need the weights themselves.

    Parameters and errors are those of :func:`specdec.load`; a packed file is refused.

    Parameters
    ----------
    path : path-like
        A Hugging Face folder, a GGUF file (of one that was split any part), a llama2.c ``.bin`` file, or the
        name of what is on the Hugging Face Hub. What exists on disk is taken before a name on the hub.
    tokenizer, n_ctx, revision, cache_dir, token
        As of :func:`specdec.load`.
    """
    from specdec.models.checkpoints.hub import HubOptions

    location = check_path("path", path, CheckpointError)
    options = HubOptions(revision, cache_dir, token)
    n_ctx = None if n_ctx is None else check_integer("n_ctx", n_ctx, 1)
    with reading(location, CheckpointError):
        return _open(location, os.fspath(path), tokenizer, n_ctx, options)


def _open(location: Path, name: str, tokenizer: Any, n_ctx: int | None, options: HubOptions) -> Checkpoint:
    # The loaders import the tokenizer and JSON machinery; `import specdec` shall not.
    from specdec.models.checkpoints import gguf_file, gguf_model, hf_folder, hub, llama2c_file

    if options.revision is not None and location.exists():
        raise InputError.of("revision", options.revision, f"None, as {location} is on disk, or a hub name")
    if location.is_dir():
        if (location / "config.json").is_file():
            return hf_folder.open_folder(location, tokenizer, n_ctx)
        if (location / "adapter_config.json").is_file():
            expected = f"that of its base, with adapter={str(location)!r}"
            raise CheckpointNotFoundError(f"{location}: is the folder of an adapter; expected {expected}")
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
                raise InputError.of("n_ctx", n_ctx, f"None or {own}, that of {location}")
            return checkpoint
        if location.suffix == ".gguf" or gguf_file.is_gguf(location):
            return gguf_model.open_gguf(location, tokenizer, n_ctx)
        what = "expected a Hugging Face folder, a GGUF file or a llama2.c .bin file"
        if location.name == "config.json" or location.suffix == ".safetensors":
            what = f"is a file of a Hugging Face folder; give the folder, {location.parent}"
        elif location.suffix == ".specdec":
            what = "is a packed file, which load maps; expected the model that it was made of"
        raise CheckpointError(f"{location}: {what}")
    if (asked := hub.parse_hub_name(name)) is not None:
        found = hub.fetch(asked, options)
        opener = gguf_model.open_gguf if found.is_file() else hf_folder.open_folder
        return opener(found, tokenizer, n_ctx)
    raise CheckpointNotFoundError(
        f"{shown(name)}: no such file or folder, and not a hub name of the form org/name, org/name:Q4_K_M or "
        "hf://org/name/file.gguf"
    )
