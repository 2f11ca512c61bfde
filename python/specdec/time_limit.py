"""`TimeLimit`, a time limit shared by several parts of some work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from specdec.checks import check_number

Item = TypeVar("Item")


class TimeLimit:
    """A limit in seconds from now, infinite for none; the default clock is `time.monotonic`."""

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = time.monotonic if clock is None else clock
        self.seconds = seconds
        self._begun = self._clock()

    @classmethod
    def of(cls, seconds: float | None) -> TimeLimit:
        """Return the limit for the argument `seconds`; None: no limit."""
        if seconds is None:
            return ENDLESS
        check_number("seconds", seconds, "a finite number above 0", lambda x: 0.0 < x < math.inf)
        return cls(float(seconds))

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    @property
    def left_s(self) -> float:
        """Remaining seconds; 0 once it is over."""
        return max(0.0, self.seconds - self.spent_s)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left_s <= 0.0

    @property
    def reason(self) -> str:
        """Reason for ending early, for messages."""
        return f"time limit of {self.seconds:g} s reached"

    def shares(self, items: Sequence[Item]) -> Iterator[tuple[Item, TimeLimit]]:
        """Yield each item with an equal share of the remaining time; at least the first item."""
        for i, item in enumerate(items):
            if i and self.is_over:
                return
            yield item, TimeLimit(self.left_s / (len(items) - i), self._clock)


ENDLESS: Final = TimeLimit(math.inf)
"""No limit."""
