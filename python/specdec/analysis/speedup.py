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
from specdec.tables import marked
from specdec.time_limit import ENDLESS, TimeLimit
from specdec.trace import invalid_speedup

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

    A forward pass of the target that verifies drafts takes at least as long as one that computes a token. So
    a speed-up above the new tokens per pass is an error of measurement.

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
    def spread(self) -> float:
        """Interquartile range of the speed-ups, as a share of the median; 0 of a single one."""
        if len(self.ratios) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return (third - first) / self.median

    def text(self, unit: str = "X") -> str:
        """The median for a table, marked if it is an error of measurement."""
        return marked(f"{self.median:.2f}{unit}", self.invalid)

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
    """Costs of rounds in plain steps: the time of plain decoding for a token is 1. Medians of the turns.

    All times are those that a caller sees. So in each turn the speed-up is tokens per round over
    draft + verify, and it exceeds the ideal of Theorem 3.8, tokens per round over draft + 1, only if verify
    is below 1.

    Attributes
    ----------
    guess : float
        The cost coefficient c (Definition 3.7): drafting, for each draft token. NaN if nothing was drafted.
    draft : float
        Drafting, for each round.
    verify : float
        The rest of a round: the forward pass of the target on all its rows, and the overhead of a round.
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
        """The runs of one prompt alone: run `index` of every turn that reached it."""
        part = TimedRuns(self._target, self._draft, **self._options)
        reached = [turn for turn, results in enumerate(self.turns) if len(results) > index]
        part.turns = [[self.turns[turn][index]] for turn in reached]
        part._seconds = [[self._seconds[turn][index]] for turn in reached]
        return part

    def over(self, plain: TimedRuns) -> Speedup:
        """The speed-up over plain decoding, each turn compared with the same turn of plain decoding.

        Only texts that both have decoded count, because measuring may have ended within a turn.
        """
        ratios, tokens_per_run = [], []
        for ours, theirs in self._shared(plain):
            ratios.append(theirs.s_per_token / ours.s_per_token)
            tokens_per_run.append(ours.n_tokens / ours.n_calls)
        return Speedup(tuple(ratios), tuple(tokens_per_run))

    def costs(self, plain: TimedRuns) -> RoundCosts:
        """Costs of rounds, in plain steps of the same turn."""
        guess, draft, verify = [], [], []
        for ours, theirs in self._shared(plain):
            step_s = theirs.s_per_token
            if ours.n_drafted:
                guess.append(ours.draft_s / ours.n_drafted / step_s)
            draft.append(ours.draft_s / ours.n_calls / step_s)
            verify.append((ours.seconds - ours.draft_s) / ours.n_calls / step_s)
        middle = [statistics.median(values) if values else math.nan for values in (guess, draft, verify)]
        return RoundCosts(*middle)

    def _shared(self, plain: TimedRuns) -> list[tuple[_Totals, _Totals]]:
        """The totals of each turn, over the texts that this way and plain decoding have both decoded."""
        found = []
        for i in range(min(len(self.turns), len(plain.turns))):
            n = min(len(self.turns[i]), len(plain.turns[i]))
            if n:
                found.append((self._totals(i, n), plain._totals(i, n)))
        return found

    def _totals(self, turn: int, n: int) -> _Totals:
        results, seconds = self.turns[turn][:n], self._seconds[turn][:n]
        traces = [result.trace for result in results]
        return _Totals(
            n_tokens=sum(len(result.tokens) for result in results),
            n_calls=sum(trace.n_calls for trace in traces),
            n_drafted=sum(trace.n_drafted for trace in traces),
            seconds=math.fsum(seconds),
            draft_s=math.fsum(trace.draft_s for trace in traces),
        )


@dataclass(frozen=True)
class _Totals:
    """Counts and seconds of some texts."""

    n_tokens: int
    n_calls: int
    n_drafted: int
    seconds: float
    draft_s: float

    @property
    def s_per_token(self) -> float:
        return self.seconds / self.n_tokens


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
    limit: TimeLimit = ENDLESS,
    at_least: float = 0.0,
) -> None:
    """Continue prompts in several ways, interleaved prompt by prompt.

    Every other turn goes through the ways in reverse, so that none of them always comes after the same one.

    Parameters
    ----------
    ways : sequence of TimedRuns
        The first is plain decoding where there is one.
    work : sequence of (prompt, new tokens)
    repeats : int
        Turns of each way.
    seed : int
        Prompt i of turn k has the key (seed + k, i).
    done : callable, optional
        Called with the number of new tokens after every run.
    limit : TimeLimit, optional
        Once it is over no run begins, except the first of each way.
    at_least : float, optional
        Ways whose speed-up over the first way is below it after a turn have no further turn.
    """
    going = list(ways)
    for turn in range(repeats):
        for i, (prompt, n) in enumerate(work):
            for way in going if turn % 2 == 0 else reversed(going):
                if limit.is_over and (turn or i):
                    return
                way.run(turn, prompt, max_new_tokens=n, seed=[(seed + turn, i)])
                done(n)
        if at_least:
            going = [way for way in going if way is ways[0] or way.over(ways[0]).median >= at_least]


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
    limit: TimeLimit = ENDLESS,
    **options: Any,
) -> dict[int, Speedup]:
    """Speed of speculative over plain decoding, by gamma, both by the clock on the wall.

    Parameters
    ----------
    target : Model
    draft : Model or Draft
    work, repeats, seed, done, limit
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
        limit=limit, **options,
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
    limit: TimeLimit = ENDLESS,
    **options: Any,
) -> tuple[TimedRuns, dict[int, TimedRuns]]:
    """The timed runs of plain decoding, and those with the draft by gamma; parameters as of `speedups`."""
    plain = TimedRuns(target, None, **options)
    ways = {gamma: TimedRuns(target, draft, gamma=gamma, lenience=lenience, **options) for gamma in gammas}
    run_in_turns([plain, *ways.values()], work, repeats=repeats, seed=seed, done=done, limit=limit)
    return plain, ways
