"""A measured speed-up: runs in turns, its median, its spread, and whether it can be true."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec.decoding.generate import generate
from specdec.decoding.result import Result
from specdec.drafts import Draft
from specdec.models.model import Model, Prompt
from specdec.trace import Trace, invalid_speedup

__all__ = [
    "NOT_RUN",
    "NamedShares",
    "RoundCosts",
    "Speedup",
    "TimedRuns",
    "run_in_turns",
    "speedups",
    "timed_ways",
]


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

    def columns(self, name: str) -> dict[str, float | str]:
        """Median, least and most as columns of a table of pandas, and why the median is invalid."""
        return {
            name: self.median,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_invalid": self.invalid,
        }

    @property
    def invalid(self) -> str:
        """Why the median is an error of measuring; empty if it is not.

        What counts is the median of the ratios of speed-up to tokens per run, each of one repetition. The
        repetition in the middle, of two the one with the larger ratio, is named.
        """
        pairs = list(zip(self.ratios, self.tokens_per_run, strict=True))
        shares = [ratio / bound for ratio, bound in pairs]
        if not statistics.median(shares) > 1.0:  # NaN, of what was not measured, is not invalid
            return ""
        return invalid_speedup(*sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2])


NOT_RUN: Final = Speedup((math.nan,), (math.nan,))
"""Where nothing was timed."""


@dataclass(frozen=True)
class RoundCosts:
    """What rounds cost, in runs of the target that compute one row: t(1) is 1. Medians of the turns.

    Attributes
    ----------
    guess : float
        The cost coefficient c (Definition 3.7): drafting, for each guess. NaN where nothing was drafted.
    draft : float
        Drafting, for each round.
    verify : float
        The run of the target in a round, with all its rows.
    """

    guess: float
    draft: float
    verify: float


class NamedShares:
    """How much of the law of a draft with another vocabulary its target can name, in the runs within it.

    Parameters
    ----------
    target : Model
    draft : Model, Draft or None
    """

    def __init__(self, target: Model, draft: Model | Draft | None) -> None:
        self._target, self._draft = target, draft
        self._n, self._total = 0, 0.0

    def _counts(self) -> tuple[int, float]:
        return self._draft.shares(self._target) if isinstance(self._draft, Draft) else (0, 0.0)

    def __enter__(self) -> None:
        n, total = self._counts()
        self._n, self._total = self._n - n, self._total - total

    def __exit__(self, *error: object) -> None:
        n, total = self._counts()
        self._n, self._total = self._n + n, self._total + total

    @property
    def mean(self) -> float | None:
        """Over the guesses of all these runs; None where none had a law of another vocabulary."""
        return self._total / self._n if self._n else None


class TimedRuns:
    """One way to decode, timed as a caller sees it: Python included, without the prompts' prefill.

    A turn is one or several runs. Ways that are compared take their turns on the same prompts, so that all of
    them see the same machine. Each turn begins with a snapshot of the draft (`Draft.snapshot`): a draft that
    learns from texts learns from those of its turn alone.

    Parameters
    ----------
    target : Model
    draft : Model, Draft or None
    **options
        Of `specdec.generate`.

    Attributes
    ----------
    turns : list of list of Result
        What was generated in each turn.
    named_share : float or None
        Of a draft with another vocabulary, the mean share of its law that the target can name, over the
        guesses of all turns. None where it guesses without a law, and for other drafts.
    """

    def __init__(self, target: Model, draft: Model | Draft | None, **options: Any) -> None:
        self._target, self._draft, self._options = target, draft, options
        self._drafting: Model | Draft | None = None
        self._seconds: list[list[float]] = []
        self._shares = NamedShares(target, draft)
        self.turns: list[list[Result]] = []

    def run(self, turn: int, prompt: Prompt, **options: Any) -> None:
        """One more run of a turn, the last one or the next."""
        if turn == len(self.turns):
            self.turns.append([])
            self._seconds.append([])
            self._drafting = self._draft.snapshot() if isinstance(self._draft, Draft) else self._draft
        with self._shares:
            seconds, result = _timed(self._target, self._drafting, prompt, self._options | options)
        self._seconds[turn].append(seconds)
        self.turns[turn].append(result)

    @property
    def named_share(self) -> float | None:
        """See the class."""
        return self._shares.mean

    @property
    def results(self) -> list[Result]:
        """Of all turns."""
        return [result for turn in self.turns for result in turn]

    @property
    def tokens_per_s(self) -> tuple[float, ...]:
        """New tokens per second of each turn."""
        totals = [sum(len(result.tokens) for result in turn) for turn in self.turns]
        return tuple(n / math.fsum(seconds) for n, seconds in zip(totals, self._seconds, strict=True))

    def of(self, index: int) -> TimedRuns:
        """The runs of one prompt alone: run `index` of every turn."""
        part = TimedRuns(self._target, self._draft, **self._options)
        part.turns = [[turn[index]] for turn in self.turns]
        part._seconds = [[seconds[index]] for seconds in self._seconds]
        return part

    def over(self, plain: TimedRuns) -> Speedup:
        """The speed-up over plain decoding, of which each turn is compared with its own."""
        pairs = zip(self.tokens_per_s, plain.tokens_per_s, strict=True)
        return Speedup(
            ratios=tuple(ours / theirs for ours, theirs in pairs),
            tokens_per_run=tuple(
                sum(len(result.tokens) for result in turn) / sum(result.trace.n_calls for result in turn)
                for turn in self.turns
            ),
        )

    def costs(self, plain: TimedRuns) -> RoundCosts:
        """What rounds cost, with the t(1) of plain decoding in the same turn."""
        guess, draft, verify = [], [], []
        for ours, theirs in zip(self.turns, plain.turns, strict=True):
            traces, base = [result.trace for result in ours], [result.trace for result in theirs]
            target_s = Trace([round_ for one in base for round_ in one.rounds]).run_s
            n_calls, n_drafted = (sum(getattr(t, name) for t in traces) for name in ("n_calls", "n_drafted"))
            draft_s = math.fsum(one.draft_s for one in traces)
            if n_drafted:
                guess.append(draft_s / n_drafted / target_s)
            draft.append(draft_s / n_calls / target_s)
            verify.append(math.fsum(one.verify_s for one in traces) / n_calls / target_s)
        middle = [statistics.median(values) if values else math.nan for values in (guess, draft, verify)]
        return RoundCosts(*middle)


def _timed(
    target: Model, draft: Model | Draft | None, prompt: Prompt, options: dict[str, Any]
) -> tuple[float, Result]:
    begun = time.perf_counter()
    result = generate(target, draft, prompt, **options)
    return time.perf_counter() - begun - result.trace.prefill_s, result


def run_in_turns(
    ways: Sequence[TimedRuns],
    work: Sequence[tuple[Prompt, int]],
    *,
    repeats: int,
    seed: int,
    done: Callable[[int], object] = lambda n: None,
) -> None:
    """Continue prompts in several ways, each in its turn, prompt by prompt.

    Parameters
    ----------
    ways : sequence of TimedRuns
    work : sequence of (prompt, new tokens)
    repeats : int
        Turns of each way.
    seed : int
        Prompt i of turn k has the key (seed + k, i).
    done : callable, optional
        Told how many new tokens were made, after every run.
    """
    for turn in range(repeats):
        for i, (prompt, n) in enumerate(work):
            for way in ways:
                way.run(turn, prompt, max_new_tokens=n, seed=[(seed + turn, i)])
                done(n)


def speedups(
    target: Model,
    draft: Model | Draft,
    work: Sequence[tuple[Sequence[int], int]],
    *,
    gammas: Sequence[int],
    lenience: float,
    repeats: int,
    seed: int,
    done: Callable[[int], object],
    **options: Any,
) -> dict[int, Speedup]:
    """Speed of speculative over plain decoding, by gamma, both by the clock on the wall.

    Parameters
    ----------
    target : Model
    draft : Model or Draft
    work, repeats, seed, done
        As of `run_in_turns`.
    gammas : sequence of int
        Each at least 1.
    lenience : float
        Of speculative decoding; plain decoding is exact.
    **options
        Of `specdec.generate`.
    """
    plain, ways = timed_ways(
        target, draft, work, gammas=gammas, lenience=lenience, repeats=repeats, seed=seed, done=done,
        **options,
    )  # fmt: skip
    return {gamma: way.over(plain) for gamma, way in ways.items()}


def timed_ways(
    target: Model,
    draft: Model | Draft,
    work: Sequence[tuple[Sequence[int], int]],
    *,
    gammas: Sequence[int],
    lenience: float,
    repeats: int,
    seed: int,
    done: Callable[[int], object],
    **options: Any,
) -> tuple[TimedRuns, dict[int, TimedRuns]]:
    """The timed runs of plain decoding, and those with the draft by gamma; parameters as of `speedups`."""
    plain = TimedRuns(target, None, **options)
    ways = {gamma: TimedRuns(target, draft, gamma=gamma, lenience=lenience, **options) for gamma in gammas}
    run_in_turns([plain, *ways.values()], work, repeats=repeats, seed=seed, done=done)
    return plain, ways
