"""Look-ahead embeddings: learned query vectors after the text, for which the target predicts ahead."""

from __future__ import annotations

import numpy as np

from specdec import _core
from specdec.drafts.draft import MAX_GAMMA
from specdec.drafts.learned.methods import LearnedDraft
from specdec.models.number_formats import Dtype, widened


class LookAheadEmbeddings(LearnedDraft):
    """Look-ahead embeddings: the target drafts in its own forward passes (PaSS, arXiv 2311.13581).

    L vectors, learned for the target, follow the text as extra query tokens. The target's distribution at the
    k-th vector predicts the k-th token after the next one; the next round samples its draft tokens
    independently from these. As acceptance is unknown in advance, every verified row gets its own vectors: a
    chain of gamma draft tokens takes (gamma + 1)(L + 1) rows. This pays if extra rows are nearly free, which
    ``gamma="auto"`` takes into account. The output matrix is applied only after the last accepted token.

    The first round, and a round after one without draft tokens, drafts nothing. Cannot draft for another
    draft; may be used once in an `Ensemble`.

    Parameters
    ----------
    weights : path-like or LearnedWeights
        Folder written by training, or the same in memory: ``n_tokens`` (L) in ``config.json`` and the tensor
        ``embeddings`` [L, d_model]. The target's learned positions and embedding norm apply to them, its
        embedding scale does not.
    tree, gamma
        See `specdec.drafts`; gamma defaults to L. Tree levels beyond L stay empty; shallower drafts skip the
        last embeddings.

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
            every = f"{weights.target.n_vocab}: the target's head predicts all tokens"
            raise weights.fields.error("n_draft_vocab", every)
        ((_, array, stored),) = weights.tensors({"embeddings": (self.n_tokens, weights.target.d_model)})
        with weights.naming():
            return _core.LookAheadEmbeddings(np.ascontiguousarray(widened(array, stored)))

    @property
    def _shown(self) -> str:
        return f"{self.n_tokens} tokens"
