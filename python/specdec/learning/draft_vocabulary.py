"""Reduced vocabularies: drafts that guess the most frequent tokens of a target alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specdec.learning.target_law import TargetLaw

__all__ = ["most_frequent", "reachable", "scattered"]


def most_frequent(counts: ArrayLike, n: int) -> Tensor:
    """The `n` tokens that occur most often, by id; of equally frequent ones those of lower ids.

    Parameters
    ----------
    counts : array-like of int
        [n_vocab] occurrences of each token.
    n : int

    Returns
    -------
    Tensor of int64
        [n] ascending.
    """
    order = np.argsort(-np.asarray(counts), kind="stable")[:n]
    return torch.from_numpy(np.sort(order).astype(np.int64))


def scattered(logits: Tensor, draft_ids: Tensor | None, n_vocab: int) -> Tensor:
    """Logits of a reduced vocabulary as logits of all tokens, -inf for those that are never guessed.

    Parameters
    ----------
    logits : Tensor
        [..., n_draft_vocab].
    draft_ids : Tensor or None
        [n_draft_vocab] the token of each column. None: they are all tokens.
    n_vocab : int

    Returns
    -------
    Tensor
        [..., n_vocab].
    """
    if draft_ids is None:
        return logits
    whole = logits.new_full((*logits.shape[:-1], n_vocab), float("-inf"))
    return whole.index_copy(-1, draft_ids, logits)


def reachable(law: TargetLaw, draft_ids: Tensor | None, n_vocab: int) -> TargetLaw:
    """A law less the tokens that a draft never guesses, whose losses no training can change.

    Divergences of what is left have the gradients of those of the whole law, and stay finite.

    Parameters
    ----------
    law : TargetLaw
    draft_ids : Tensor or None
        [n_draft_vocab] the tokens that can be guessed. None: all of them.
    n_vocab : int
    """
    if draft_ids is None:
        return law
    never = torch.ones(n_vocab, dtype=torch.bool, device=draft_ids.device).index_fill(0, draft_ids, False)
    if law.tokens is not None:
        rest = torch.zeros_like(law.tokens[..., :1], dtype=torch.bool)
        never = torch.cat((never[law.tokens], rest), dim=-1)
    return TargetLaw(law.log_probs.masked_fill(never, float("-inf")), law.tokens, law.temperature)
