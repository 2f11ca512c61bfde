"""A measured speed-up: its median, its spread, and whether it can be true."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

__all__ = ["Speedup"]


@dataclass(frozen=True)
class Speedup:
    """Time of plain over time of speculative decoding, for a new token, measured several times.

    A run of the target that verifies drafts takes at least as long as one that computes a token. So a
    speed-up above the new tokens per run of the target is an error of measuring, and no result.

    Attributes
    ----------
    ratios : tuple of float
        The speed-up of each repetition; at least one.
    tokens_per_run : tuple of float
        New tokens per run of the target in the speculative decoding of each repetition.
    """

    ratios: tuple[float, ...]
    tokens_per_run: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the repetitions."""
        return statistics.median(self.ratios)

    @property
    def low(self) -> float:
        """The smallest speed-up of a repetition."""
        return min(self.ratios)

    @property
    def high(self) -> float:
        """The largest speed-up of a repetition."""
        return max(self.ratios)

    @property
    def invalid(self) -> str:
        """Why the median is an error of measuring; empty if it is not.

        What counts is the median of the ratios of speed-up to tokens per run, each of one repetition.
        """
        shares = [ratio / bound for ratio, bound in zip(self.ratios, self.tokens_per_run, strict=True)]
        if not statistics.median(shares) > 1.0:  # NaN, of what was not measured, is not invalid
            return ""
        return (
            f"invalid: {self.median:.2f} is above {statistics.mean(self.tokens_per_run):.2f} tokens per run"
        )
