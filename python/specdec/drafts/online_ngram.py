"""An n-gram draft that learns from the text while it is written."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from specdec.drafts.draft import Description, Draft
from specdec.drafts.ids import Ids, check_ids, check_n, check_n_ids
from specdec.drafts.ngram import Ngram, Smoothing, check_smoothing, row_after
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
        return Ngram.of(NgramCounts.count([np.zeros(0, np.int64)], n_vocab, self.n), self.smoothing)

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        _, table = self._table(target.config["n_vocab"]).describe(target)
        return "online_ngram", table

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
        table = self._table(check_n_ids(n_vocab))
        tokens = check_ids(ids, table.n_vocab).tolist()
        rows = np.empty((len(tokens), table.n_vocab))
        seen: dict[tuple[int, ...], Counter[int]] = {}  # what followed each context in the text so far
        for i, row in enumerate(rows):
            for k in range(min(self.n - 1, i) + 1):
                seen.setdefault(tuple(tokens[i - k : i]), Counter())[tokens[i]] += 1
            row[:] = row_after(table, tokens[: i + 1], seen)
        return rows

    def __repr__(self) -> str:
        return f"<specdec.drafts.OnlineNgram of {self.n}-grams, from {self.table or 'nothing'}>"
