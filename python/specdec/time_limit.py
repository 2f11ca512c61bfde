"""A limit of time for work of several parts, and how much of it is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from specdec.checks import check_number

Item = TypeVar("Item")


class TimeLimit:
    """A number of seconds from now on, infinite for no limit, by a clock, `time.monotonic` by default."""

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = time.monotonic if clock is None else clock
        self.seconds = seconds
        self._begun = self._clock()

    @classmethod
    def of(cls, seconds: float | None) -> TimeLimit:
        """The limit for the argument `seconds`; None: no limit."""
        if seconds is None:
            return ENDLESS
        check_number("seconds", seconds, "a finite number above 0", lambda x: 0.0 < x < math.inf)
        return cls(float(seconds))

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 once it is over."""
        return max(0.0, self.seconds - self.spent_s)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s <= 0.0

    @property
    def reason(self) -> str:
        """Why work ended early, for messages."""
        return f"{self.seconds:g} s were over"

    def shares(self, items: Sequence[Item]) -> Iterator[tuple[Item, TimeLimit]]:
        """Yield each item with a limit of an equal share of the time left; the first item in any case.

        Once the limit is over, it yields no further item.
        """
        for i, item in enumerate(items):
            if i and self.is_over:
                return
            yield item, TimeLimit(self.left_s / (len(items) - i), self._clock)


ENDLESS: Final = TimeLimit(math.inf)
"""No limit."""
