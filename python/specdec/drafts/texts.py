"""Checks of texts and token ids that a caller gives a draft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_array, check_integer, check_items
from specdec.containers import plain, text_of
from specdec.errors import InputError, type_of
from specdec.models.model import Model

Ids: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Text: TypeAlias = str | Ids

MAX_N = 8  # SD_MAX_NGRAM of the core
MAX_VOCABULARY = 2**26  # of the core's models
check_n_ids = partial(check_integer, "n_vocab", low=1, high=MAX_VOCABULARY)


def check_text(name: str, given: Any) -> str | NDArray[np.int64]:
    """Return the argument `name` as a text, or as a copied array of token ids [n_tokens]."""
    given = text_of(given)
    if isinstance(given, str):
        return given
    if not isinstance(given, list | tuple | np.ndarray):
        raise InputError.of(name, given, "a text or token ids", type_of(given))
    return _integers(name, check_array(name, given, "a text or token ids").copy(), "a text or token ids")


def ids_of(name: str, text: str | NDArray[np.int64], target: Model) -> NDArray[np.int32]:
    """Return the token ids [n_tokens] of a checked text in a target's vocabulary, without BOS."""
    if isinstance(text, str):
        if target.tokenizer is None:
            raise InputError.of(name, text, "token ids, as the target has no tokenizer", "a text")
        return np.array(target.tokenizer.encode(text, add_bos=False), np.int32)
    _check_range(name, text, target.config["n_vocab"])
    return text.astype(np.int32)


def check_texts(ids: Any, n_vocab: Any) -> list[NDArray[np.int64]]:
    """Return one text or several as arrays of ids; require at least one token in all."""
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
    """Return the token ids of one text; require each to be in the vocabulary."""
    ids = text_of(ids)
    if isinstance(ids, str):
        raise InputError.of("ids", ids, "token ids (from_text of the n-gram drafts takes a text)", "a text")
    tokens = _integers("ids", check_array("ids", ids, "integers, [n_tokens]"), "integers, [n_tokens]")
    _check_range("ids", tokens, n_vocab)
    return tokens


def _integers(name: str, array: NDArray[Any], expected: str) -> NDArray[np.int64]:
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        found = f"shape {array.shape} and dtype {array.dtype}"
        raise InputError.of(name, array, expected, found, verb="has")
    return array.astype(np.int64)


def _check_range(name: str, tokens: NDArray[np.int64], n_vocab: int) -> None:
    wrong = np.flatnonzero((tokens < 0) | (tokens >= n_vocab))
    if wrong.size:
        raise InputError.of(f"{name}[{wrong[0]}]", int(tokens[wrong[0]]), f"0 to {n_vocab - 1}")
