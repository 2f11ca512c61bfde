"""The unigram draft: how often each token stands in a text, whatever came before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.drafts.draft import Description, Draft, check_n_vocab
from specdec.errors import InputError

if TYPE_CHECKING:
    from specdec.model import Model

__all__ = ["Ids", "Unigram", "check_ids", "check_texts"]

Ids: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"


class Unigram(Draft):
    """A draft that gives every token the share it has in some text.

    P(x) = (n(x) + d / n_vocab) / (n + d), with n(x) how often token x was seen, n = Σ n(x), and d how many
    different tokens were seen: Witten and Bell's interpolation with the uniform distribution (IEEE
    Transactions on Information Theory 37, 1991). So no token has probability 0.

    Parameters
    ----------
    ids : sequence of int, or a list of such
        Token ids of the text, or of several texts; at least one token.
    n_vocab : int
        Number of different token ids.

    Attributes
    ----------
    n_vocab : int
    probs : ndarray of float64, [n_vocab]
        P.

    Raises
    ------
    InputError
        If there is no token, or one is not in 0 to n_vocab - 1.
    """

    def __init__(self, ids: Ids | Sequence[Ids], n_vocab: int) -> None:
        texts = check_texts(ids, n_vocab)
        self.n_vocab = int(n_vocab)
        counts = np.bincount(np.concatenate(texts), minlength=self.n_vocab)
        n_different = np.count_nonzero(counts)
        self.probs: NDArray[np.float64] = (counts + n_different / self.n_vocab) / (counts.sum() + n_different)

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """The distribution of the next token after each of some tokens.

        Parameters
        ----------
        ids : sequence of int, [n_tokens]

        Returns
        -------
        ndarray of float64, [n_tokens, n_vocab]
            Row i is the distribution of the token after ids[: i + 1]: here always the same.

        Raises
        ------
        InputError
            If a token is not in 0 to n_vocab - 1.
        """
        return np.tile(self.probs, (len(check_ids(ids, self.n_vocab)), 1))

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        check_n_vocab(self.n_vocab, target)
        return "bigram", self.core

    @cached_property
    def core(self) -> _core.Bigram:
        """The table as the C core reads it: no token has successors of its own."""
        nothing = np.zeros(self.n_vocab + 1, np.int64)
        return _core.Bigram(
            np.log(self.probs).astype(np.float32),
            np.zeros(self.n_vocab, np.float32),
            nothing,
            np.empty(0, np.int32),
            np.empty(0, np.float32),
        )

    def __repr__(self) -> str:
        return f"<specdec.drafts.Unigram of {self.n_vocab} tokens>"


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
