"""Look-ahead embeddings: learned vectors after the text, at which the target predicts ahead."""

from __future__ import annotations

import os

import numpy as np

from specdec import _core
from specdec.drafts.draft import MAX_GAMMA
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.learned_draft import LearnedDraft
from specdec.drafts.trees import Tree
from specdec.models.number_formats import Dtype, widened


class LookAheadEmbeddings(LearnedDraft):
    """The target predicts ahead in its own forward passes, after learned vectors (PaSS, arXiv 2311.13581).

    L vectors, learned for the target, follow a text in the place of tokens' embeddings. The target's
    distribution after the k-th is that of the token k places after the next one; draft tokens of the next
    round are sampled from it, each by itself, so that the ordinary rule is exact for them. No other model is
    run. Instead the vectors are extra query tokens of verification: after every row that the target verifies,
    as it is not known yet which draft tokens are accepted. A chain of gamma draft tokens is
    (gamma + 1)(L + 1) rows of the target, so this pays where rows are nearly free; ``gamma="auto"`` counts
    them. The head is computed for those after the last accepted token alone.

    The first round, and one after a round that drafted nothing, has no draft tokens. It works in the forward
    passes of the session's target, so it cannot draft for a draft; in `Ensemble` it can be one of several,
    once.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        The folder of the embeddings, as training writes it and `specdec.drafts.load` opens it, or the same in
        memory: its ``config.json`` has ``n_tokens``, L, and the target's identity, and its one tensor is
        ``embeddings`` [L, d_model]. Positions that a target learned are added to them, and the norm of
        embeddings applied where a target has one; the scale of embeddings (Gemma, Granite) is not: a vector
        is what the layers see.
    tree : ParallelChains, StaticTree or DynamicTree, optional
        Several candidates for each token; None: a chain. Levels beyond L stay empty.
    gamma : int, optional
        Draft tokens a round when the caller of `specdec.generate` does not say: by default L, or the nodes of
        the tree. With fewer than L in a row the last embeddings are not used.

    Attributes
    ----------
    n_tokens : int
        L.
    core : specdec._core.LookAheadEmbeddings
        The vectors.
    weights, tree, gamma
        As in `Heads`.

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
    holds = "look-ahead embeddings"
    has_matrices = False
    core: _core.LookAheadEmbeddings

    def __init__(
        self,
        weights: LearnedWeights | str | os.PathLike[str],
        *,
        tree: Tree | None = None,
        gamma: int | None = None,
    ) -> None:
        super().__init__(weights, tree=tree, gamma=gamma)

    def _pack(self, dtype: Dtype | None, n_threads: int | None) -> None:
        self.core = pack_look_ahead_embeddings(self.weights)
        self.n_tokens = self.gamma = self.core.n_tokens

    @property
    def _shown(self) -> str:
        return f"{self.n_tokens} tokens"


def pack_look_ahead_embeddings(weights: LearnedWeights) -> _core.LookAheadEmbeddings:
    """Pack the embeddings for the core."""
    weights.check_method("look_ahead_embeddings")
    weights.check_taps()
    n_tokens = weights.fields.integer("n_tokens", maximum=MAX_GAMMA)
    if weights.tokens is not None:
        raise weights.fields.error("n_draft_vocab", f"{weights.target.n_vocab}: the target's head predicts")
    tensors = weights.tensors({"embeddings": (n_tokens, weights.target.d_model)})
    with weights.naming():
        ((_, array, form),) = tensors
        return _core.LookAheadEmbeddings(np.ascontiguousarray(widened(array, form)))
