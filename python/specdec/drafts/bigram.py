"""The bigram draft: how often each token follows another in a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.drafts.draft import Description, Draft, check_n_vocab
from specdec.drafts.unigram import Ids, Unigram, check_ids, check_texts

if TYPE_CHECKING:
    from specdec.model import Model

__all__ = ["Bigram"]


class Bigram(Draft):
    """A draft that knows the last token alone.

    P(x | y) = (n(y, x) + d(y) P(x)) / (n(y) + d(y)), with n(y, x) how often x followed y, n(y) = Σ n(y, x),
    d(y) how many different tokens followed y, and P(x) as in `Unigram`: Witten and Bell's interpolation (IEEE
    Transactions on Information Theory 37, 1991). After a token that was never followed by one it is P(x).

    Parameters
    ----------
    ids : sequence of int, or a list of such
        Token ids of the text, or of several texts, between which no pair is counted; at least one token.
    n_vocab : int
        Number of different token ids.

    Attributes
    ----------
    n_vocab : int
    unigram : Unigram
    starts : ndarray of int64, [n_vocab + 1]
        What followed token y is ``successors[starts[y] : starts[y + 1]]``, ascending, as often as ``counts``
        has at the same places: memory grows with the different pairs, not with the square of n_vocab.
    successors, counts : ndarray of int64, [n_pairs]

    Raises
    ------
    InputError
        If there is no token, or one is not in 0 to n_vocab - 1.
    """

    def __init__(self, ids: Ids | Sequence[Ids], n_vocab: int) -> None:
        texts = check_texts(ids, n_vocab)
        self.n_vocab = int(n_vocab)
        self.unigram = Unigram(texts, n_vocab)
        pairs = np.concatenate([text[:-1] * self.n_vocab + text[1:] for text in texts])
        different, self.counts = np.unique(pairs, return_counts=True)
        before, self.successors = np.divmod(different, self.n_vocab)
        self.starts: NDArray[np.int64] = np.searchsorted(before, np.arange(self.n_vocab + 1))

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """The distribution of the next token after each of some tokens.

        Parameters
        ----------
        ids : sequence of int, [n_tokens]

        Returns
        -------
        ndarray of float64, [n_tokens, n_vocab]
            Row i is the distribution of the token after ids[: i + 1], P(x | ids[i]).

        Raises
        ------
        InputError
            If a token is not in 0 to n_vocab - 1.
        """
        tokens = check_ids(ids, self.n_vocab)
        rows = np.empty((len(tokens), self.n_vocab))
        for row, token in zip(rows, tokens, strict=True):
            found = slice(self.starts[token], self.starts[token + 1])
            counts = self.counts[found]
            n_different = len(counts)
            if not n_different:
                row[:] = self.unigram.probs
                continue
            np.multiply(self.unigram.probs, n_different, out=row)
            row[self.successors[found]] += counts
            row /= counts.sum() + n_different
        return rows

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        check_n_vocab(self.n_vocab, target)
        return "bigram", self.core

    @cached_property
    def core(self) -> _core.Bigram:
        """The table as the C core reads it: pairs that occurred; for the others P(x) and a factor of y's."""
        n_different = np.diff(self.starts)
        before = np.repeat(np.arange(self.n_vocab), n_different)
        n = np.bincount(before, weights=self.counts, minlength=self.n_vocab)
        mass = self.counts + n_different[before] * self.unigram.probs[self.successors]
        factor = np.divide(n_different, n + n_different, out=np.ones(self.n_vocab), where=n_different > 0)
        return _core.Bigram(
            np.log(self.unigram.probs).astype(np.float32),
            np.log(factor).astype(np.float32),
            np.ascontiguousarray(self.starts, np.int64),
            self.successors.astype(np.int32),
            np.log(mass / (n + n_different)[before]).astype(np.float32),
        )

    def __repr__(self) -> str:
        return f"<specdec.drafts.Bigram of {self.n_vocab} tokens, {len(self.counts)} pairs>"
