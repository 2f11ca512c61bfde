"""Random choices that are a function of a key."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["Draws"]

T = TypeVar("T")


class Draws(random.Random):
    """A generator seeded by a key of any printable values; equal keys give equal choices everywhere."""

    @classmethod
    def of(cls, *key: Any) -> Draws:
        """The generator of a key."""
        return cls("/".join(map(str, key)))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability

    def one(self, *values: T) -> T:
        """One of the values."""
        return self.choice(values)

    def weighted(self, **weights: float) -> str:
        """One of the names, with probabilities in proportion to the weights."""
        return self.choices(list(weights), list(weights.values()))[0]

    def skewed(self, low: int, high: int) -> int:
        """An integer from low to high; small ones are more frequent."""
        return low + int((high - low + 1) * self.random() ** 2)

    def ids(self, n: int, n_vocab: int) -> list[int]:
        """Token ids, with repeated stretches: something for the drafts that copy."""
        few = [self.randrange(n_vocab) for _ in range(self.one(2, 4, n_vocab))]
        ids: list[int] = []
        while len(ids) < n:
            if ids and self.chance(0.3):
                at = self.randrange(len(ids))
                ids += ids[at : at + self.randrange(1, 8)]
            else:
                ids.append(self.choice(few))
        return ids[:n]

    def some(self, values: Sequence[T], least: int = 0) -> list[T]:
        """A random subset, in order."""
        n = self.randint(least, len(values))
        return [values[i] for i in sorted(self.sample(range(len(values)), n))]
