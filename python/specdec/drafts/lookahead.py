"""Lookahead decoding: the target drafts for itself, by Jacobi iteration."""

from __future__ import annotations

from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.errors import InputError
from specdec.models.model import Model


class Lookahead(Draft):
    """Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): no draft, the target's own parallel guesses.

    Ahead of the text is a window of ``ngram - 1`` rows of ``window`` columns, which the target reads in the
    same forward pass. What it predicts after the last row of each column is the next row (Jacobi iteration),
    and makes an n-gram of the column. Of those of a sequence's last 256 rounds, the most recent ones that
    begin with the text's last token are candidates, at most ``candidates``. Every draft token is chosen and
    not drawn; row 0 of the window may be accepted too.

    Parameters
    ----------
    window : int, default 2
        W of the paper: columns, at least 1. At first, and where accepted tokens have moved the window on,
        they hold tokens of the text at random; which ones follows from the run's seed.
    ngram : int, default 2
        N of the paper: at least 2.
    candidates : int, optional
        G of the paper: at least 0; by default ``window``.

    Attributes
    ----------
    gamma : int
        (window + candidates) (ngram - 1), at most 1024: draft tokens of a round. With fewer, or near the end
        of the text, columns are taken off the window's end, and then the last candidates are cut.

    Notes
    -----
    A round reads ``gamma + 1`` rows at most to gain a token or two. The paper's windows (W = 15, N = 5 on a
    GPU) cost more on a CPU than they bring: the small default pays for greedy decoding, mostly of text that
    repeats itself, and hardly for sampling. The argmax is that of logits before penalties and biases.
    """

    def __init__(self, window: int = 2, ngram: int = 2, *, candidates: int | None = None) -> None:
        self.window = check_integer("window", window, 1, MAX_GAMMA)
        self.ngram = check_integer("ngram", ngram, 2, MAX_GAMMA)
        candidates = self.window if candidates is None else candidates
        self.candidates = check_integer("candidates", candidates, 0, MAX_GAMMA)
        self.gamma = (self.window + self.candidates) * (self.ngram - 1)
        if self.gamma > MAX_GAMMA:
            raise InputError.of("(window + candidates) (ngram - 1)", self.gamma, f"at most {MAX_GAMMA}")

    def describe(self, target: Model) -> Description:
        return "lookahead", {"window": self.window, "ngram": self.ngram, "candidates": self.candidates}

    def __repr__(self) -> str:
        return f"Lookahead(window={self.window}, ngram={self.ngram}, candidates={self.candidates})"
