"""Counts of n-grams in a file: safetensors, so that they can be mapped and other programs can read them.

Tensors ``unigrams`` (I32, [n_vocab]) and for k = 2 … n ``starts.k`` (I64), ``tokens.k`` and ``counts.k``
(I32), as in `NgramCounts`; metadata ``format``, ``version`` and ``smoothing``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.drafts.ids import MAX_N
from specdec.drafts.ngram_counts import NgramCounts, NgramLevel
from specdec.errors import CheckpointError
from specdec.models.checkpoints.safetensors_file import StoredTensor, read_safetensors_with_metadata
from specdec.models.json_fields import as_json

__all__ = ["read_ngrams", "write_ngrams"]

FORMAT: Final = "specdec n-gram counts"
VERSION: Final = "1"
_DTYPES: Final = {"I32": "<i4", "I64": "<i8"}


def write_ngrams(path: Path, counts: NgramCounts, smoothing: str) -> None:
    """Write counts to a file, which is there as a whole or not at all."""
    arrays: dict[str, tuple[str, NDArray[Any]]] = {}
    for k, level in enumerate(counts.levels, 2):  # 64 bits first: so each array is aligned
        arrays[f"starts.{k}"] = "I64", level.starts
    arrays["unigrams"] = "I32", counts.unigrams
    for k, level in enumerate(counts.levels, 2):
        arrays[f"tokens.{k}"] = "I32", level.tokens
        arrays[f"counts.{k}"] = "I32", level.counts
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "version": VERSION, "smoothing": smoothing}}
    end = 0
    for name, (dtype, array) in arrays.items():
        header[name] = {
            "dtype": dtype, "shape": [len(array)], "data_offsets": [end, end := end + array.nbytes]
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for dtype, array in arrays.values():
            file.write(np.ascontiguousarray(array, _DTYPES[dtype]).data.cast("B"))


def read_ngrams(path: Path, mmap: bool) -> tuple[NgramCounts, str]:
    """The counts of a file, in memory or as views of the mapped file, and the smoothing.

    Whether starts and tokens are in their ranges is left to the core.

    Raises
    ------
    CheckpointError
        The file is damaged, or holds something else.
    """
    tensors, metadata = read_safetensors_with_metadata(path)
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        if metadata.get(name) != expected:
            raise CheckpointError(
                f"{path}: metadata field '{name}' is {metadata.get(name)!r}; expected {expected!r}"
            )
    n = sum(name.startswith("tokens.") for name in tensors) + 1
    if n > MAX_N:
        raise CheckpointError(f"{path}: has n-grams of {n} lengths; expected at most {MAX_N}")
    unigrams = _take(path, tensors, "unigrams", "I32", None, mmap)
    n_before, levels = len(unigrams), []
    for k in range(2, n + 1):
        starts = _take(path, tensors, f"starts.{k}", "I64", n_before + 1, mmap)
        tokens = _take(path, tensors, f"tokens.{k}", "I32", None, mmap)
        counts = _take(path, tensors, f"counts.{k}", "I32", len(tokens), mmap)
        levels.append(NgramLevel(starts, tokens, counts))
        n_before = len(tokens)
    if tensors:
        raise CheckpointError(f"{path}: tensor '{min(tensors)}' is none of a table of {n}-grams")
    return NgramCounts(unigrams, tuple(levels)), metadata.get("smoothing", "")


def _take(
    path: Path, tensors: dict[str, StoredTensor], name: str, dtype: str, length: int | None, mmap: bool
) -> NDArray[Any]:
    if name not in tensors:
        raise CheckpointError(f"{path}: tensor '{name}' is missing")
    tensor = tensors.pop(name)
    if tensor.dtype != dtype:
        raise CheckpointError(f"{path}: tensor '{name}' has dtype {tensor.dtype}; expected {dtype}")
    if len(tensor.shape) != 1 or length not in (None, tensor.shape[0]):
        raise CheckpointError(
            f"{path}: tensor '{name}' has shape {as_json(list(tensor.shape))}; "
            f"expected {'one dimension' if length is None else [length]}"
        )
    return tensor.integers(mmap=mmap)
