"""What drafts in the session of an engine, and what of it drafts for each request."""

from __future__ import annotations

from collections.abc import Mapping

from specdec import _core
from specdec.checks import check_flag, check_integer
from specdec.decoding.adaptive_gamma import AdaptiveGamma, RunKind
from specdec.decoding.generation import Speculative
from specdec.decoding.options import DecodingOptions
from specdec.decoding.request import Drafting, Request, most_guesses
from specdec.drafts.copies import PREDICTION_GAMMA
from specdec.drafts.draft import MAX_GAMMA, Draft, check_source
from specdec.drafts.ensemble import EVERY_DRAFT, DraftSelection
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.errors import InputError, shown
from specdec.models.model import Model
from specdec.verification.rules import ONE_DRAFT_RULES

_MOST_DRAFTS = 60
"""That requests may choose from: each has a bit of 64, and predictions too."""


class EngineDrafts:
    """The drafts of an engine, with copies of predictions; each request uses one of them, or none.

    `drafts`, the first of which drafts for requests that name none, have `names` where they are given by
    name. `of_session` is what drafts in the session.
    """

    def __init__(
        self,
        target: Model,
        draft: DraftLike | Mapping[str, DraftLike] | None,
        options: DecodingOptions,
        *,
        predictions: bool,
        n_threads: int,
    ) -> None:
        self.names, self.drafts = _opened(draft, target)
        guesses = [most_guesses(options, one) for one in self.drafts]
        self._gammas = [most for most, _ in guesses]
        self._prediction_gamma = PREDICTION_GAMMA if predictions else 0
        self._choice: DraftSelection | None = None
        self.of_session = Drafting()
        if predictions or len(self.drafts) > 1:
            adaptive = options.policy is not None  # an ensemble that adapts decides by itself
            self._choice = DraftSelection(
                self.drafts, self._gammas, predictions=predictions, adaptive=adaptive
            )
            self.of_session = Drafting(self._choice, self._choice.describe(target), self._choice.most)
        elif self.drafts and self._gammas[0] > 0:
            (draft,), policy = self.drafts, guesses[0][1]
            kind = RunKind(target, draft, 0.0, "rejection", n_threads)
            adapted = (policy, kind) if isinstance(policy, AdaptiveGamma) else None
            self.of_session = Drafting(draft, draft.describe(target), self._gammas[0], adapted)

    @property
    def takes_predictions(self) -> bool:
        """Whether requests may come with a prediction."""
        return self._prediction_gamma > 0

    def settings_of(
        self, request: Request, speculative: Speculative, prediction: list[int] | None
    ) -> _core.Settings:
        """How the texts of a request are decoded; an InputError where no draft has the name that it chooses.

        Raises a CheckpointError where another program has changed the packed file of a draft.
        """
        for draft in self.drafts:
            for model in draft.readers:
                _ = model.core  # compares its packed file, if it is mapped from one
        plain, index = self._chosen(speculative.draft)
        predicted = bool(prediction) and not plain
        gamma = self._gammas[index] if index is not None else 0
        if predicted and request.rule in ONE_DRAFT_RULES and not request.sampling.greedy:
            index, gamma = None, 0  # copies alone, as two drafts side by side cannot be judged
        if gamma == 0:
            index = None
        if self._choice is not None:
            drafters = self._choice.bits(index, predicted=predicted)
        else:
            drafters = 0 if index is None else EVERY_DRAFT
        if predicted:
            gamma += self._prediction_gamma
        if speculative.gamma is not None:
            gamma = min(check_integer("speculative.gamma", speculative.gamma, 0, MAX_GAMMA), gamma)
        return request.settings(
            0, gamma=min(gamma, MAX_GAMMA), drafters=drafters, prediction=prediction if predicted else None
        )

    def _chosen(self, draft: bool | str) -> tuple[bool, int | None]:
        """(whether a request is decoded plainly, which draft it uses, if any)."""
        if isinstance(draft, str):
            if draft not in self.names:
                expected = " or ".join(map(repr, self.names)) or "True or False: the draft has no name"
                raise InputError.of("speculative.draft", draft, expected)
            return False, self.names.index(draft)
        if not check_flag("speculative.draft", draft):
            return True, None
        return False, 0 if self.drafts else None


def _opened(
    draft: DraftLike | Mapping[str, DraftLike] | None, target: Model
) -> tuple[list[str], list[Draft]]:
    """(the names of the drafts, if they have any, the drafts)."""
    if not isinstance(draft, Mapping):
        return [], [] if draft is None else [_one("draft", draft, target)]
    if not 1 <= len(draft) <= _MOST_DRAFTS:
        raise InputError(f"draft has {len(draft)} drafts; expected 1 to {_MOST_DRAFTS}")
    for name in draft:
        if not isinstance(name, str) or not name:
            raise InputError(f"draft has the name {shown(name)}; expected a str of a character at least")
    return list(draft), [_one(f"draft[{name!r}]", one, target) for name, one in draft.items()]


def _one(name: str, draft: DraftLike, target: Model) -> Draft:
    opened = open_draft(name, draft, target=target)
    check_source(opened.reads_source, target)
    return opened
