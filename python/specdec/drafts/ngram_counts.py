"""How often each n-gram occurs in some texts, in memory (``draft/tables/tables.h``) and in a file.

Tensors ``unigrams`` (I32, [n_vocab]) and for k = 2 … n ``starts.k`` (I64), ``tokens.k`` and ``counts.k``
(I32), as in `NgramCounts`; metadata ``format``, ``version`` and ``smoothing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specdec.drafts.memory_draft import IntegerFile
from specdec.errors import InputError
from specdec.models.checkpoints.safetensors_file import write_safetensors

METADATA: Final = {"format": "specdec n-gram counts", "version": "1"}
_MOST: Final = 2**31 - 1  # counts and numbers of n-grams fit 32 bits
_PARTS: Final = ("starts", "tokens", "counts")  # 64 bits first: so each array is aligned in the file


@dataclass(frozen=True)
class NgramLevel:
    """The k-grams of a text, sorted by their tokens: the last token of each, and how often it occurred.

    Those that begin with (k - 1)-gram i of the level before, which is the vocabulary for k = 2, are
    ``starts[i]`` to ``starts[i + 1] - 1``. `starts` is [n_shorter + 1], the others are [n_grams].
    """

    starts: NDArray[np.int64]
    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]


@dataclass(frozen=True)
class NgramCounts:
    """How often each n-gram up to some length occurred: `unigrams` [n_vocab], and levels from 2-grams on."""

    unigrams: NDArray[np.int32]
    levels: tuple[NgramLevel, ...]

    @staticmethod
    def count(texts: Sequence[NDArray[np.int64]], n_vocab: int, n: int, min_count: int = 1) -> NgramCounts:
        """Count texts, between which no n-gram reaches; 2-grams and longer from `min_count` occurrences on.

        Takes some 40 bytes for a token, and the time of n - 1 sorts.
        """
        ids = np.concatenate(texts)
        left = np.concatenate([np.arange(len(text), 0, -1) for text in texts])  # tokens, to the text's end
        begins, numbers = np.arange(len(ids)), ids  # where each n-gram begins, and its number in its level
        levels: list[NgramLevel] = []
        for k in range(2, n + 1):
            kept = (left[begins] >= k) & (numbers >= 0)
            begins, numbers = begins[kept], numbers[kept]
            keys = numbers * n_vocab + ids[begins + k - 1]
            n_shorter = len(levels[-1].tokens) if levels else n_vocab
            level, numbers = _level(keys, None, n_shorter, n_vocab, min_count)
            levels.append(level)
        return NgramCounts(_narrow(np.bincount(ids, minlength=n_vocab)), tuple(levels))

    def plus(self, other: NgramCounts) -> NgramCounts:
        """Return the sum of two counts of the same vocabulary and length."""
        n_vocab = n_shorter = len(self.unigrams)
        mine = theirs = np.arange(n_vocab)  # the number that an n-gram of either has in the sum
        levels = []
        for a, b in zip(self.levels, other.levels, strict=True):
            shorter = [np.repeat(mine, np.diff(a.starts)), np.repeat(theirs, np.diff(b.starts))]
            keys = np.concatenate(shorter) * n_vocab + np.concatenate([a.tokens, b.tokens])
            level, numbers = _level(keys, np.concatenate([a.counts, b.counts]), n_shorter, n_vocab)
            mine, theirs = np.split(numbers, [len(a.tokens)])
            levels.append(level)
            n_shorter = len(level.tokens)
        return NgramCounts(_narrow(self.unigrams.astype(np.int64) + other.unigrams), tuple(levels))


def _level(
    keys: NDArray[np.int64],
    counts: NDArray[np.int32] | None,
    n_shorter: int,
    n_vocab: int,
    min_count: int = 1,
) -> tuple[NgramLevel, NDArray[np.int64]]:
    """Make the level of n-grams with keys (number of the shorter n-gram · n_vocab + last token) and counts.

    A key that is there several times has all its counts, without counts one for each time. Also the number of
    each key in the level, -1 if it has less than `min_count`.
    """
    keys, numbers = np.unique(keys, return_inverse=True)
    totals = np.bincount(numbers.reshape(-1), counts, len(keys)).astype(np.int64)
    kept = totals >= min_count
    if np.count_nonzero(kept) > _MOST:
        raise InputError(f"ids has {kept.sum()} different n-grams of one length; expected at most {_MOST}")
    shorter, tokens = np.divmod(keys[kept], n_vocab)
    starts = np.searchsorted(shorter, np.arange(n_shorter + 1)).astype(np.int64)
    level = NgramLevel(starts, tokens.astype(np.int32), _narrow(totals[kept]))
    return level, np.where(kept, np.cumsum(kept) - 1, -1)[numbers.reshape(-1)]


def _narrow(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return counts in 32 bits; InputError if one does not fit."""
    if counts.max(initial=0) > _MOST:
        raise InputError(f"an n-gram occurs {counts.max()} times in ids; expected at most {_MOST}")
    return counts.astype(np.int32)


def write_ngrams(path: Path, counts: NgramCounts, smoothing: str) -> None:
    """Write counts to a file, whole or not at all."""
    levels = list(enumerate(counts.levels, 2))
    arrays = {f"{part}.{k}": getattr(level, part) for part in _PARTS for k, level in levels}
    arrays["unigrams"] = counts.unigrams
    write_safetensors(path, arrays, METADATA | {"smoothing": smoothing})


def read_ngrams(path: Path, mmap: bool) -> tuple[NgramCounts, str]:
    """Read counts, in memory or as views of the file, and the smoothing; the core checks the arrays."""
    file = IntegerFile(path, METADATA)
    n = sum(name.startswith("tokens.") for name in file.tensors) + 1
    levels = tuple(
        NgramLevel(*(file.take(f"{part}.{k}", mmap=mmap) for part in _PARTS)) for k in range(2, n + 1)
    )
    counts = NgramCounts(file.take("unigrams", mmap=mmap), levels)
    file.check_end(f"a table of {n}-grams")
    return counts, file.metadata.get("smoothing", "")
