"""An n-gram draft that learns from the text while it is written."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from specdec.drafts.draft import Description, Draft, check_n_vocab
from specdec.drafts.ids import Ids, check_ids, check_n, check_n_ids
from specdec.drafts.ngram import Ngram, Smoothing, check_smoothing, lengthen, unigram
from specdec.drafts.ngram_counts import NgramCounts
from specdec.errors import InputError
from specdec.models.model import Model

__all__ = ["OnlineNgram"]


class OnlineNgram(Draft):
    """An n-gram draft that counts each text, prompt included, as it grows.

    After every round its distributions are those of `Ngram` of the table that it began with and of the
    text so far: ``Ngram([*texts, text_so_far], n_vocab, n)``. Guesses are not counted, only what became
    text. Every sequence of a batch has counts of its own, so its output is that of its single run, and they
    end with it. Room for the longest text is taken when a run begins (4 bytes a token, and 8 for each
    token of the vocabulary), so that a round never allocates.

    Parameters
    ----------
    start : int or Ngram, default 3
        The table to begin with; or n, 1 to 8, to begin with nothing.
    smoothing : {"interpolated", "backoff"}
        Of `Ngram`; with a table it is the table's.

    Raises
    ------
    InputError
        If n or the name is not one of these.
    """

    def __init__(self, start: int | Ngram = 3, *, smoothing: Smoothing | None = None) -> None:
        self.table = start if isinstance(start, Ngram) else None
        if isinstance(start, Ngram):
            if smoothing is not None and check_smoothing(smoothing) != start.smoothing:
                raise InputError(f"smoothing is {smoothing!r}; expected the table's, {start.smoothing!r}")
            self.n, self.smoothing = start.n, start.smoothing
        else:
            self.n = check_n(start)
            self.smoothing = check_smoothing("interpolated" if smoothing is None else smoothing)

    def _table(self, n_vocab: int) -> Ngram:
        if self.table is not None:
            return self.table
        return Ngram.of(NgramCounts.empty(n_vocab, self.n), self.smoothing)

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        table = self._table(target.config["n_vocab"])
        check_n_vocab(table.n_vocab, target)
        return "online_ngram", table.core

    def probabilities(self, ids: Ids, n_vocab: int | None = None) -> NDArray[np.float64]:
        """The distribution of the next token after each of some tokens, which are a text from its beginning.

        Parameters
        ----------
        ids : sequence of int, [n_tokens]
        n_vocab : int, optional
            Number of different token ids; needed without a table.

        Returns
        -------
        ndarray of float64, [n_tokens, n_vocab]
            Row i is the distribution of the token after ids[: i + 1], which have been counted.

        Raises
        ------
        InputError
            If a token is not in 0 to n_vocab - 1, or n_vocab is missing.
        """
        if self.table is not None:
            n_vocab = self.table.n_vocab
        if n_vocab is None:
            raise InputError("n_vocab is missing; expected the number of token ids, as there is no table")
        n_vocab = check_n_ids(n_vocab)
        table = self._table(n_vocab)
        tokens = check_ids(ids, n_vocab).tolist()
        singles = table.counts.unigrams.astype(np.int64)
        after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)  # of the text so far
        rows = np.empty((len(tokens), n_vocab))
        for i, row in enumerate(rows):
            singles[tokens[i]] += 1
            for k in range(1, min(self.n - 1, i) + 1):
                after[tuple(tokens[i - k : i])][tokens[i]] += 1
            row[:] = unigram(singles)
            for k in range(1, min(self.n - 1, i + 1) + 1):
                context = tokens[i + 1 - k : i + 1]
                seen, counts = table.after(context)
                total = Counter(dict(zip(seen.tolist(), counts.tolist(), strict=True)))
                total.update(after[tuple(context)])
                lengthen(row, np.array(list(total), int), np.array(list(total.values()), int), self.smoothing)
            if self.smoothing == "backoff":
                row /= row.sum()
        return rows

    def __repr__(self) -> str:
        return f"<specdec.drafts.OnlineNgram of {self.n}-grams, from {self.table or 'nothing'}>"
