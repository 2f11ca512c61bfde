"""Random tokens as a draft."""

from __future__ import annotations

from specdec.drafts.draft import Description, Draft
from specdec.models.model import Model

__all__ = ["Random"]


class Random(Draft):
    """Tokens drawn uniformly from the target's vocabulary, whatever the sampling settings.

    The floor of all drafts (arXiv 2211.17192, section 3.6): a guess is accepted with probability
    Σ min(p(x), 1 / n_vocab), which at temperature 0 is 1 / n_vocab.
    """

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        return "random", {}

    def __repr__(self) -> str:
        return "<specdec.drafts.Random>"
