"""Several drafts at once, and only those that pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from specdec import _core
from specdec.checks import check_flag
from specdec.drafts.copies import PREDICTION_GAMMA, PredictionCopy
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.errors import InputError
from specdec.models.model import Model

EVERY_DRAFT: Final = 2**64 - 1
"""`_core.Settings.drafters` of a text that all drafts of a session draft for."""


class Ensemble(Draft):
    """Several drafts at once: their draft tokens become one tree, and those that do not pay are left out.

    In every round the drafts are asked in the given order, so name cheap ones first. The target reads the
    tokens of all as one tree, equal beginnings once (SpecInfer's merged trees, arXiv 2305.09781).

    A token is drafted only if what it is expected to add to the drafts before is worth its time: the policy
    of ``gamma="auto"`` (`specdec.AdaptiveGamma`) for each draft, learned from the rounds. So a model is not
    asked where a copied passage continues, and where no draft pays, none is asked. One that does not pay is
    tried again, less and less often; one that pays is left out for a round or two now and then. That is exact
    with every rule that takes trees, as it depends on earlier rounds, the clock and tokens that stay.

    Parameters
    ----------
    *drafts : Model, path, hub name, Draft or Drafter
        At least one; each is asked for at most as many tokens as it drafts by default.
    adaptive : bool, default True
        Leave out drafts and tokens that do not pay, by measured times: with ``verify="rejection"`` and a
        temperature above 0 a seed then fixes the distribution of the output, not the output. False: all are
        asked in every round, the budget is split evenly, and runs can be repeated.

    Attributes
    ----------
    drafts : tuple of Draft
        A model that was given is a `ModelDraft` of it.
    gamma : int
        The sum of the drafts' own, at most 1024: draft tokens of a round. With fewer, a draft that brings
        more gets more of them.
    """

    def __init__(self, *drafts: DraftLike, adaptive: bool = True) -> None:
        if not drafts:
            raise InputError("Ensemble has no draft; expected at least one")
        self.drafts = tuple(open_draft(f"draft {i} of Ensemble", draft) for i, draft in enumerate(drafts))
        self.adaptive = check_flag("adaptive", adaptive)
        self.in_target_cache = any(draft.in_target_cache for draft in self.drafts)
        self.gamma = min(sum(self._gammas), MAX_GAMMA)

    @property
    def parts(self) -> Sequence[Draft]:
        return self.drafts

    @property
    def _gammas(self) -> list[int]:
        return [max(draft.gamma, 1) for draft in self.drafts]

    def describe(self, target: Model) -> Description:
        drafts = [draft.describe(target) for draft in self.drafts]
        return "ensemble", {"adaptive": self.adaptive, "gammas": self._gammas, "drafts": drafts}

    def take_update(self, session: _core.Session, description: Description) -> Description:
        method, arguments = description
        held = cast("list[Description]", arguments["drafts"])
        latest = [draft.take_update(session, one) for draft, one in zip(self.drafts, held, strict=True)]
        if all(new is old for new, old in zip(latest, held, strict=True)):
            return description
        return method, {**arguments, "drafts": latest}

    def snapshot(self) -> Ensemble:
        drafts = [draft.snapshot() for draft in self.drafts]
        if all(new is old for new, old in zip(drafts, self.drafts, strict=True)):
            return self
        copy = Ensemble(*drafts, adaptive=self.adaptive)
        copy._snapshot_of = self
        return copy

    def __repr__(self) -> str:
        given = ", ".join(map(repr, self.drafts))
        return f"Ensemble({given}{'' if self.adaptive else ', adaptive=False'})"


class DraftSelection(Ensemble):
    """Drafts of at most `gammas` tokens, after copies of `predictions`; each text names those that it has."""

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
        """Return those that draft for a text: that with this index, if any, and copies of its prediction."""
        found = 1 if predicted and self._n_copies else 0
        return found if index is None else found | 1 << (self._n_copies + index)

    @property
    def most(self) -> int:
        """Draft tokens of a text in a round at most."""
        of_drafts = self._own_gammas[self._n_copies :]
        return min(max(of_drafts, default=0) + sum(self._own_gammas[: self._n_copies]), MAX_GAMMA)
