"""Token ids that a caller gives a draft, checked."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.errors import InputError

__all__ = ["Ids", "check_ids", "check_n", "check_texts"]

Ids: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"

MAX_N = 8  # SD_MAX_NGRAM of the core


def check_texts(ids: Any, n_vocab: Any) -> list[NDArray[np.int64]]:
    """One text or several as arrays of ids; at least one token in all."""
    if isinstance(n_vocab, bool) or not isinstance(n_vocab, Integral) or n_vocab < 1:
        raise InputError(f"n_vocab is {n_vocab!r}; expected an integer, at least 1")
    several = isinstance(ids, list | tuple) and any(
        isinstance(text, list | tuple | np.ndarray) for text in ids
    )
    texts = [check_ids(text, int(n_vocab)) for text in (ids if several else [ids])]
    if not sum(map(len, texts)):
        raise InputError("ids has no token; expected at least one to count")
    return texts


def check_ids(ids: Any, n_vocab: int) -> NDArray[np.int64]:
    """Token ids of one text, each of the vocabulary."""
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise InputError(
            f"ids has shape {tokens.shape} and dtype {tokens.dtype}; expected integers, [n_tokens]"
        )
    wrong = np.flatnonzero((tokens < 0) | (tokens >= n_vocab))
    if wrong.size:
        raise InputError(f"ids[{wrong[0]}] is {tokens[wrong[0]]}; expected 0 to {n_vocab - 1}")
    return tokens.astype(np.int64)


def check_n(n: Any) -> int:
    """The order of an n-gram model."""
    if isinstance(n, bool) or not isinstance(n, Integral) or not 1 <= n <= MAX_N:
        raise InputError(f"n is {n!r}; expected an integer from 1 to {MAX_N}")
    return int(n)
