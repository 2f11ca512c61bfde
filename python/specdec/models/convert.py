"""`convert`: models in another file format."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

from specdec.checks import check_choice, check_flag, check_integer, check_path
from specdec.errors import CheckpointError, InputError, shown
from specdec.models.adapter import merged
from specdec.models.checkpoints import open_checkpoint
from specdec.models.checkpoints.gguf_writing import FILE_TYPES, WEIGHED
from specdec.models.checkpoints.hub import DESCRIBING, TEMPLATES
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
        A model, as :func:`specdec.load` takes it.
    out : path-like
        A path that ends in ``.gguf``: a GGUF file. One that ends in ``.specdec``: a packed file, the model as
        it is in memory. A path without a suffix: a Hugging Face folder, new or empty. Other suffixes of
        files, such as ``.bin``, are refused, unless there is a folder of that name.
    type : str, optional
        In capital letters or small ones. Of a GGUF file: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K,
        which all matrices have, or a mixture: Q4_K_S, Q4_K_M, Q5_K_S or Q5_K_M, whose matrices have the types
        that llama.cpp chooses. None: F16, or BF16 of a model in bf16. Norms, biases and routers stay in F32;
        rows that are no multiple of a type's block get the next type with smaller blocks. Of a folder: F32,
        F16 or BF16 (None: what the source holds, F32 where it holds codes), or INT8 or INT4: a folder in the
        layout of compressed-tensors that is loaded as the model is in this ``dtype``, to the bit; codes that
        the source has in these formats stay as they are. Of a packed file: the ``dtype`` of
        :func:`specdec.load`.
    tokenizer : None, False, path-like or Tokenizer
        As of :func:`specdec.load`. False: a file without vocabulary.
    importance : path-like, optional
        Of a GGUF file with Q4_0, Q4_K, Q5_K or Q6_K: how much the errors of each input of a matrix count. A
        text in UTF-8, some 50,000 tokens of the kind that the model is used for, which it reads to measure
        the mean squares of its inputs; or a GGUF file of llama.cpp's ``llama-imatrix``.
    adapter : path-like, optional
        The folder of a LoRA adapter, which is merged into what is written, as :func:`specdec.load` merges it.
        The sums of a checkpoint in bf16 are written in BF16, unless another type is given.
    max_shard_size : int, optional
        Of a folder: write files of at most so many bytes of tensors, and an index of them. A tensor that is
        larger has a file of its own. None: one file.
    force : bool
        Replace the file or the folder at ``out`` once the new one is complete. A folder that holds anything
        else than a Hugging Face model is refused, as it would be lost.
    progress : bool, optional
        Show a progress bar (needs tqdm). None: for large checkpoints, in a terminal.

    Returns
    -------
    Path
        What was written.

    Warns
    -----
    UserWarning
        Of codes that are written as numbers, in a folder.

    Raises
    ------
    UnsupportedModelError
        An architecture that the format does not have, or that it cannot describe as it is; an adapter as
        :func:`specdec.load` refuses it.
    TokenizerError
        A tokenizer that a GGUF file cannot hold.
    CheckpointError
        A damaged checkpoint or adapter, or weights that are too large for the type.
    InputError
        Arguments of other types, an output that exists (without ``force``) or has another suffix; a text as
        importance for a model with an encoder or without tokenizer.
    OSError
        It cannot be written.

    Examples
    --------
    >>> specdec.convert("path/to/folder", "model-Q8_0.gguf", "Q8_0")
    PosixPath('model-Q8_0.gguf')
    """
    path = check_path("out", out)
    force = check_flag("force", force)
    _check_out(path, force)
    if importance is not None and path.suffix != ".gguf":
        raise InputError(f"importance is given, for {path}; expected None, but for a GGUF file")
    if max_shard_size is not None:
        check_integer("max_shard_size", max_shard_size, 1)
        if path.suffix in (".gguf", ".specdec"):
            raise InputError.of("max_shard_size", max_shard_size, "None, but for a folder")
    of_adapter = None if adapter is None else check_path("adapter", adapter)
    if path.suffix == ".specdec":
        return _pack(source, path, type, tokenizer, of_adapter, progress)
    to_gguf = path.suffix == ".gguf"
    type = type.upper() if isinstance(type, str) else type
    check_choice("type", type, tuple(FILE_TYPES) if to_gguf else FOLDER_TYPES, optional=True)
    if importance is not None and type not in WEIGHED:
        found = f"importance is given, for type {shown(type)}"
        raise InputError(f"{found}; expected None, or one of {', '.join(WEIGHED)}")
    checkpoint = open_checkpoint(source, tokenizer=tokenizer)
    if of_adapter is not None:
        checkpoint, _ = merged(checkpoint, of_adapter)
    if to_gguf:
        dtype = type or ("BF16" if checkpoint.dtype == "bf16" else "F16")
        weights = Importance()
        if importance is not None:
            model = partial(load, source, tokenizer=tokenizer, adapter=of_adapter, progress=progress)
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
            raise InputError(f"out {path} exists; expected a new path (force=True, --force: replace it)")
        return
    if _FILE_SUFFIX.fullmatch(path.suffix) and not path.is_dir():
        expected = ".gguf, .specdec, or no suffix for a Hugging Face folder"
        raise InputError(f"out {path} ends in {path.suffix}; expected {expected}")
    if path.exists() and not path.is_dir():
        raise InputError(f"out {path} is a file; expected .gguf, .specdec, or the path of a folder")
    if not path.exists() or not any(path.iterdir()):
        return
    if not force:
        expected = "a new or empty folder (force=True, --force: replace the model in it)"
        raise InputError(f"out {path} exists and is not empty; expected {expected}")
    if not (path / "config.json").is_file():
        raise InputError(f"out {path} holds other files than a model's; expected a new or empty folder")
    for entry in sorted(path.iterdir()):
        if entry.name not in (*DESCRIBING, Path(TEMPLATES).parent.name) and entry.suffix != ".safetensors":
            why = "which is no part of a Hugging Face model and would be lost"
            expected = "a folder with a model alone, or a new or empty one"
            raise InputError(f"out {path} holds {entry.name!r}, {why}; expected {expected}")


def _pack(
    source: Any, path: Path, type: Any, tokenizer: Any, adapter: Path | None, progress: bool | None
) -> Path:
    if tokenizer not in (None, False):
        raise InputError("tokenizer is given, for a packed file; expected None or False")
    dtype: Any = type.lower() if isinstance(type, str) else type
    model = load(source, dtype, tokenizer=tokenizer, adapter=adapter, progress=progress)
    if model.path.is_file() and is_packed(model.path):
        found = "is a packed file, which load maps"
        raise CheckpointError(f"{model.path}: {found}; expected the model that it was made of")
    write_packed(path, model, with_tokenizer=tokenizer is None, n_threads=check_threads(None))
    return path
