"""Conversion of models to other file formats."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

from specdec.checks import check_choice, check_flag, check_integer, check_path
from specdec.errors import CheckpointError, InputError, shown, warn
from specdec.models.adapter import merged
from specdec.models.checkpoints import open_checkpoint
from specdec.models.checkpoints.gguf_writing import FILE_TYPES, WEIGHED
from specdec.models.checkpoints.hub import DESCRIBING, TEMPLATES
from specdec.models.checkpoints.mtp_blocks import mtp_block_of
from specdec.models.conversion.folder_as_gguf import write_as_gguf
from specdec.models.conversion.importance import Importance, importance_of
from specdec.models.conversion.model_as_folder import FOLDER_TYPES, write_as_folder
from specdec.models.loading import load
from specdec.models.packed_file import is_packed, write_packed
from specdec.threads import check_threads

# Suffixes that name a file format: "d4.bin", but not "Llama-3.2-1B" or "model-v1.5".
_FILE_SUFFIX: Final = re.compile(r"\.[A-Za-z]\w*")


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str | None = None,
    *,
    tokenizer: Any = None,
    importance: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    max_shard_size: int | None = None,
    force: bool = False,
    progress: bool | None = None,
) -> Path:
    """Write a model in another file format.

    Parameters
    ----------
    source : path-like
        A model, as in :func:`specdec.load`.
    out : path-like
        A path that ends in ``.gguf``: a GGUF file. In ``.specdec``: a packed file, the model as it is in
        memory. Without suffix: a Hugging Face folder, new or empty. Other file suffixes, such as ``.bin``,
        are refused unless a folder of that name exists.
    type : str, optional
        Case-insensitive. For a GGUF file: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K for all matrices, or
        a mixture as in llama.cpp: Q4_K_S, Q4_K_M, Q5_K_S or Q5_K_M. None: BF16 for a model in bf16, else F16.
        Norms, biases and routers stay F32; rows that are not a multiple of a block use a type with smaller
        blocks. For a folder: F32, F16 or BF16 (None: the source's own, F32 if it is quantized), or INT8 or
        INT4 in the layout of compressed-tensors, which loads bit for bit as the model in this ``dtype``;
        codes of these formats are copied. For a packed file: the ``dtype`` of :func:`specdec.load`.
    tokenizer : None, False, path-like or Tokenizer
        As in :func:`specdec.load`. False: a file without vocabulary.
    importance : path-like, optional
        For a GGUF file with Q4_0, Q4_K, Q5_K or Q6_K: weights of quantization errors. A UTF-8 text of some
        50,000 tokens typical of the model's use, on which the model measures them, or a GGUF file of
        ``llama-imatrix``.
    adapter : path-like, optional
        A LoRA adapter folder to merge, as in :func:`specdec.load`. A bf16 checkpoint stays BF16 unless
        ``type`` is given.
    max_shard_size : int, optional
        For a folder: maximum bytes of tensors per file; larger tensors get their own file. None: one file.
    force : bool
        Replace the file or folder at ``out`` once the new one is complete. A folder that contains anything
        but a Hugging Face model is refused.
    progress : bool, optional
        As in :func:`specdec.load`.

    Returns
    -------
    Path
        The file or folder.

    Warns
    -----
    UserWarning
        Quantized weights are dequantized for a folder. The file cannot hold the model's multi-token
        prediction block.

    Raises
    ------
    UnsupportedModelError
        The format cannot hold this architecture or configuration, or the adapter is unsupported.
    TokenizerError
        A GGUF file cannot hold the tokenizer.
    CheckpointError
        A damaged checkpoint or adapter, or weights too large for the type.
    InputError
        An invalid argument, an existing output (without ``force``) or an unknown suffix; importance from a
        text for a model with an encoder or without tokenizer.
    OSError
        The output cannot be written.

    Examples
    --------
    >>> specdec.convert("path/to/folder", "model-Q8_0.gguf", "Q8_0")
    PosixPath('model-Q8_0.gguf')
    """
    path = check_path("out", out)
    force = check_flag("force", force)
    _check_out(path, force)
    if importance is not None and path.suffix != ".gguf":
        raise InputError(f"importance is given for {path}; expected None, or out to end in .gguf")
    if max_shard_size is not None:
        check_integer("max_shard_size", max_shard_size, 1)
        if path.suffix in (".gguf", ".specdec"):
            raise InputError.of("max_shard_size", max_shard_size, "None, or out to be a folder")
    of_adapter = None if adapter is None else check_path("adapter", adapter)
    if path.suffix == ".specdec":
        return _pack(source, path, type, tokenizer, of_adapter, progress)
    to_gguf = path.suffix == ".gguf"
    type = type.upper() if isinstance(type, str) else type
    check_choice("type", type, tuple(FILE_TYPES) if to_gguf else FOLDER_TYPES, optional=True)
    if importance is not None and type not in WEIGHED:
        found = f"importance is given for type {shown(type)}"
        raise InputError(f"{found}; expected None, or one of {', '.join(WEIGHED)}")
    checkpoint = open_checkpoint(source, tokenizer=tokenizer)
    if of_adapter is not None:
        checkpoint, _ = merged(checkpoint, of_adapter)
    if to_gguf:
        dtype = type or ("BF16" if checkpoint.dtype == "bf16" else "F16")
        weights = Importance()
        if importance is not None:
            given = {"tokenizer": tokenizer, "adapter": of_adapter, "progress": progress}
            model = partial(load, source, prefill="rows", **given)
            weights = importance_of(check_path("importance", importance, CheckpointError), model, progress)
        write_as_gguf(checkpoint, path, dtype, weights, progress)
    else:
        write_as_folder(
            checkpoint, path, type, progress, own_tokenizer=tokenizer is None, max_shard_size=max_shard_size
        )
    return path


def _check_out(path: Path, force: bool) -> None:
    if path.suffix in (".gguf", ".specdec"):
        if path.is_dir():
            raise InputError(f"out {path} is a folder; expected the path of a {path.suffix} file")
        if path.exists() and not force:
            raise InputError(f"out {path} exists; expected a new path, or force=True (--force) to replace it")
        return
    if _FILE_SUFFIX.fullmatch(path.suffix) and not path.is_dir():
        expected = ".gguf, .specdec, or no suffix for a Hugging Face folder"
        raise InputError(f"out {path} ends in {path.suffix}; expected {expected}")
    if path.exists() and not path.is_dir():
        raise InputError(f"out {path} is a file; expected .gguf, .specdec, or the path of a folder")
    if not path.exists() or not any(path.iterdir()):
        return
    if not force:
        expected = "a new or empty folder, or force=True (--force) to replace the model in it"
        raise InputError(f"out {path} exists and is not empty; expected {expected}")
    if not (path / "config.json").is_file():
        raise InputError(f"out {path} has files but no config.json; expected a new or empty folder")
    for entry in sorted(path.iterdir()):
        if entry.name not in (*DESCRIBING, Path(TEMPLATES).parent.name) and entry.suffix != ".safetensors":
            why = "which is not part of a Hugging Face model and would be lost"
            expected = "a folder with only a model, or a new or empty one"
            raise InputError(f"out {path} holds {entry.name!r}, {why}; expected {expected}")


def _pack(
    source: Any, path: Path, type: Any, tokenizer: Any, adapter: Path | None, progress: bool | None
) -> Path:
    if tokenizer not in (None, False):
        raise InputError("tokenizer is given for a packed file; expected None or False")
    dtype: Any = type.lower() if isinstance(type, str) else type
    # The layout of "rows" is that of "tiles", so the file is the same on every processor.
    model = load(source, dtype, prefill="rows", tokenizer=tokenizer, adapter=adapter, progress=progress)
    if model.path.is_file() and is_packed(model.path):
        raise CheckpointError(f"{model.path}: is a packed file already; expected the original model")
    if mtp_block_of(model.path, model.architecture, model.config) is not None:
        expected = f"drafts.MTP(target, {str(model.path)!r}) reads it from the source"
        warn(f"{path}: packed files do not hold the MTP block; {expected}")
    write_packed(path, model, with_tokenizer=tokenizer is None, n_threads=check_threads(None))
    return path
