"""Interleaved runs: configurations decode the same prompts in turns, so that all see the same machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec import theory
from specdec.analysis.statistics import mean_interval
from specdec.decoding.generate import generate
from specdec.decoding.result import Result
from specdec.drafts import Draft
from specdec.models.model import Model, Prompt
from specdec.tables import Column, Table, bounds, figure, interval, marked, plain, tables_by_position
from specdec.time_limit import ENDLESS, TimeLimit
from specdec.trace import Trace, invalid_ratio, invalid_speedup

Key = TypeVar("Key", bound=Hashable)
Work: TypeAlias = Sequence[tuple[Prompt, int]]
"""Prompts, each with its number of new tokens."""

TREES: Final = "it drafts trees, with several guesses for a position; alpha is that of one guess"
NOTHING_DRAFTED: Final = "it has drafted nothing"
EQUALS_PLAIN: Final = "= plain (drafted nothing)"
"""The speed-up of such a draft in a table: plain decoding was timed twice."""


@dataclass(frozen=True)
class Speedup:
    """Time of plain over time of speculative decoding, for a new token, measured several times.

    `ratios` are the speed-ups of the repetitions, at least one, and `tokens_per_run` their new tokens per run
    of the target in speculative decoding. Verifying drafts takes at least as long as computing one token, so
    a speed-up above the new tokens per run is an error of measurement.
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
    def spread(self) -> float:
        """Interquartile range of the speed-ups, as a share of the median; 0 of a single one."""
        if len(self.ratios) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return (third - first) / self.median

    @property
    def invalid(self) -> str:
        """Why it is an error of measuring: the median ratio to the tokens per run is above 1; else empty."""
        pairs = sorted(zip(self.ratios, self.tokens_per_run, strict=True), key=lambda pair: pair[0] / pair[1])
        if not statistics.median(ratio / bound for ratio, bound in pairs) > 1.0:  # nor is NaN, not measured
            return ""
        return invalid_speedup(*pairs[len(pairs) // 2])

    @property
    def interval(self) -> str:
        """The smallest and the largest, for a table."""
        return interval(self.low, self.high, ".2f")

    def text(self, unit: str = "X") -> str:
        """The median for a table, marked if it is an error of measurement."""
        return marked(f"{self.median:.2f}{unit}", self.invalid)

    def columns(self, name: str) -> dict[str, float | str]:
        """Median, least and most as columns of a table of pandas, and why the median is invalid."""
        return {name: self.median} | {f"{name}_{end}": getattr(self, end) for end in _ENDS}

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain lists and numbers."""
        return {name: plain(getattr(self, name)) for name in ("median", *_ENDS, "ratios", "tokens_per_run")}


_ENDS: Final = ("low", "high", "invalid")
NOT_RUN: Final = Speedup((math.nan,), (math.nan,))  # where nothing was timed


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One configuration: a draft at a temperature with a gamma and a lenience, and what was found of it.

    Attributes
    ----------
    draft, temperature, gamma, lenience : str, float, int, float
        Its name, and its settings: gamma is how many tokens a round drafts at most, lenience 1 the exact rule
        (appendix A.5).
    n_tokens, n_calls, n_drafted, n_accepted : int
        New tokens, runs of the target, drafted and accepted tokens that were counted: of all repetitions, in
        greedy decoding of one, as the others give the same text. Where `by_running` is False, `n_tokens` are
        the positions that alpha is the mean of, and the others 0.
    tokens_per_call, tokens_low, tokens_high : float
        New tokens per run of the target, and the 95 % confidence interval (of the share of tokens that end
        their round, n_calls / n_tokens). Where `by_running` is False the mean over the timed repetitions,
        without an interval. NaN where there is none.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate (Corollary 3.6; A.5 with lenience), and its 95 % confidence interval, over the
        verified positions, or every position where `by_running` is False. None where a position had several
        drafts, as in trees, or nothing was drafted, see `reason`.
    by_position : tuple of float
        Of the rounds that drafted so far: share that accepted the first, second, ... draft of a path.
    c : float or None
        Cost coefficient (Definition 3.7): seconds of drafting for a drafted token over those of a plain run
        of the target; 0 for a draft that the core does not run (section 3.6: negligible cost). None without
        timing, and if nothing was drafted.
    draft_ratio, verify_ratio : float or None
        Seconds of a round spent drafting, and in the target, over those of a plain run of the target. Where
        `by_running` is False, `verify_ratio` is t(gamma + 1) / t(1). None without timing.
    tokens_per_s : tuple of float
        New tokens per second in each repetition; empty where they were not timed.
    speedup : Speedup or None
        Time of plain decoding over that with the draft for a new token, measured in interleaved runs.
    ideal_speedup, predicted_speedup : float or None
        By Theorem 3.8, which takes verification as long as one position; and with the measured
        `verify_ratio`, or 1 if that is less: what to choose gamma by. None where `by_running`.
    by_running : bool
        Whether runs were counted; a draft with a distribution of its own is held against the target's.
    prompts, reason : tuple of ExperimentRow, str
        The same for each prompt, where there are several; and why figures are None, empty if none is.
    named_share : float or None
        Of a draft with another vocabulary than the target's, the mean share of its distribution that the
        target can name, over its drafts by the intersection. None of other drafts, and of drafts as text.
    """

    draft: str
    temperature: float
    gamma: int
    lenience: float = 1.0
    n_tokens: int = 0
    n_calls: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    tokens_per_call: float = math.nan
    tokens_low: float = math.nan
    tokens_high: float = math.nan
    alpha: float | None = None
    alpha_low: float | None = None
    alpha_high: float | None = None
    by_position: tuple[float, ...] = ()
    c: float | None = None
    draft_ratio: float | None = None
    verify_ratio: float | None = None
    tokens_per_s: tuple[float, ...] = ()
    speedup: Speedup | None = None
    ideal_speedup: float | None = None
    predicted_speedup: float | None = None
    by_running: bool = True
    prompts: tuple[ExperimentRow, ...] = ()
    reason: str = ""
    named_share: float | None = None

    @property
    def drafted_per_call(self) -> float:
        """Drafted tokens per run of the target."""
        return self.n_drafted / self.n_calls if self.n_calls else math.nan

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens, those after a rejected one included. None if nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def rates(self) -> tuple[float, float, float]:
        """(alpha, low, high); NaN where there is none."""
        return number_of(self.alpha), number_of(self.alpha_low), number_of(self.alpha_high)

    @property
    def timed(self) -> Speedup:
        """`speedup`, one of NaN where there is none."""
        return NOT_RUN if self.speedup is None else self.speedup

    @property
    def invalid(self) -> str:
        """Why the speed-up is an error of measuring; empty if it is not, or there is none."""
        return self.timed.invalid

    @property
    def is_plain(self) -> bool:
        """Whether it ran and drafted nothing, so that what was timed is plain decoding."""
        return self.by_running and not self.n_drafted

    @property
    def invalid_prediction(self) -> str:
        """Why `predicted_speedup` comes from an error of measurement, a `verify_ratio` below 1; else empty.

        The prediction counts it as 1, so that it is never above `ideal_speedup`.
        """
        return "" if self.by_running else invalid_ratio(self.gamma, number_of(self.verify_ratio))

    @property
    def speedup_bounds(self) -> tuple[float, float, float]:
        """(speed-up, least, greatest) as measured, or as predicted at alpha and both ends of its interval."""
        if self.by_running:
            return self.timed.median, self.timed.low, self.timed.high
        costs = number_of(self.c), max(number_of(self.verify_ratio), 1.0)
        low, high = (float(theory.expected_speedup(one, self.gamma, *costs)) for one in self.rates[1:])
        return number_of(self.predicted_speedup), low, high

    @property
    def setting(self) -> tuple[str, float]:
        """Draft and temperature, of which there are rows by gamma and lenience."""
        return self.draft, self.temperature

    @property
    def speed_cell(self) -> str:
        """The measured speed-up for a table; a dash where there is none."""
        if self.speedup is None:
            return "–"
        return EQUALS_PLAIN if self.is_plain and self.gamma else self.speedup.text()


def number_of(value: float | None) -> float:
    """The figure; NaN where there is none."""
    return math.nan if value is None else value


COLUMNS: Final[Mapping[str, Column]] = {
    "draft": ("draft", lambda row: row.draft),
    "temperature": ("temp", lambda row: f"{row.temperature:g}"),
    "lenience": ("lenience", lambda row: f"{row.lenience:g}"),
    "gamma": ("gamma", lambda row: f"{row.gamma}"),
    "n_tokens": ("tokens", lambda row: f"{row.n_tokens}"),
    "tokens_per_call": figure("tokens/run", "tokens_per_call", ".2f"),
    "tokens_interval": bounds("95 %", "tokens", ".2f"),
    "alpha": figure("alpha", "alpha", ".3f"),
    "alpha_interval": bounds("95 %", "alpha"),
    "named_share": figure("named", "named_share", ".3f"),
    "c": figure("c", "c", ".3f"),
    "verify_ratio": figure("t(round)/t(1)", "verify_ratio", ".2f"),
    "tokens_per_s": ("tokens/s", lambda row: f"{statistics.median(row.tokens_per_s):.1f}"),
    "speedup": ("speed-up", lambda row: row.speed_cell),
    "speedup_interval": ("min to max", lambda row: row.timed.interval),
}
"""Columns of tables whose rows are `ExperimentRow`."""
SETTINGS: Final = ("draft", "temperature", "gamma")
NAMED: Final = "; named: share of the draft's distribution that the target can name"


def columns_of(*names: str) -> list[Column]:
    """The columns of these names."""
    return [COLUMNS[name] for name in names]


def starred(chosen: Iterable[ExperimentRow]) -> Column:
    """The column of gamma, with a star in the chosen rows."""
    ids = {id(row) for row in chosen}
    return "gamma", lambda row: f"{row.gamma}{' ★' if id(row) in ids else '  '}"


def position_tables(rows: Sequence[ExperimentRow], names: Sequence[str]) -> list[Table]:
    """Share of rounds that accepted each of their drafts, after these columns; [] if none drafted."""
    title = "Share of rounds that accepted their first, second, ... guess, of those that drafted so far"
    columns = columns_of(*names)
    lines = [(*(cell(row) for _, cell in columns), row.by_position) for row in rows]
    return tables_by_position(title, tuple(head for head, _ in columns), lines, ".2f")


def reason_tables(rows: Sequence[ExperimentRow]) -> list[Table]:
    """Why figures are missing, each reason once; [] where none is."""
    reasons = list(dict.fromkeys((row.draft, row.reason) for row in rows if row.reason))
    return [Table("Figures that are missing (–)", ("draft", "because"), reasons)] if reasons else []


def counts_of(results: Sequence[Result]) -> dict[str, Any]:
    """Count the rounds of some texts that were decoded alike: fields of an `ExperimentRow`."""
    texts = [result.trace for result in results]
    rounds = Trace([one for text in texts for one in text.rounds])
    low, high = mean_interval([_ends(text) for text in texts])
    names = ("n_tokens", "n_calls", "n_drafted", "n_accepted", "tokens_per_call")
    found: dict[str, Any] = {name: getattr(rounds, name) for name in names} | {
        "tokens_low": 1.0 / high, "tokens_high": 1.0 / low if low > 0.0 else math.inf,
        "by_position": tuple(rounds.acceptance_by_position),
    }  # fmt: skip
    if any(one.depth != one.n_drafted for one in rounds.rounds):
        return found | {"reason": TREES}
    if not rounds.n_verified:
        return found | {"reason": NOTHING_DRAFTED}
    ends = mean_interval([np.array([b for r in text.rounds for b in r.betas]) for text in texts])
    return found | {"alpha": rounds.acceptance_rate, "alpha_low": ends[0], "alpha_high": ends[1]}


def _ends(text: Trace) -> NDArray[np.float64]:
    """Of each new token of a text: 1 if it is the last of its round, else 0."""
    return np.array([float(i == one.kept) for one in text.rounds for i in range(1, one.kept + 1)])


def take_turns(
    runners: Sequence[Any], work: Sequence[Any], *, repeats: int, seed: int,
    done: Callable[[int], object] = lambda n: None, limit: TimeLimit = ENDLESS,
    goes_on: Callable[[Any], bool] = lambda runner: True,
) -> None:  # fmt: skip
    """Do the same work `repeats` times in several ways that take turns item by item, with seed + k in turn k.

    ``run(turn, index, item, seed)`` of a runner returns what `done` is called with. Every other repetition
    goes in reverse. Once the limit is over no run begins, except the first of each way. `goes_on` says
    whether a way has another repetition.
    """
    going = list(runners)
    for turn in range(repeats):
        for i, item in enumerate(work):
            for one in going if turn % 2 == 0 else reversed(going):
                if limit.is_over and (turn or i):
                    return
                done(one.run(turn, i, item, seed + turn))
        going = [one for one in going if goes_on(one)]


class Configuration:
    """A draft, or none, with options of `generate`, and its runs: timed as a caller sees them, less prefill.

    Each repetition begins with a snapshot of the draft (`Draft.snapshot`), which learns from its texts alone.
    `turns` has the results of each, `seconds` how long they took. `gamma` None is the draft's own.
    """

    def __init__(self, target: Model, draft: Model | Draft | None, gamma: Any = None, **options: Any) -> None:
        self.target, self.draft, self.gamma, self.options = target, draft, gamma, options
        self._drafting: Model | Draft | None = None
        self._named = np.zeros(2)
        self.turns: list[list[Result]] = []
        self.seconds: list[list[float]] = []

    def run(self, turn: int, index: int, item: tuple[Prompt, int], seed: int) -> int:
        """Continue prompt `index`, with the key (seed, index)."""
        prompt, n = item
        self.decode(turn, prompt, max_new_tokens=n, seed=[(seed, index)])
        return n

    def decode(self, turn: int, prompt: Prompt, **options: Any) -> None:
        """Run once more in a repetition, the last one or the next."""
        if turn == len(self.turns):
            self.turns.append([])
            self.seconds.append([])
            self._drafting = self.draft.snapshot() if isinstance(self.draft, Draft) else self.draft
        gamma = {} if self.draft is None or self.gamma is None else {"gamma": self.gamma}
        before = self._shares()
        seconds, result = _timed(self.target, self._drafting, prompt, self.options | gamma | options)
        self._named += self._shares() - before
        self.seconds[turn].append(seconds)
        self.turns[turn].append(result)

    def _shares(self) -> NDArray[np.float64]:
        """(drafts so far of a draft with another vocabulary, shares of them that the target can name)."""
        return np.array(self.draft.shares(self.target) if isinstance(self.draft, Draft) else (0, 0.0))

    @property
    def results(self) -> list[Result]:
        """Of all repetitions."""
        return [result for turn in self.turns for result in turn]

    @property
    def tokens_per_s(self) -> tuple[float, ...]:
        """New tokens per second of each repetition."""
        turns = zip(self.turns, self.seconds, strict=True)
        return tuple(sum(len(one.tokens) for one in turn) / math.fsum(seconds) for turn, seconds in turns)

    def of(self, index: int) -> Configuration:
        """The runs of one prompt alone: run `index` of every repetition that reached it."""
        part = Configuration(self.target, self.draft, self.gamma, **self.options)
        part.turns = [turn[index : index + 1] for turn in self.turns if len(turn) > index]
        part.seconds = [turn[index : index + 1] for turn in self.seconds if len(turn) > index]
        return part

    def over(self, plain: Configuration) -> Speedup:
        """The speed-up over the same repetitions of plain decoding, of the texts that both have decoded."""
        shared = self._shared(plain)
        return Speedup(
            tuple(step_s * trace.n_tokens / seconds for trace, seconds, step_s in shared),
            tuple(trace.tokens_per_call for trace, _, _ in shared),
        )

    def costs(self, plain: Configuration) -> tuple[float | None, float, float]:
        """Return c, draft_ratio and verify_ratio of an `ExperimentRow`: medians of the repetitions.

        Only with a verify_ratio below 1 does the speed-up exceed the ideal, tokens per round over
        draft_ratio + 1.
        """
        per_token, draft, verify = [], [], []
        for trace, seconds, step_s in self._shared(plain):
            if trace.n_drafted:
                per_token.append(trace.draft_s / trace.n_drafted / step_s)
            draft.append(trace.draft_s / trace.n_calls / step_s)
            verify.append((seconds - trace.draft_s) / trace.n_calls / step_s)
        c = statistics.median(per_token) if per_token else None
        return c, statistics.median(draft), statistics.median(verify)

    def _shared(self, plain: Configuration) -> list[tuple[Trace, float, float]]:
        """Trace and seconds of each repetition, and seconds of a plain token, over the texts of both."""
        found = []
        turns = zip(self.turns, self.seconds, plain.turns, plain.seconds, strict=False)
        for ours, seconds, theirs, plain_s in turns:
            if n := min(len(ours), len(theirs)):
                trace, plain_trace = (Trace.joined(one.trace for one in part[:n]) for part in (ours, theirs))
                found.append((trace, math.fsum(seconds[:n]), math.fsum(plain_s[:n]) / plain_trace.n_tokens))
        return found

    def timing(self, plain: Configuration) -> dict[str, Any]:
        """Return the fields of an `ExperimentRow` that are times."""
        costs = dict(zip(("c", "draft_ratio", "verify_ratio"), self.costs(plain), strict=True))
        return {**costs, "tokens_per_s": self.tokens_per_s, "speedup": self.over(plain)}

    def row(
        self, draft: str, plain: Configuration | None = None, *, by_prompt: bool = False
    ) -> ExperimentRow:
        """Return what was found, with times against plain decoding; with `by_prompt` of each prompt, too."""
        temperature = float(self.options.get("temperature", 0.0))
        fields = counts_of(self.results if temperature else self.turns[0])
        if plain is not None:
            fields |= self.timing(plain)
        if by_prompt:
            parts = [(self.of(i), plain and plain.of(i)) for i in range(len(self.turns[0]))]
            fields["prompts"] = tuple(part.row(draft, theirs) for part, theirs in parts)
        gamma = self.draft.gamma if self.gamma is None and isinstance(self.draft, Draft) else self.gamma
        n_named, total = self._named
        return ExperimentRow(
            draft=draft, temperature=temperature, gamma=gamma, lenience=self.options.get("lenience", 1.0),
            named_share=float(total / n_named) if n_named else None, **fields,
        )  # fmt: skip


def interleaved(
    target: Model, drafts: Mapping[Key, tuple[Model | Draft, int | None]], work: Work,
    options: Mapping[str, Any], *, repeats: int, seed: int, timing: bool = True, at_least: float = 0.0,
    done: Callable[[int], object] = lambda n: None, limit: TimeLimit = ENDLESS,
) -> tuple[Configuration, dict[Key, Configuration]]:  # fmt: skip
    """Run plain decoding and each (draft, gamma) by key in turns: (plain, the others by key).

    Plain decoding has no lenience, and does not run without `timing`. What has a speed-up below `at_least`
    after a turn has no further turn.
    """
    plain = Configuration(target, None, **{name: one for name, one in options.items() if name != "lenience"})
    drafted = {key: Configuration(target, draft, gamma, **options) for key, (draft, gamma) in drafts.items()}

    def goes_on(one: Configuration) -> bool:
        return not at_least or one is plain or one.over(plain).median >= at_least

    runners = [*[plain] * timing, *drafted.values()]
    take_turns(runners, work, repeats=repeats, seed=seed, done=done, limit=limit, goes_on=goes_on)
    return plain, drafted


def _timed(
    target: Model, draft: Model | Draft | None, prompt: Prompt, options: dict[str, Any]
) -> tuple[float, Result]:
    begun = time.perf_counter()
    result = generate(target, draft, prompt, **options)
    return time.perf_counter() - begun - result.trace.prefill_s, result
