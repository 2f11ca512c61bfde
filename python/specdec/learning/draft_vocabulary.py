"""Reduced vocabularies: drafts that guess the most frequent tokens of a target alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = ["most_frequent", "scattered"]


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
