"""Look-ahead embeddings: learnt vectors behind the text, after which the target guesses ahead."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from specdec import _core
from specdec.drafts.draft import MAX_GAMMA, Description, Draft, made_again
from specdec.drafts.learnt.folder import LearntWeights
from specdec.drafts.trees import Tree, check_tree, describe_shape, gamma_of
from specdec.models.model import Model
from specdec.models.number_formats import widened

__all__ = ["LookAheadEmbeddings", "pack_look_ahead_embeddings"]


class LookAheadEmbeddings(Draft):
    """The target guesses ahead in its own forward passes, after learnt vectors (PaSS, arXiv 2311.13581).

    L vectors, learnt for the target, stand behind a text in the place of tokens' embeddings. What the target
    says after the k-th is its guess of the token k places behind the next one: the law from which guesses of
    the next round are drawn, each by itself, so that the ordinary rule is exact for them. No other model is
    run. Instead the vectors ride on verification: behind every row that the target verifies, as it is not
    known yet which guesses are accepted. A chain of gamma guesses is (gamma + 1)(L + 1) rows of the target,
    so this pays where rows are nearly free; ``gamma="auto"`` counts them. The head is computed for those
    behind the last accepted guess alone.

    The first round, and one after a round that drafted nothing, has no guesses. It works in the forward
    passes of the session's target, so it cannot draft for a draft; in `Ensemble` it can be one of several,
    once.

    Parameters
    ----------
    weights : path-like or LearntWeights
        The folder of the embeddings, as training writes it and `specdec.drafts.load` opens it, or the same in
        memory: its ``config.json`` has ``n_tokens``, L, and the target's identity, and its one tensor is
        ``embeddings`` [L, d_model]. Positions that a target learnt are added to them, and the norm of
        embeddings applied where a target has one; the scale of embeddings (Gemma, Granite) is not: a vector
        is what the layers see.
    tree : ParallelChains, StaticTree or DynamicTree, optional
        Several candidates for each token; None: a chain. Levels beyond L stay empty.
    gamma : int, optional
        Guesses a round when the caller of `specdec.generate` does not say: by default L, or the nodes of the
        tree. With fewer than L in a row the last embeddings are not used.

    Attributes
    ----------
    n_tokens : int
        L.
    tree : ParallelChains, StaticTree, DynamicTree or None
    gamma : int
    core : specdec._core.LookAheadEmbeddings
        The vectors.
    weights : LearntWeights
        What they were read from.

    Raises
    ------
    InputError
        If an argument is out of range.
    CheckpointError
        If the folder is damaged or holds another draft.

    Examples
    --------
    >>> draft = specdec.drafts.LookAheadEmbeddings("path/to/embeddings")
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night")
    """

    in_target_cache = True

    def __init__(
        self,
        weights: LearntWeights | str | os.PathLike[str],
        *,
        tree: Tree | None = None,
        gamma: int | None = None,
    ) -> None:
        self.tree = check_tree(tree)
        self.weights = weights = LearntWeights.given(weights, "look-ahead embeddings")
        self.core = pack_look_ahead_embeddings(weights)
        self.gamma = gamma_of(gamma, self.tree, self.n_tokens)

    @property
    def n_tokens(self) -> int:
        """L."""
        return self.core.n_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"tree": self.tree, "gamma": self.gamma}
        return made_again, (type(self), (self.weights,), options)

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        self.weights.check_target(target)
        return describe_shape(self.tree, self.core)

    def __repr__(self) -> str:
        more = f", tree={self.tree!r}" if self.tree is not None else ""
        return f"<specdec.drafts.LookAheadEmbeddings of {self.weights.where}: {self.n_tokens} tokens{more}>"


def pack_look_ahead_embeddings(weights: LearntWeights) -> _core.LookAheadEmbeddings:
    """The embeddings as the core takes them.

    Raises
    ------
    CheckpointError
        Fields or tensors are not those of look-ahead embeddings.
    """
    weights.check_method("look_ahead_embeddings")
    weights.check_taps()
    n_tokens = weights.fields.integer("n_tokens", maximum=MAX_GAMMA)
    if weights.tokens is not None:
        raise weights.fields.error("n_draft_vocab", f"{weights.target.n_vocab}: the target's head guesses")
    tensors = weights.tensors({"embeddings": (n_tokens, weights.target.d_model)})
    with weights.naming():
        ((_, array, form),) = tensors
        return _core.LookAheadEmbeddings(np.ascontiguousarray(widened(array, form)))
