"""Texts that drafts copy from, given as texts or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_array
from specdec.containers import text_of
from specdec.errors import InputError, kind_of
from specdec.models.model import Model

__all__ = ["Text", "check_text", "ids_of"]

Text: TypeAlias = str | Sequence[int] | NDArray[np.integer[Any]]


def check_text(name: str, given: Any) -> str | NDArray[np.int64]:
    """The argument `name`, a text or token ids, as a text or an array [n_tokens]; a copy of the caller's.

    Raises
    ------
    InputError
    """
    given = text_of(given)
    if isinstance(given, str):
        return given
    if not isinstance(given, list | tuple | np.ndarray):
        raise InputError(f"{name} is {kind_of(given)}; expected a text or token ids")
    ids = check_array(name, given, "a text or token ids").copy()
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InputError(f"{name} has shape {ids.shape} and dtype {ids.dtype}; expected a text or token ids")
    return ids.astype(np.int64)


def ids_of(name: str, text: str | NDArray[np.int64], target: Model) -> NDArray[np.int32]:
    """The token ids [n_tokens] of a checked text for a target, without BOS.

    Raises
    ------
    InputError
        For a text where the target has no tokenizer, and for ids that are not the target's.
    """
    if isinstance(text, str):
        if target.tokenizer is None:
            raise InputError(f"{name} is a text, but the target has no tokenizer; expected token ids")
        return np.array(target.tokenizer.encode(text, add_bos=False), np.int32)
    n_vocab = target.config["n_vocab"]
    wrong = np.flatnonzero((text < 0) | (text >= n_vocab))
    if wrong.size:
        raise InputError(f"{name}[{wrong[0]}] is {text[wrong[0]]}; expected 0 to {n_vocab - 1}")
    return text.astype(np.int32)
