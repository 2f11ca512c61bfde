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
from specdec.drafts.ngram_counts import NgramCounts, NgramLevel
from specdec.errors import CheckpointError
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata

__all__ = ["read_ngrams", "write_ngrams"]

METADATA: Final = {"format": "specdec n-gram counts", "version": "1"}
_PARTS: Final = ("starts", "tokens", "counts")  # 64 bits first: so each array is aligned in the file


def write_ngrams(path: Path, counts: NgramCounts, smoothing: str) -> None:
    """Write counts to a file, which is there as a whole or not at all."""
    levels = list(enumerate(counts.levels, 2))
    arrays = {f"{part}.{k}": getattr(level, part) for part in _PARTS for k, level in levels}
    arrays["unigrams"] = counts.unigrams
    header: dict[str, Any] = {"__metadata__": METADATA | {"smoothing": smoothing}}
    end = 0
    for name, array in arrays.items():
        dtype, begin, end = f"I{8 * array.itemsize}", end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": [len(array)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data.cast("B"))


def read_ngrams(path: Path, mmap: bool) -> tuple[NgramCounts, str]:
    """The counts of a file, in memory or as views of the mapped file, and the smoothing.

    Whether the arrays are those of a table is left to the core.

    Raises
    ------
    CheckpointError
        The file is damaged, or holds something else.
    """
    tensors, metadata = read_safetensors_with_metadata(path)
    for name, expected in METADATA.items():
        if metadata.get(name) != expected:
            raise CheckpointError(
                f"{path}: metadata field '{name}' is {metadata.get(name)!r}; expected {expected!r}"
            )

    def take(name: str) -> NDArray[Any]:
        if name not in tensors:
            raise CheckpointError(f"{path}: tensor '{name}' is missing")
        return tensors.pop(name).integers(mmap=mmap)

    n = sum(name.startswith("tokens.") for name in tensors) + 1
    levels = tuple(NgramLevel(*(take(f"{part}.{k}") for part in _PARTS)) for k in range(2, n + 1))
    counts = NgramCounts(take("unigrams"), levels)
    if tensors:
        raise CheckpointError(f"{path}: tensor '{min(tensors)}' is none of a table of {n}-grams")
    return counts, metadata.get("smoothing", "")
