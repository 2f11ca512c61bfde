"""Several drafts of which each text uses one, beside which a prediction may be copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.drafts.ensemble import Ensemble
from specdec.drafts.predictions import PREDICTION_GAMMA, PredictionCopy

__all__ = ["EVERY_DRAFT", "DraftSelection"]

EVERY_DRAFT: Final = 2**64 - 1
"""`_core.Settings.drafters` of a text that all drafts of a session guess for."""


class DraftSelection(Ensemble):
    """Drafts side by side; `_core.Settings.drafters` of each text says which of them guess for it.

    Parameters
    ----------
    drafts : sequence of Draft
    gammas : sequence of int
        Guesses of each in a round at most.
    predictions : bool
        Whether predictions are copied: the first of the drafts side by side.
    adaptive : bool
        See `Ensemble`.
    """

    def __init__(
        self, drafts: Sequence[Draft], gammas: Sequence[int], *, predictions: bool, adaptive: bool
    ) -> None:
        copies = [PredictionCopy()] if predictions else []
        self._own_gammas = [PREDICTION_GAMMA] * len(copies) + [max(gamma, 1) for gamma in gammas]
        self._n_copies = len(copies)
        super().__init__(*copies, *drafts, adaptive=adaptive)

    @property
    def _gammas(self) -> list[int]:
        return self._own_gammas

    def bits(self, index: int | None, *, predicted: bool) -> int:
        """Which of them guess for a text: the draft with this index, if any, and copies of its prediction."""
        found = 1 if predicted and self._n_copies else 0
        return found if index is None else found | 1 << (self._n_copies + index)

    @property
    def most(self) -> int:
        """Guesses of a text in a round at most."""
        of_drafts = self._own_gammas[self._n_copies :]
        return min(max(of_drafts, default=0) + sum(self._own_gammas[: self._n_copies]), MAX_GAMMA)
