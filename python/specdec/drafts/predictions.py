"""A copying draft beside another: each text may come with a prediction of what it will be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.ensemble import Ensemble
from specdec.drafts.input_copy import InputCopy
from specdec.models.model import Model

__all__ = ["OF_DRAFT", "OF_PREDICTION", "PREDICTION_GAMMA", "PredictionCopy", "WithPredictions"]

PREDICTION_GAMMA: Final = 15
"""Guesses of a round that are copied from a prediction."""
OF_PREDICTION: Final = 1
OF_DRAFT: Final = 2
"""Bits of `_core.Settings.drafters`: which of the drafts of `WithPredictions` may guess for a text."""


class PredictionCopy(InputCopy):
    """Copies from the prediction of each text (`_core.Settings.prediction`); nothing where there is none."""

    def __init__(self) -> None:
        super().__init__(min_match=2, gamma=PREDICTION_GAMMA)

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        return "input_copy", {
            "source": None,
            "predictions": True,
            "start": self.start,
            "min_match": self.min_match,
            "n_candidates": self.n_candidates,
        }


class WithPredictions(Ensemble):
    """A draft, or none, beside which predictions are copied.

    Parameters
    ----------
    draft : Draft or None
    gamma : int
        Guesses of the draft in a round at most.
    adaptive : bool
        See `Ensemble`.
    """

    def __init__(self, draft: Draft | None, gamma: int, *, adaptive: bool) -> None:
        self._draft_gamma = gamma
        given: Sequence[Any] = [PredictionCopy()] if draft is None else [PredictionCopy(), draft]
        super().__init__(*given, adaptive=adaptive)
        self.gamma = min(sum(self._gammas), MAX_GAMMA)

    @property
    def _gammas(self) -> list[int]:
        return [PREDICTION_GAMMA, max(self._draft_gamma, 1)][: len(self.drafts)]
