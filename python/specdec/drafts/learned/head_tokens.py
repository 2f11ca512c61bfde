"""Reduced heads: the tokens whose rows of the target's head a draft reads (FR-Spec, arXiv 2502.14856).

A draft proposes no other tokens. Verification with this reduced distribution stays exact; only the acceptance
rate falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_array, check_integer
from specdec.drafts.ngram import Ngram
from specdec.errors import InputError, type_of
from specdec.models.model import Model
from specdec.models.tokenizer import special_tokens_of

HeadTokens: TypeAlias = int | Ngram | Sequence[int] | NDArray[np.integer[Any]]
USUAL: Final = 32_768
"""Default number of head tokens; vocabularies of up to twice as many tokens are not reduced by default."""


def usual_head_tokens(target: Model) -> int:
    """Return the default number of head tokens of an MTP draft."""
    n_vocab = target.config.n_vocab
    return USUAL if n_vocab > 2 * USUAL else n_vocab


def check_head_tokens(given: HeadTokens | None, target: Model) -> NDArray[np.int32] | None:
    """Return the argument `head_tokens` as ascending ids with the special tokens; None: the whole head."""
    n_vocab = target.config.n_vocab
    if given is None:
        return None
    if isinstance(given, Ngram):
        if given.n_vocab != n_vocab:
            expected = f"a table of the target's {n_vocab} tokens"
            raise InputError.of("head_tokens", given, expected, f"a table of {given.n_vocab}")
        chosen = given.frequent_tokens(min(USUAL, n_vocab))
    elif isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes):
        chosen = _listed(given, n_vocab)
    elif isinstance(given, str | bytes):
        expected = "a number of tokens, their ids, or an n-gram table that counts them"
        raise InputError.of("head_tokens", given, expected, type_of(given))
    else:  # the lowest ids: a BPE vocabulary numbers its tokens by the order of merges
        chosen = np.arange(check_integer("head_tokens", given, 1, n_vocab))
    special = () if target.tokenizer is None else special_tokens_of(target.tokenizer).values()
    always = [*special, *target.eos_ids, *target.chat_end_ids]
    inside = [token for token in always if 0 <= token < n_vocab]
    tokens = np.union1d(chosen, np.array(inside, np.int64)).astype(np.int32)
    return None if len(tokens) == n_vocab else tokens


def _listed(given: Any, n_vocab: int) -> NDArray[np.int64]:
    """Return token ids as an array; each must be in the vocabulary, once."""
    expected = "different token ids, [n_tokens]"
    ids = check_array("head_tokens", given, expected)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        found = f"shape {ids.shape} and dtype {ids.dtype}"
        raise InputError.of("head_tokens", given, expected, found, verb="has")
    seen: set[int] = set()
    for i, token in enumerate(ids.tolist()):
        if not 0 <= token < n_vocab or token in seen:
            raise InputError.of(f"head_tokens[{i}]", token, f"0 to {n_vocab - 1}, each once")
        seen.add(token)
    return ids.astype(np.int64)
