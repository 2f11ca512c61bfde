"""Several drafts at once."""

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
"""`_core.Settings.drafters` of a sequence that uses all drafts of a session."""


class Ensemble(Draft):
    """Several drafts whose tokens are merged into one tree; drafts that do not pay are skipped.

    Each round asks the drafts in the given order, so list cheap ones first. The target verifies their tokens
    as one tree with shared prefixes (SpecInfer's merged trees, arXiv 2305.09781).

    With `adaptive`, a token is drafted only if its expected gain over the earlier drafts is worth its time:
    the policy of ``gamma="auto"`` (`specdec.AdaptiveGamma`) for each draft, learned from measured rounds. So
    a model is not run while a copied passage continues. Drafts that do not pay are retried less and less
    often; drafts that pay are occasionally skipped. This is exact with every rule that accepts trees, because
    it depends on earlier rounds, the clock and committed tokens only.

    Parameters
    ----------
    *drafts : Model, path, hub name, Draft or Drafter
        At least one; each proposes at most its own default number of tokens.
    adaptive : bool, default True
        Skip drafts and tokens that do not pay, by measured times. Above temperature 0 a seed then fixes the
        distribution of the output but not the output, except with ``verify="coupled"``. False: ask all drafts
        in every round and split the budget evenly; runs are reproducible.

    Attributes
    ----------
    drafts : tuple of Draft
        The drafts; a model becomes a `ModelDraft`.
    gamma : int
        Sum of the drafts' gammas, at most 1024. With a smaller budget, better drafts get larger shares.
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
    """Drafts of at most `gammas` tokens, after copies of predictions; each sequence selects its own."""

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
        """Return the bit mask of a sequence's drafts: the one at `index` and copies of its prediction."""
        found = 1 if predicted and self._n_copies else 0
        return found if index is None else found | 1 << (self._n_copies + index)

    @property
    def most(self) -> int:
        """Largest number of draft tokens of a sequence in a round."""
        of_drafts = self._own_gammas[self._n_copies :]
        return min(max(of_drafts, default=0) + sum(self._own_gammas[: self._n_copies]), MAX_GAMMA)
