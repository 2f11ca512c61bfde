"""Reduced vocabularies: which of the target's tokens a learnt draft guesses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec.drafts.learnt.held_tensor import Held
from specdec.errors import CheckpointError

__all__ = ["target_tokens"]


def target_tokens(where: str, d2t: Held | None, n_draft: int, n_vocab: int) -> NDArray[np.int32] | None:
    """The target's token of each of the draft's: i + d2t[i] for token i, as EAGLE-3's checkpoints have it.

    Parameters
    ----------
    where : str
        The draft's folder or file, for messages.
    d2t : HeldTensor or StoredTensor or None
        int64 [n_draft]. None: the draft guesses all of the target's tokens, and they are the same.
    n_draft, n_vocab : int
        Tokens of the draft, and of the target.

    Returns
    -------
    ndarray of int32, shape (n_draft,), or None
        All different.

    Raises
    ------
    CheckpointError
        The tensor is missing, has another shape, or names a token twice or one that the target has not.
    """
    name = f"{where}: tensor 'd2t'"
    if d2t is None:
        if n_draft == n_vocab:
            return None
        raise CheckpointError(f"{name} is missing; expected it with shape [{n_draft}], for {n_vocab} tokens")
    if d2t.shape != (n_draft,):
        raise CheckpointError(f"{name} has shape {list(d2t.shape)}; expected [{n_draft}]")
    shifts = d2t.integers().astype(np.int64)
    outside = np.flatnonzero((shifts < -n_vocab) | (shifts > n_vocab))  # before a sum that could overflow
    tokens = np.arange(n_draft) + np.clip(shifts, -n_vocab, n_vocab)
    outside = np.union1d(outside, np.flatnonzero((tokens < 0) | (tokens >= n_vocab)))
    if len(outside):
        i = int(outside[0])
        raise CheckpointError(
            f"{name}: element [{i}] is {int(shifts[i])}; expected {-i} to {n_vocab - 1 - i}, as {i} + it is "
            f"a token of the target"
        )
    found, first, counts = np.unique(tokens, return_index=True, return_counts=True)
    if len(found) < n_draft:
        twice = int(np.argmax(counts > 1))
        raise CheckpointError(
            f"{name} gives the target's token {int(found[twice])} {int(counts[twice])} times, first for "
            f"{int(first[twice])}; expected each once"
        )
    return tokens.astype(np.int32)
