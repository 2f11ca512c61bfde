"""Token ids that a caller gives a draft, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_array, check_integer, check_items
from specdec.containers import plain, text_of
from specdec.errors import InputError

__all__ = ["Ids", "check_ids", "check_n", "check_n_ids", "check_texts"]

Ids: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]

MAX_N = 8  # SD_MAX_NGRAM of the core
MAX_VOCABULARY = 2**26  # of the core's models


def check_texts(ids: Any, n_vocab: Any) -> list[NDArray[np.int64]]:
    """One text or several as arrays of ids; at least one token in all."""
    n_vocab = check_n_ids(n_vocab)
    ids = plain(ids)
    if isinstance(ids, np.ndarray) and ids.ndim == 2:
        ids = list(ids)
    given = (
        [text_of(text) for text in check_items("ids", ids, "token ids, or several texts of them")]
        if isinstance(ids, list | tuple)
        else []
    )
    several = any(isinstance(text, str | list | tuple | np.ndarray) for text in given)
    texts = [check_ids(text, n_vocab) for text in (given if several else [ids])]
    if not sum(map(len, texts)):
        raise InputError("ids has no token; expected at least one to count")
    return texts


def check_ids(ids: Any, n_vocab: int) -> NDArray[np.int64]:
    """Token ids of one text, each of the vocabulary."""
    ids = text_of(ids)
    if isinstance(ids, str):
        raise InputError("ids is a text; expected token ids (from_text of the n-gram drafts takes a text)")
    tokens = check_array("ids", ids, "integers, [n_tokens]")
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
    return check_integer("n", n, 1, MAX_N)


def check_n_ids(n_vocab: Any) -> int:
    """The number of different token ids."""
    return check_integer("n_vocab", n_vocab, 1, MAX_VOCABULARY)
