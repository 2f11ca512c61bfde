"""How often each n-gram occurs in some texts, as the core holds it (``draft/tables/ngram_table.h``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.errors import InputError

__all__ = ["NgramCounts", "NgramLevel"]

_MOST = 2**31 - 1  # counts and numbers of n-grams fit 32 bits


@dataclass(frozen=True)
class NgramLevel:
    """The k-grams of a text, sorted by their tokens.

    Attributes
    ----------
    starts : ndarray of int64, [n_shorter + 1]
        Those that begin with (k - 1)-gram i of the level before are ``starts[i]`` to ``starts[i + 1] - 1``;
        the level before the 2-grams is the vocabulary.
    tokens, counts : ndarray of int32, [n_grams]
        The last token of each, and how often it occurred.
    """

    starts: NDArray[np.int64]
    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]


@dataclass(frozen=True)
class NgramCounts:
    """How often each n-gram up to some length occurred. Memory grows with the different ones.

    Attributes
    ----------
    unigrams : ndarray of int32, [n_vocab]
    levels : tuple of NgramLevel
        Of the 2-grams, 3-grams, …
    """

    unigrams: NDArray[np.int32]
    levels: tuple[NgramLevel, ...]

    @property
    def n(self) -> int:
        """The longest n-grams that are counted."""
        return len(self.levels) + 1

    @property
    def n_vocab(self) -> int:
        """Number of different token ids."""
        return len(self.unigrams)

    @classmethod
    def empty(cls, n_vocab: int, n: int) -> NgramCounts:
        """Nothing was seen."""
        sizes = [n_vocab, *[0] * (n - 2)][: n - 1]
        nothing = np.zeros(0, np.int32)
        return cls(
            np.zeros(n_vocab, np.int32),
            tuple(NgramLevel(np.zeros(size + 1, np.int64), nothing, nothing) for size in sizes),
        )

    @classmethod
    def count(
        cls, texts: Sequence[NDArray[np.int64]], n_vocab: int, n: int, min_count: int = 1
    ) -> NgramCounts:
        """Count texts, between which no n-gram reaches; 2-grams and longer from `min_count` occurrences on.

        Takes some 40 bytes for a token, and the time of n - 1 sorts.
        """
        ids = np.concatenate(texts)
        ends = np.repeat(np.cumsum([len(text) for text in texts]), [len(text) for text in texts])
        unigrams = narrow(np.bincount(ids, minlength=n_vocab))
        # where an n-gram begins, and its number: the rank among those of its length
        begins, numbers, n_before = np.arange(len(ids)), ids, n_vocab
        levels = []
        for k in range(2, n + 1):
            fits = begins + k <= ends[begins]
            begins, numbers = begins[fits], numbers[fits]
            keys, numbers, counts = np.unique(
                numbers * n_vocab + ids[begins + k - 1], return_inverse=True, return_counts=True
            )
            numbers = numbers.reshape(-1)
            if min_count > 1:
                kept = counts >= min_count
                begins, numbers = begins[kept[numbers]], (np.cumsum(kept) - 1)[numbers[kept[numbers]]]
                keys, counts = keys[kept], counts[kept]
            levels.append(_level(keys, counts, n_before, n_vocab))
            n_before = len(keys)
        return cls(unigrams, tuple(levels))

    def plus(self, other: NgramCounts) -> NgramCounts:
        """The sum of two counts of the same vocabulary and length."""
        unigrams = narrow(self.unigrams.astype(np.int64) + other.unigrams)
        mine = theirs = np.arange(self.n_vocab)  # the number that an n-gram of either has in the sum
        n_before, levels = self.n_vocab, []
        for a, b in zip(self.levels, other.levels, strict=True):
            all_keys = np.concatenate([_keys(a, mine, self.n_vocab), _keys(b, theirs, self.n_vocab)])
            keys, numbers = np.unique(all_keys, return_inverse=True)
            numbers = numbers.reshape(-1)
            counts = np.zeros(len(keys), np.int64)
            np.add.at(counts, numbers, np.concatenate([a.counts, b.counts]))
            mine, theirs = numbers[: len(a.tokens)], numbers[len(a.tokens) :]
            levels.append(_level(keys, counts, n_before, self.n_vocab))
            n_before = len(keys)
        return NgramCounts(unigrams, tuple(levels))


def _level(keys: NDArray[np.int64], counts: NDArray[np.int64], n_before: int, n_vocab: int) -> NgramLevel:
    """From sorted keys: number of the shorter n-gram · n_vocab + last token."""
    if len(keys) > _MOST:
        raise InputError(f"ids has {len(keys)} different n-grams of one length; expected at most {_MOST}")
    before, tokens = np.divmod(keys, n_vocab)
    starts = np.searchsorted(before, np.arange(n_before + 1)).astype(np.int64)
    return NgramLevel(starts, tokens.astype(np.int32), narrow(counts))


def _keys(level: NgramLevel, numbers: NDArray[np.int64], n_vocab: int) -> NDArray[np.int64]:
    return np.repeat(numbers, np.diff(level.starts)).astype(np.int64) * n_vocab + level.tokens


def narrow(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Counts in 32 bits.

    Raises
    ------
    InputError
        One does not fit.
    """
    if len(counts) and counts.max() > _MOST:
        raise InputError(f"an n-gram occurs {counts.max()} times in ids; expected at most {_MOST}")
    return counts.astype(np.int32)
