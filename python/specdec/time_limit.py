"""A limit of time for work of several parts, which says how much of it is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from specdec.checks import check_number

__all__ = ["ENDLESS", "TimeLimit"]


class TimeLimit:
    """So many seconds from now on.

    Parameters
    ----------
    seconds : float
        Infinite: no limit.
    clock : callable, optional
        Gives the time in seconds; None: `time.monotonic`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = time.monotonic if clock is None else clock
        self.seconds = seconds
        self._begun = self._clock()

    @classmethod
    def of(cls, seconds: float | None) -> TimeLimit:
        """The limit for the argument `seconds`; None: no limit.

        Raises
        ------
        InputError
            It is not a finite number above 0.
        """
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

    def part(self, share: float) -> TimeLimit:
        """A limit of its own, from now on, for a share of what is left."""
        return TimeLimit(self.left_s * share, self._clock)


ENDLESS: Final = TimeLimit(math.inf)
"""No limit."""
