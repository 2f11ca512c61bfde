"""Counts of n-grams in a file.

Tensors ``unigrams`` (I32, [n_vocab]) and for k = 2 … n ``starts.k`` (I64), ``tokens.k`` and ``counts.k``
(I32), as in `NgramCounts`; metadata ``format``, ``version`` and ``smoothing``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specdec.drafts.integer_file import IntegerFile
from specdec.drafts.ngram_counts import NgramCounts, NgramLevel
from specdec.models.checkpoints.safetensors_file import write_safetensors

__all__ = ["read_ngrams", "write_ngrams"]

METADATA: Final = {"format": "specdec n-gram counts", "version": "1"}
_PARTS: Final = ("starts", "tokens", "counts")  # 64 bits first: so each array is aligned in the file


def write_ngrams(path: Path, counts: NgramCounts, smoothing: str) -> None:
    """Write counts to a file, which is there as a whole or not at all."""
    levels = list(enumerate(counts.levels, 2))
    arrays = {f"{part}.{k}": getattr(level, part) for part in _PARTS for k, level in levels}
    arrays["unigrams"] = counts.unigrams
    write_safetensors(path, arrays, METADATA | {"smoothing": smoothing})


def read_ngrams(path: Path, mmap: bool) -> tuple[NgramCounts, str]:
    """The counts of a file, in memory or as views of the mapped file, and the smoothing.

    Whether the arrays are those of a table is left to the core.

    Raises
    ------
    CheckpointError
        The file is damaged, or holds something else.
    """
    file = IntegerFile(path, METADATA)
    n = sum(name.startswith("tokens.") for name in file.tensors) + 1
    levels = tuple(
        NgramLevel(*(file.take(f"{part}.{k}", mmap=mmap) for part in _PARTS)) for k in range(2, n + 1)
    )
    counts = NgramCounts(file.take("unigrams", mmap=mmap), levels)
    file.check_end(f"a table of {n}-grams")
    return counts, file.metadata.get("smoothing", "")
