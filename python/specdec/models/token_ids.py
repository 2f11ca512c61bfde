"""Token ids that a caller gives, as the core takes them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.checks import CONVERSION_ERRORS, as_iterator
from specdec.errors import ContextLengthError, InputError, kind_of, shown


def checked_ids(
    ids: Any, found: str, minimum: int, maximum: int | None, config: Mapping[str, Any], path: Path
) -> NDArray[np.int32]:
    """Return the ids of a decoder or an encoder with this configuration, of the model at a path.

    `found` begins a message about their number. `maximum` None: the context, ``n_ctx``.
    """
    n_vocab = config["n_vocab"]
    limit = config["n_ctx"] if maximum is None else maximum
    tokens = ids if type(ids) is list and len(ids) > limit else _as_integers(ids)
    if len(tokens) < minimum:
        raise InputError(f"{found} {len(tokens)} token ids; expected at least {shown(minimum)}")
    if len(tokens) > limit:
        message = f"{found} {len(tokens)} token ids; expected at most {shown(limit)}"
        if maximum is None:
            raise ContextLengthError(f"{message}, the context of {path}")
        raise InputError(message)
    for position, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            expected = f"0 to {n_vocab - 1}, the ids of {path}"
            raise InputError.of(f"token id at position {position}", token, expected)
    return np.asarray(tokens, dtype=np.int32)


def _as_integers(ids: Any) -> Sequence[int]:
    """A flat list of integers; floats, booleans and nested lists are refused, not rounded or flattened."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            found = f"an array of shape {list(ids.shape)} and dtype {ids.dtype}"
            raise InputError.of("token ids", ids, "one dimension of integers", found, "are")
        listed: list[int] = np.asarray(ids).tolist()
        return listed
    iterator = None if isinstance(ids, bytes | bytearray | Mapping) else as_iterator(ids)
    if iterator is None:
        expected = "a sequence of integers, or a text"
        raise InputError.of("token ids", ids, expected, type(ids).__name__, "are")
    tokens = []
    for position, value in enumerate(list(iterator)):
        try:
            if isinstance(value, bool | np.bool_):
                raise TypeError
            tokens.append(operator.index(value))
        except CONVERSION_ERRORS as error:
            found = f"{shown(value)}, {kind_of(value)}"
            raise InputError.of(f"token id at position {position}", value, "an integer", found) from error
    return tokens
