"""Tokens of cached texts, and how many of them another text can begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec import _core


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """A cached text without its keys and values.

    `tokens`: [n_tokens]. `source`: Ids of an encoder-decoder's source. `captures`: Hidden states kept with
    each token. `n_low`, `snapshots`: As of `_core.CachedText`.
    """

    tokens: NDArray[np.int32]
    source: tuple[int, ...] | None = None
    captures: tuple[int, ...] = ()
    n_low: int = 0
    snapshots: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: _core.CachedText) -> CachedTokens:
        """Return those of a text."""
        source = None if text.source is None else tuple(text.source.tolist())
        return cls(text.tokens, source, text.captures, text.n_low, text.snapshots)

    @classmethod
    def wanted(
        cls, tokens: Sequence[int], source: Sequence[int] | None, captures: Sequence[int]
    ) -> CachedTokens:
        """Return those of a text that is not cached yet."""
        return cls(np.asarray(tokens, np.int32), None if source is None else tuple(source), tuple(captures))

    def n_common(self, other: CachedTokens) -> int:
        """Return the length of the common prefix with another text."""
        if self.source != other.source:
            return 0
        n = min(len(other.tokens), len(self.tokens))
        different = np.flatnonzero(self.tokens[:n] != other.tokens[:n])
        return int(different[0]) if different.size else n

    def reusable(self, n: int) -> int:
        """Return how many of n common tokens another text can begin with."""
        return n if n >= self.n_low else max((at for at in self.snapshots if at <= n), default=0)

    def begins(self, other: CachedTokens) -> int:
        """Return how many tokens another text can copy, with its captures."""
        if not set(other.captures) <= set(self.captures):
            return 0
        return self.reusable(self.n_common(other))
