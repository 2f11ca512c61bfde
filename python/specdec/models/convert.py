"""`convert`: models in another file format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from specdec.checks import check_choice, check_flag, check_path
from specdec.errors import CheckpointError, InputError, shown
from specdec.models.adapter import merged
from specdec.models.checkpoints import open_checkpoint
from specdec.models.checkpoints.gguf_types import FILE_TYPES, WEIGHED
from specdec.models.conversion.folder_as_gguf import write_as_gguf
from specdec.models.conversion.importance import (
    Importance,
    measured_importance,
    read_importance,
    read_text,
)
from specdec.models.conversion.model_as_folder import FOLDER_TYPES, write_as_folder
from specdec.models.loading import load
from specdec.models.packed_file import write_packed
from specdec.threads import check_threads

__all__ = ["convert"]


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str | None = None,
    *,
    tokenizer: Any = None,
    importance: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a model in another file format.

    Parameters
    ----------
    source : path-like
        A model, as :func:`specdec.load` takes it.
    out : path-like
        A path that ends in ``.gguf``: a GGUF file. One that ends in ``.specdec``: a packed file, the model as
        it lies in memory. Else a folder, which must not be there or be empty: a Hugging Face folder.
    type : str, optional
        Of a GGUF file: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K, which all matrices have, or a mixture:
        Q4_K_S, Q4_K_M, Q5_K_S or Q5_K_M, whose matrices have the types that llama.cpp chooses. None: F16, or
        BF16 of a model in bf16. Norms, biases and routers stay in F32; a matrix whose rows are no multiple of
        a type's block has the next type with smaller blocks. Of a folder: F32, F16 or BF16; None: what the
        source holds, F32 where it holds codes. INT8 or INT4: a folder that is loaded as the model is in this
        ``dtype``, to the bit, in the layout of the library compressed-tensors, which other programs read
        (groups of 32 weights with a scale in f16). Codes that the source has in these formats stay as they
        are. Of a packed file: the ``dtype`` of :func:`specdec.load`. In capital letters or small ones.
    tokenizer : None, False, path-like or Tokenizer
        As of :func:`specdec.load`. False: a file without vocabulary.
    importance : path-like, optional
        Of a GGUF file with Q4_0, Q4_K, Q5_K or Q6_K: how much the errors of each input of a matrix count, by
        the mean squares of the input on a text. A text in UTF-8: the model reads it, whole, in the format
        that :func:`specdec.load` gives it; some 50,000 tokens of the kind that the model is used for are
        enough. Or a GGUF file of llama.cpp's ``llama-imatrix``.
    adapter : path-like, optional
        The folder of a LoRA adapter, which is merged into what is written, as :func:`specdec.load` merges it.
        The sums of a checkpoint in bf16 are written in BF16, unless another type is given.
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
        Arguments of other types, or an output that is there; a text as importance for a model with an encoder
        or without tokenizer.
    OSError
        It cannot be written.

    Examples
    --------
    >>> specdec.convert("path/to/folder", "model-Q8_0.gguf", "Q8_0")
    PosixPath('model-Q8_0.gguf')
    """
    place = check_path("out", out)
    if importance is not None and place.suffix != ".gguf":
        raise InputError(f"importance is given, for {place}; expected None, but for a GGUF file")
    of_adapter = None if adapter is None else check_path("adapter", adapter)
    if place.suffix == ".specdec":
        dtype = type.lower() if isinstance(type, str) else type
        return _pack(source, place, dtype, tokenizer, of_adapter, progress)
    to_gguf = place.suffix == ".gguf"
    type = type.upper() if isinstance(type, str) else type
    check_choice("type", type, tuple(FILE_TYPES) if to_gguf else FOLDER_TYPES, optional=True)
    if importance is not None and type not in WEIGHED:
        raise InputError(
            f"importance is given, for type {shown(type)}; expected None, or one of {', '.join(WEIGHED)}"
        )
    progress = None if progress is None else check_flag("progress", progress)
    checkpoint = open_checkpoint(source, tokenizer=tokenizer)
    if of_adapter is not None:
        checkpoint, _ = merged(checkpoint, of_adapter)
    if to_gguf:
        kind = type or ("BF16" if checkpoint.dtype == "bf16" else "F16")
        weights = _importance(importance, source, tokenizer, of_adapter, progress)
        write_as_gguf(checkpoint, place, kind, weights, progress)
    else:
        write_as_folder(checkpoint, place, type, progress, own_tokenizer=tokenizer is None)
    return place


def _importance(
    given: Any, source: Any, tokenizer: Any, adapter: Path | None, progress: bool | None
) -> Importance:
    if given is None:
        return Importance()
    place = check_path("importance", given, CheckpointError)
    text = read_text(place)
    if text is None:
        return read_importance(place)
    model = load(source, tokenizer=tokenizer, adapter=adapter, progress=progress)
    return measured_importance(model, text, check_threads(None), progress)


def _pack(
    source: Any, place: Path, dtype: Any, tokenizer: Any, adapter: Path | None, progress: bool | None
) -> Path:
    if tokenizer not in (None, False):
        raise InputError("tokenizer is given, for a packed file; expected None or False")
    model = load(source, dtype, tokenizer=tokenizer, adapter=adapter, progress=progress)
    write_packed(
        place, model, model.path, with_tokenizer=tokenizer is None, n_threads=check_threads(None),
        adapter=None if adapter is None else adapter.resolve(),
    )  # fmt: skip
    return place
