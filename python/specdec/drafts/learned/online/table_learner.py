"""Tables of n-grams that learn: what the target predicts is counted on top of them."""

from __future__ import annotations

import numpy as np

from specdec.checks import check_integer
from specdec.drafts.learned.online.corrections import Corrections
from specdec.drafts.learned.online.learner import GoesOn, Learner
from specdec.drafts.ngram import Ngram, OnlineNgram
from specdec.drafts.ngram_counts import NgramCounts
from specdec.errors import InputError


class TableLearner(Learner):
    """Counts the corrections on top of a table: each as its last tokens with the target's predictions.

    A token of probability p is counted ``round(weight * p)`` times, the most probable one once at least. The
    draft is the table that it began with and the corrections that are kept: old corrections age out, so the
    table stays bounded.

    Parameters
    ----------
    draft : Ngram or OnlineNgram
        An `OnlineNgram` with a table; it counts its texts on top.
    weight : int, default 8
        How often a correction counts. Where the table knows a context well, it takes more to change that.
    """

    name = "table"
    n_top = 8

    def __init__(self, draft: Ngram | OnlineNgram, *, weight: int = 8) -> None:
        table = draft.table if isinstance(draft, OnlineNgram) else draft
        if not isinstance(table, Ngram):
            raise InputError.of("draft", draft, "an Ngram, or an OnlineNgram with a table")
        self._draft, self._table = draft, table
        self.weight = check_integer("weight", weight, 1, 1 << 16)
        self.n_before = max(table.n - 1, 1)

    def learn(self, corrections: Corrections, n_new: int, goes_on: GoesOn) -> Ngram | OnlineNgram:
        table = self._table
        if texts := self._texts(corrections):
            counts = table.counts.plus(NgramCounts.count(texts, table.n_vocab, table.n))
            table = type(table).of(counts, table.smoothing)
        _ = table.core  # made here, not when it is first used
        return OnlineNgram(table) if isinstance(self._draft, OnlineNgram) else table

    def _texts(self, corrections: Corrections) -> list[np.ndarray]:
        """Return short texts: of each correction the last tokens and one after them."""
        times = np.rint(self.weight * np.exp(corrections.log_probs)).astype(np.int64)
        times[:, 0] = np.maximum(times[:, 0], 1)
        rows, columns = np.nonzero(times)
        n_context = self._table.n - 1
        before = corrections.before[rows][:, corrections.before.shape[1] - n_context :]
        short = np.column_stack([before, corrections.top[rows, columns]]).astype(np.int64)
        known = short.max(axis=1) < self._table.n_vocab
        several = np.repeat(short[known], times[rows, columns][known], axis=0)
        return [text[text >= 0] for text in several]
