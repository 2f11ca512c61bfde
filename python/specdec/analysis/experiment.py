"""Interleaved runs: configurations decode the same prompts alternately, on the same machine state."""

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
"""Prompts with their numbers of new tokens."""

TREES: Final = "it drafts trees; alpha is defined for one draft token per position"
NOTHING_DRAFTED: Final = "nothing was drafted"
EQUALS_PLAIN: Final = "= plain (drafted nothing)"
"""Shown as the speed-up of a draft that drafted nothing: plain decoding was timed twice."""


@dataclass(frozen=True)
class Speedup:
    """Repeated measurements of the time per new token of plain over speculative decoding.

    `ratios` are the speed-ups of the repetitions, at least one; `tokens_per_call` are their new tokens per
    target forward pass. Verification takes at least as long as computing one token, so a speed-up above the
    new tokens per pass is a measurement error.
    """

    ratios: tuple[float, ...]
    tokens_per_call: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over the repetitions."""
        return statistics.median(self.ratios)

    @property
    def low(self) -> float:
        """Minimum over the repetitions."""
        return min(self.ratios)

    @property
    def high(self) -> float:
        """Maximum over the repetitions."""
        return max(self.ratios)

    @property
    def spread(self) -> float:
        """Interquartile range over the median; 0 for a single repetition."""
        if len(self.ratios) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return (third - first) / self.median

    @property
    def invalid(self) -> str:
        """Why it is a measurement error (median of ratio / tokens per pass above 1); empty if valid."""
        pairs = sorted(
            zip(self.ratios, self.tokens_per_call, strict=True), key=lambda pair: pair[0] / pair[1]
        )
        if not statistics.median(ratio / bound for ratio, bound in pairs) > 1.0:  # also false for NaN
            return ""
        return invalid_speedup(*pairs[len(pairs) // 2])

    @property
    def interval(self) -> str:
        """Minimum and maximum, for a table."""
        return interval(self.low, self.high, ".2f")

    def text(self, unit: str = "X") -> str:
        """Return the median for a table, marked if it is a measurement error."""
        return marked(f"{self.median:.2f}{unit}", self.invalid)

    def columns(self, name: str) -> dict[str, float | str]:
        """Return median, minimum, maximum and the reason if invalid, as columns for pandas."""
        return {name: self.median} | {f"{name}_{end}": getattr(self, end) for end in _ENDS}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain lists and numbers."""
        return {name: plain(getattr(self, name)) for name in ("median", *_ENDS, "ratios", "tokens_per_call")}


_ENDS: Final = ("low", "high", "invalid")
NOT_RUN: Final = Speedup((math.nan,), (math.nan,))  # not timed


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """Results of one configuration: a draft at a temperature, gamma and lenience.

    Attributes
    ----------
    draft, temperature, gamma, lenience : str, float, int, float
        Name and settings: gamma is the maximum of draft tokens per round; lenience 1 is the exact rule
        (appendix A.5).
    n_tokens, n_calls, n_drafted, n_accepted : int
        Counts of new tokens, target forward passes, draft tokens and accepted tokens over all repetitions; in
        greedy decoding over one, as the others repeat its text. If `by_running` is False, `n_tokens` are the
        positions averaged by alpha, and the others are 0.
    tokens_per_call, tokens_low, tokens_high : float
        New tokens per target forward pass, n_tokens / n_calls, and its 95 % confidence interval (from the
        share of tokens that end a round). If `by_running` is False: the mean over the timed repetitions,
        without an interval. NaN if unknown.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate (Corollary 3.6; A.5 with lenience) and its 95 % confidence interval, over the
        verified positions, or all positions if `by_running` is False. None for trees or if nothing was
        drafted, see `reason`.
    by_position : tuple of float
        Share of rounds that accepted the first, second, ... draft token, among rounds that drafted so many.
    c : float or None
        Cost coefficient (Definition 3.7): seconds per draft token over seconds per plain pass of the target;
        0 for a draft that the core does not run (section 3.6). None without timing or draft tokens.
    draft_ratio, verify_ratio : float or None
        Seconds per round of drafting, and of the target, over a plain pass of the target. If `by_running` is
        False, `verify_ratio` is t(gamma + 1) / t(1). None without timing.
    tokens_per_s : tuple of float
        New tokens per second in each repetition; empty if not timed.
    speedup : Speedup or None
        Time per new token of plain over speculative decoding, in interleaved runs.
    ideal_speedup, predicted_speedup : float or None
        By Theorem 3.8, where verification takes as long as one position; and with the measured
        `verify_ratio`, at least 1, the value to choose gamma by. Under block verification with its expected
        tokens (`specdec.theory.expected_block_tokens`). None if `by_running`.
    by_running : bool
        Whether the draft was run; otherwise its distribution was compared with the target's.
    prompts, reason : tuple of ExperimentRow, str
        The same for each prompt, if there are several; and why values are None, or empty.
    named_share : float or None
        For a draft with another vocabulary: the mean share of its distribution on tokens that the target has,
        by the intersection method; else None.
    rule : str or None
        The verification rule that ran, or that the prediction is for. None if the texts had several.
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
    rule: str | None = None

    @property
    def drafted_per_call(self) -> float:
        """Draft tokens per target forward pass."""
        return self.n_drafted / self.n_calls if self.n_calls else math.nan

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted over draft tokens, including those after a rejection. None if nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def rates(self) -> tuple[float, float, float]:
        """(alpha, low, high); NaN if unknown."""
        return number_of(self.alpha), number_of(self.alpha_low), number_of(self.alpha_high)

    @property
    def timed(self) -> Speedup:
        """`speedup`, or one of NaN."""
        return NOT_RUN if self.speedup is None else self.speedup

    @property
    def invalid(self) -> str:
        """Why the speed-up is a measurement error; empty if it is valid or absent."""
        return self.timed.invalid

    @property
    def is_plain(self) -> bool:
        """Whether it drafted nothing, so that the timed runs are plain decoding."""
        return self.by_running and not self.n_drafted

    @property
    def invalid_prediction(self) -> str:
        """Why `predicted_speedup` is affected by a measurement error, a `verify_ratio` below 1; else empty.

        The prediction counts the ratio as 1, so it never exceeds `ideal_speedup`.
        """
        return "" if self.by_running else invalid_ratio(self.gamma, number_of(self.verify_ratio))

    @property
    def speedup_bounds(self) -> tuple[float, float, float]:
        """(speed-up, low, high): measured, or predicted at alpha and the ends of its interval."""
        if self.by_running:
            return self.timed.median, self.timed.low, self.timed.high
        costs = number_of(self.c), max(number_of(self.verify_ratio), 1.0)
        middle, low, high = (float(theory.expected_speedup(one, self.gamma, *costs)) for one in self.rates)
        predicted = number_of(self.predicted_speedup)  # under block verification above `middle`
        return predicted, predicted * low / middle, predicted * high / middle

    @property
    def setting(self) -> tuple[str, float]:
        """Draft and temperature, which have rows by gamma and lenience."""
        return self.draft, self.temperature

    @property
    def speed_cell(self) -> str:
        """Measured speed-up for a table; a dash if absent."""
        if self.speedup is None:
            return "–"
        return EQUALS_PLAIN if self.is_plain and self.gamma else self.speedup.text()


def number_of(value: float | None) -> float:
    """Return the value, or NaN for None."""
    return math.nan if value is None else value


COLUMNS: Final[Mapping[str, Column]] = {
    "draft": ("draft", lambda row: row.draft),
    "temperature": ("temp", lambda row: f"{row.temperature:g}"),
    "lenience": ("lenience", lambda row: f"{row.lenience:g}"),
    "gamma": ("gamma", lambda row: f"{row.gamma}"),
    "n_tokens": ("tokens", lambda row: f"{row.n_tokens}"),
    "tokens_per_call": figure("tokens per pass", "tokens_per_call", ".2f"),
    "tokens_interval": bounds("95 %", "tokens", ".2f"),
    "alpha": figure("alpha", "alpha", ".3f"),
    "alpha_interval": bounds("95 %", "alpha"),
    "named_share": figure("shared mass", "named_share", ".3f"),
    "c": figure("c", "c", ".3f"),
    "verify_ratio": figure("t(round)/t(1)", "verify_ratio", ".2f"),
    "tokens_per_s": ("tokens/s", lambda row: f"{statistics.median(row.tokens_per_s):.1f}"),
    "speedup": ("speed-up", lambda row: row.speed_cell),
    "speedup_interval": ("min to max", lambda row: row.timed.interval),
}
"""Table columns for `ExperimentRow`."""
SETTINGS: Final = ("draft", "temperature", "gamma")
NAMED: Final = "; shared mass: the draft's probability on tokens that the target has"


def columns_of(*names: str) -> list[Column]:
    """Return the columns of these names."""
    return [COLUMNS[name] for name in names]


def starred(chosen: Iterable[ExperimentRow]) -> Column:
    """Return the gamma column, with a star in the chosen rows."""
    ids = {id(row) for row in chosen}
    return "gamma", lambda row: f"{row.gamma}{' ★' if id(row) in ids else '  '}"


def position_tables(rows: Sequence[ExperimentRow], names: Sequence[str]) -> list[Table]:
    """Return the table of acceptance by position, after these columns; [] if none drafted."""
    title = "Share of rounds that accepted their first, second, ... draft token, if drafted"
    columns = columns_of(*names)
    lines = [(*(cell(row) for _, cell in columns), row.by_position) for row in rows]
    return tables_by_position(title, tuple(head for head, _ in columns), lines, ".2f")


def reason_tables(rows: Sequence[ExperimentRow]) -> list[Table]:
    """Return the table of reasons for missing values, each once; [] if there are none."""
    reasons = list(dict.fromkeys((row.draft, row.reason) for row in rows if row.reason))
    return [Table("Missing values (–)", ("draft", "because"), reasons)] if reasons else []


def counts_of(results: Sequence[Result]) -> dict[str, Any]:
    """Count the rounds of texts decoded in the same configuration: fields of an `ExperimentRow`."""
    texts = [result.trace for result in results]
    rounds = Trace([one for text in texts for one in text.rounds])
    low, high = mean_interval([_ends(text) for text in texts])
    names = ("n_tokens", "n_calls", "n_drafted", "n_accepted", "tokens_per_call")
    found: dict[str, Any] = {name: getattr(rounds, name) for name in names} | {
        "tokens_low": 1.0 / high, "tokens_high": 1.0 / low if low > 0.0 else math.inf,
        "by_position": tuple(rounds.acceptance_by_position),
        "rule": Trace.joined(texts).rule if texts else None,
    }  # fmt: skip
    if any(one.depth != one.n_drafted for one in rounds.rounds):
        return found | {"reason": TREES}
    if not rounds.n_verified:
        return found | {"reason": NOTHING_DRAFTED}
    ends = mean_interval([np.array([b for r in text.rounds for b in r.betas]) for text in texts])
    return found | {"alpha": rounds.acceptance_rate, "alpha_low": ends[0], "alpha_high": ends[1]}


def _ends(text: Trace) -> NDArray[np.float64]:
    """Return 1 for each new token that ends its round, else 0."""
    return np.array([float(i == one.kept) for one in text.rounds for i in range(1, one.kept + 1)])


def take_turns(
    runners: Sequence[Any], work: Sequence[Any], *, repeats: int, seed: int,
    done: Callable[[int], object] = lambda n: None, limit: TimeLimit = ENDLESS,
    goes_on: Callable[[Any], bool] = lambda runner: True,
) -> None:  # fmt: skip
    """Repeat the same work in interleaved runs, item by item, with seed + k in repetition k.

    ``run(turn, index, item, seed)`` of a runner returns the argument of `done`. Every other repetition
    reverses the order. Past the time limit no run starts, except each runner's first. `goes_on` says whether
    a runner has another repetition.
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
    """A draft (or none) with `generate` options, and its runs, timed as the caller sees them minus prefill.

    Each repetition starts with a snapshot of the draft (`Draft.snapshot`), which learns from its texts only.
    `turns` has the results of each repetition, `seconds` their times. `gamma` None is the draft's own.
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
        """Add a run to a repetition, the last one or the next."""
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
        """Sum (draft tokens of another vocabulary, their probability mass on the target's tokens)."""
        return np.array(self.draft.shares(self.target) if isinstance(self.draft, Draft) else (0, 0.0))

    @property
    def results(self) -> list[Result]:
        """Results of all repetitions."""
        return [result for turn in self.turns for result in turn]

    @property
    def tokens_per_s(self) -> tuple[float, ...]:
        """New tokens per second in each repetition."""
        turns = zip(self.turns, self.seconds, strict=True)
        return tuple(sum(len(one.tokens) for one in turn) / math.fsum(seconds) for turn, seconds in turns)

    def of(self, index: int) -> Configuration:
        """Return the runs of one prompt: run `index` of every repetition that reached it."""
        part = Configuration(self.target, self.draft, self.gamma, **self.options)
        part.turns = [turn[index : index + 1] for turn in self.turns if len(turn) > index]
        part.seconds = [turn[index : index + 1] for turn in self.seconds if len(turn) > index]
        return part

    def over(self, plain: Configuration) -> Speedup:
        """Return the speed-up over the same repetitions of plain decoding, on texts that both decoded."""
        shared = self._shared(plain)
        return Speedup(
            tuple(step_s * trace.n_tokens / seconds for trace, seconds, step_s in shared),
            tuple(trace.tokens_per_call for trace, _, _ in shared),
        )

    def costs(self, plain: Configuration) -> tuple[float | None, float, float]:
        """Return c, draft_ratio and verify_ratio of an `ExperimentRow`: medians over the repetitions.

        The speed-up exceeds the ideal, tokens per pass over (draft_ratio + 1), only if verify_ratio is below
        1.
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
        """Return trace, seconds and plain seconds per token of each repetition, on texts of both."""
        found = []
        turns = zip(self.turns, self.seconds, plain.turns, plain.seconds, strict=False)
        for ours, seconds, theirs, plain_s in turns:
            if n := min(len(ours), len(theirs)):
                trace, plain_trace = (Trace.joined(one.trace for one in part[:n]) for part in (ours, theirs))
                found.append((trace, math.fsum(seconds[:n]), math.fsum(plain_s[:n]) / plain_trace.n_tokens))
        return found

    def timing(self, plain: Configuration) -> dict[str, Any]:
        """Return the time fields of an `ExperimentRow`."""
        costs = dict(zip(("c", "draft_ratio", "verify_ratio"), self.costs(plain), strict=True))
        return {**costs, "tokens_per_s": self.tokens_per_s, "speedup": self.over(plain)}

    def row(
        self, draft: str, plain: Configuration | None = None, *, by_prompt: bool = False
    ) -> ExperimentRow:
        """Make the row, with times relative to plain decoding; `by_prompt`: rows of each prompt too."""
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
    """Run plain decoding and each (draft, gamma) by key, interleaved: (plain, the others by key).

    Plain decoding ignores lenience, and is skipped without `timing`. A configuration with a speed-up below
    `at_least` after one repetition is dropped.
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
