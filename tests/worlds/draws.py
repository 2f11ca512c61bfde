"""Random choices that hypothesis draws and shrinks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Draws:
    """The drawing function of a composite strategy, with the interface of `random.Random`.

    Failures shrink to the first of several values, the smallest number, and chances that do not occur.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw

    def randint(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return self.draw(st.integers(low, high))

    def randrange(self, n: int) -> int:
        """An integer below n."""
        return self.randint(0, n - 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.randint(1, 100) > 100 - 100 * probability

    def choice(self, values: Sequence[T]) -> T:
        """One of the values."""
        return self.draw(st.sampled_from(values))

    def one(self, *values: Any) -> Any:
        """One of the arguments; if it is a strategy, a value drawn from it."""
        found = self.choice(values)
        return self.draw(found) if isinstance(found, st.SearchStrategy) else found

    def weighted(self, **weights: float) -> str:
        """One of the names, with probability proportional to its weight, a multiple of 0.1."""
        return self.choice([name for name, weight in weights.items() for _ in range(round(10 * weight))])

    def fields(self, **rows: tuple[Any, ...]) -> dict[str, Any]:
        """Draw fields, each with its own probability: the first of its row, else one of the other values."""
        return {name: self.one(*values) for name, (chance, *values) in rows.items() if self.chance(chance)}

    def random(self) -> random.Random:
        """A generator for values that need not shrink."""
        return random.Random(self.randrange(2**16))

    def some(self, values: Sequence[T], least: int = 0) -> list[T]:
        """A subset, in the given order."""
        chosen = self.random().sample(range(len(values)), self.randint(least, len(values)))
        return [values[i] for i in sorted(chosen)]

    def ids(self, n: int, n_vocab: int) -> list[int]:
        """Token ids with repeated stretches, which copying drafts can use."""
        chosen, ids = self.random(), list[int]()
        few = [chosen.randrange(n_vocab) for _ in range(self.one(2, 4, n_vocab))]
        while len(ids) < n:
            if ids and chosen.random() < 0.3:
                at = chosen.randrange(len(ids))
                ids += ids[at : at + chosen.randrange(1, 8)]
            else:
                ids.append(chosen.choice(few))
        return ids[:n]
