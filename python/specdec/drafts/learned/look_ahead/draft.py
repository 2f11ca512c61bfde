"""Look-ahead embeddings: learned vectors after the text, at which the target predicts ahead."""

from __future__ import annotations

import numpy as np

from specdec import _core
from specdec.drafts.draft import MAX_GAMMA
from specdec.drafts.learned.methods import LearnedDraft
from specdec.models.number_formats import Dtype, widened


class LookAheadEmbeddings(LearnedDraft):
    """The target predicts ahead in its own forward passes, after learned vectors (PaSS, arXiv 2311.13581).

    L vectors, learned for the target, follow a text in the place of tokens' embeddings. The target's
    distribution after the k-th is that of the token k places after the next one, from which draft tokens of
    the next round are sampled, each by itself. The vectors are extra query tokens of verification, after
    every row that the target verifies, as it is not known yet which draft tokens are accepted: a chain of
    gamma draft tokens is (gamma + 1)(L + 1) rows. So this pays where rows are nearly free; ``gamma="auto"``
    counts them. The head is computed for those after the last accepted token alone.

    The first round, and one after a round that drafted nothing, has no draft tokens. It cannot draft for a
    draft; in `Ensemble` it can be one of several, once.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        The folder of the embeddings, as training writes it and `specdec.drafts.load` opens it, or the same in
        memory: ``n_tokens``, L, in ``config.json``, and one tensor, ``embeddings`` [L, d_model]. A target's
        learned positions and its norm of embeddings are applied to them, its scale of embeddings is not.
    tree, gamma
        See `specdec.drafts`; gamma is L by default. Levels of a tree beyond L stay empty; with fewer than L
        draft tokens in a row the last embeddings are not used.

    Attributes
    ----------
    n_tokens : int
        L.

    Examples
    --------
    >>> draft = specdec.drafts.LookAheadEmbeddings("path/to/embeddings")
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night")
    """

    in_target_cache = True
    method = "look_ahead_embeddings"
    holds = "look-ahead embeddings"
    has_matrices = False
    core: _core.LookAheadEmbeddings

    def _packed(self, dtype: Dtype | None, n_threads: int | None) -> _core.LookAheadEmbeddings:
        weights = self.weights
        weights.check_captures()
        self.n_tokens = self.gamma = weights.fields.integer("n_tokens", maximum=MAX_GAMMA)
        if weights.tokens is not None:
            every = f"{weights.target.n_vocab}: the target's head predicts"
            raise weights.fields.error("n_draft_vocab", every)
        ((_, array, form),) = weights.tensors({"embeddings": (self.n_tokens, weights.target.d_model)})
        with weights.naming():
            return _core.LookAheadEmbeddings(np.ascontiguousarray(widened(array, form)))

    @property
    def _shown(self) -> str:
        return f"{self.n_tokens} tokens"
