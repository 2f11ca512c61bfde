"""A copying draft: each text may come with a prediction of what it will be."""

from __future__ import annotations

from typing import Final

from specdec.drafts.draft import Description
from specdec.drafts.input_copy import InputCopy
from specdec.models.model import Model

__all__ = ["PREDICTION_GAMMA", "PredictionCopy"]

PREDICTION_GAMMA: Final = 15
"""Guesses of a round that are copied from a prediction."""


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
