"""A smaller model as draft: in chains, in trees, or with a draft of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdec.drafts.draft import Description, Draft, describe
from specdec.drafts.shapes import Chains, Grown, Shape, check_count
from specdec.errors import InputError
from specdec.tokenizer import check_same_vocabulary

if TYPE_CHECKING:
    import specdec
    from specdec.sampling import Sampling

__all__ = ["Model"]


class Model(Draft):
    """A smaller model drafts (M_q of arXiv 2211.17192): a chain, a tree, or a chain that is itself drafted.

    ``Model(small)`` as a draft is what ``small`` itself is: a chain of gamma tokens.

    Parameters
    ----------
    model : Model, path or hub name
        The model that drafts, with the target's vocabulary.
    tree : Chains, Shape or Grown, optional
        Several candidates for each token, as a tree that the target verifies in one run. None: a chain.
    draft : Draft, Model, path or hub name, optional
        A draft for the draft (section 6 of the paper), which may have one too: the model's chain is decoded
        speculatively. Its guesses have the distribution that they have without, and under greedy decoding
        and the coupled rule they are the same tokens; they only take less time, if the inner draft is good.
    gamma : int, optional
        Guesses a round when the caller of `specdec.generate` does not say: by default 4, or the nodes of the
        tree.

    Attributes
    ----------
    model : specdec.Model
    tree : Chains, Shape, Grown or None
    draft : Draft, specdec.Model or None
    gamma : int

    Raises
    ------
    InputError
        If `tree` is no tree, or there is a tree and a draft, or gamma is not in 1 to 1024.
    VocabularyMismatchError
        If the inner draft cannot guess for the model.
    CheckpointError, TokenizerError
        If a path cannot be loaded.
    """

    def __init__(
        self,
        model: specdec.Model | str | os.PathLike[str],
        *,
        tree: Chains | Shape | Grown | None = None,
        draft: Draft | specdec.Model | str | os.PathLike[str] | None = None,
        gamma: int | None = None,
    ) -> None:
        if tree is not None and not isinstance(tree, Chains | Shape | Grown):
            raise InputError(f"tree is a {type(tree).__name__}; expected Chains, Shape, Grown or None")
        if tree is not None and draft is not None:
            raise InputError("tree and draft are both given; a model with a draft of its own drafts a chain")
        self.model = _loaded("model", model)
        self.tree = tree
        self.draft = draft if draft is None or isinstance(draft, Draft) else _loaded("draft", draft)
        if gamma is not None:
            self.gamma = check_count("gamma", gamma)
        elif tree is not None:
            self.gamma = tree.gamma
        self._inner = None if self.draft is None else describe(self.draft, self.model)

    def describe(self, target: specdec.Model) -> Description:
        """See `Draft.describe`."""
        check_same_vocabulary(target, self.model)
        if self._inner is not None:
            inner_gamma = self.draft.gamma if isinstance(self.draft, Draft) else Draft.gamma
            return "speculating", self.model.core, self._inner, inner_gamma
        if self.tree is not None:
            return "model", self.model.core, self.tree.describe()
        return "model", self.model.core

    def check_rule(self, rule: str, sampling: Sampling) -> None:
        """See `Draft.check_rule`: "block" judges chains, "k-sequential" independent samples."""
        if self.tree is None:
            if isinstance(self.draft, Draft) and rule not in ("block", "k-sequential"):
                self.draft.check_rule(rule, sampling)
            return
        if rule == "block" and self.tree != Chains(1):
            raise InputError(
                f"verify is 'block', which judges chains; expected another rule with {self.tree}"
            )
        drawn = isinstance(self.tree, Chains) or (isinstance(self.tree, Shape) and self.tree.how == "sample")
        if rule == "k-sequential" and not (drawn and not sampling.greedy) and self.tree != Chains(1):
            raise InputError(
                f"verify is 'k-sequential', which judges independent samples; expected another rule with "
                f"{self.tree} at temperature {sampling.temperature}"
            )

    def __repr__(self) -> str:
        more = f", tree={self.tree!r}" if self.tree is not None else ""
        more += f", draft={self.draft!r}" if self.draft is not None else ""
        return f"<specdec.drafts.Model {self.model!r}{more}>"


def _loaded(name: str, given: object) -> specdec.Model:
    from specdec.request import as_model  # which imports this package

    return as_model(name, given)
