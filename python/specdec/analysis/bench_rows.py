"""What a benchmark found: figures by category, and the tables that show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specdec.analysis.answers import Answer
from specdec.analysis.experiment import NOT_RUN, Speedup
from specdec.analysis.questions import Question
from specdec.analysis.statistics import mean_interval
from specdec.tables import Table, Tabular, figures_frame, interval, or_dash, tables_by_position
from specdec.trace import DraftCounts

OVERALL: Final = "overall"
MT_BENCH: Final = "mt_bench"
MT_BENCH_CATEGORIES: Final = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
"""Spec-Bench reports these as one task."""


@dataclass(frozen=True)
class BenchRow:
    """The figures of a category.

    Attributes
    ----------
    category : str
        As in the file of questions; "mt_bench" for the eight categories of MT-Bench where all of them are
        there, and "overall" for all questions.
    n_questions, n_turns : int
        That were answered.
    n_tokens : int
        New tokens of a repetition, the mean of all of them, rounded.
    alpha, alpha_low, alpha_high : float
        Mean acceptance rate (Corollary 3.6) at the verified positions, and its 95 % confidence interval; of
        trees the share of positions at which one of several drafts was accepted (`Round.betas`).
    mean_acceptance_length, draft_acceptance_rate, per_position_acceptance_rate
        As vLLM names them: new tokens of a run of the target that verified a draft, its own token included;
        accepted over drafted tokens; share of these runs that accepted their first, second, … token. What was
        accepted after the end of a text does not count.
    tokens_per_call : float
        New tokens per run of the target, those without a draft included: the mean of Spec-Bench's
        ``accept_lengths``.
    tokens_per_s, plain_tokens_per_s : tuple of float
        New tokens over seconds of the whole calls, the reading of the prompts included, of each repetition.
    speedup, decode_speedup, question_speedup : Speedup
        tokens_per_s over plain_tokens_per_s; the same of the rounds alone, without the reading of the
        prompts; and as Spec-Bench counts it: the mean over questions of their tokens per second, over that of
        plain decoding, so that a question counts the same however long its answer is.
    n_equal, n_compared : int
        Turns of all repetitions whose new tokens are those of plain decoding (at temperature 0 with the exact
        rule all are), and those that both ways answered.
    """

    category: str
    n_questions: int
    n_turns: int
    n_tokens: int
    alpha: float
    alpha_low: float
    alpha_high: float
    mean_acceptance_length: float
    draft_acceptance_rate: float
    per_position_acceptance_rate: tuple[float, ...]
    tokens_per_call: float
    tokens_per_s: tuple[float, ...]
    plain_tokens_per_s: tuple[float, ...]
    speedup: Speedup
    decode_speedup: Speedup
    question_speedup: Speedup
    n_equal: int
    n_compared: int


@dataclass(frozen=True, eq=False, repr=False)
class Bench(Tabular):
    """What `specdec.bench` found; ``print`` shows its tables, a notebook too.

    `draft` is "plain" where there is none. `settings` are what the answers were made with. `rows` have a
    category each, in the order of the questions; then MT-Bench and all together, where that is more than one
    category. `skipped` has the ids of questions that were not asked, or not to their last turn, and why.
    `answers` and `plain_answers` are by repetition, then by question; the one or the other is empty where it
    was not run.
    """

    target: str
    draft: str
    settings: dict[str, Any]
    rows: tuple[BenchRow, ...]
    questions: tuple[Question, ...]
    skipped: tuple[tuple[int | str, str], ...]
    answers: tuple[tuple[Answer, ...], ...]
    plain_answers: tuple[tuple[Answer, ...], ...]

    def __getitem__(self, category: str) -> BenchRow:
        """The row of a category; KeyError if there is none."""
        for row in self.rows:
            if row.category == category:
                return row
        raise KeyError(category)

    def to_dict(self) -> dict[str, Any]:
        """The rows and settings as plain dicts, lists and numbers, ready for JSON; not the answers."""
        left_out = ("questions", "answers", "plain_answers")
        return {name: value for name, value in super().to_dict().items() if name not in left_out}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the figures of `BenchRow`; rates by position are left out.

        Of a speed-up NAME it has ``NAME``, ``NAME_low``, ``NAME_high`` and ``NAME_invalid``.
        """
        return figures_frame(self.rows)

    def tables(self) -> list[Table]:
        """Speed; then acceptance, and acceptance by position, where there was a draft."""
        found = [self._speed_table()]
        if self.answers:
            head = (
                "",
                "alpha",
                "95 % interval",
                "mean acceptance length",
                "draft acceptance rate",
                "tokens/run",
            )
            body = [
                (
                    row.category, or_dash(row.alpha, ".3f"), interval(row.alpha_low, row.alpha_high),
                    or_dash(row.mean_acceptance_length, ".2f"), or_dash(row.draft_acceptance_rate, ".3f"),
                    or_dash(row.tokens_per_call, ".2f"),
                )
                for row in self.rows
            ]  # fmt: skip
            title = "Share of the runs with a draft that accepted its first, second, … token"
            rates = [(row.category, row.per_position_acceptance_rate) for row in self.rows]
            found += [
                Table("Acceptance", head, body), *tables_by_position(title, ("position",), rates, ".3f")
            ]  # fmt: skip
        return found

    def _speed_table(self) -> Table:
        """Tokens per second and speed-ups."""
        title = f"{self.draft} drafting for {self.target}" if self.answers else f"{self.target} alone"
        title += f", gamma {self.settings['gamma']}" if self.answers else ""
        title += f", temperature {self.settings['temperature']:g}"
        both = bool(self.answers and self.plain_answers)
        decides = not self.settings["temperature"] or self.settings["verify"] == "coupled"
        if decides and both:  # else they are other samples
            last = self.rows[-1]
            title += f"; {last.n_equal} of {last.n_compared} answers equal those of plain decoding"
        if self.skipped:
            title += f"; not asked, or not to the end: {len(self.skipped)} questions"
        columns = {
            "": [row.category for row in self.rows],
            "questions": [f"{row.n_questions}" for row in self.rows],
            "tokens": [f"{row.n_tokens}" for row in self.rows],
        }
        if self.plain_answers:
            columns["plain tokens/s"] = [_spread(row.plain_tokens_per_s) for row in self.rows]
        if self.answers:
            columns["tokens/s"] = [_spread(row.tokens_per_s) for row in self.rows]
        if both:
            columns["speed-up (min to max)"] = [_ratio(row.speedup) for row in self.rows]
            columns["without prompts"] = [_ratio(row.decode_speedup) for row in self.rows]
        return Table(title, tuple(columns), list(zip(*columns.values(), strict=True)))

    def __repr__(self) -> str:
        row = self.rows[-1]
        gain = "" if math.isnan(row.speedup.median) else f", speed-up {_ratio(row.speedup)}"
        return (
            f"<specdec.Bench of {self.draft!r} drafting for {self.target!r}: {row.n_questions} questions, "
            f"alpha {or_dash(row.alpha, '.3f')}{gain}>"
        )


def bench_rows(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Answer]],
    plain: Sequence[Sequence[Answer]],
    *,
    sampled: bool,
) -> tuple[BenchRow, ...]:
    """Count answers by category; `answers` and `plain` by repetition, then by question, or empty.

    `sampled`: repetitions are different samples, and not the same texts again.
    """
    groups: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        groups.setdefault(question.category, []).append(i)
    n_categories = len(groups)
    if set(MT_BENCH_CATEGORIES) <= groups.keys() and MT_BENCH not in groups:
        groups[MT_BENCH] = [i for i, one in enumerate(questions) if one.category in MT_BENCH_CATEGORIES]
    if n_categories > 1:
        groups[OVERALL] = list(range(len(questions)))
    runs = {
        name: ([[run[i] for i in ids] for run in answers], [[run[i] for i in ids] for run in plain])
        for name, ids in groups.items()
    }
    return tuple(_row(category, ours, theirs, sampled) for category, (ours, theirs) in runs.items())


def _row(category: str, answers: list[list[Answer]], plain: list[list[Answer]], sampled: bool) -> BenchRow:
    main = answers or plain
    counts = _counts(answer for run in answers for answer in run)
    betas = [
        np.minimum([beta for step in reply.steps for beta in step.betas], 1.0)
        for run in (answers if sampled else answers[:1])  # repetitions of one text say nothing more
        for answer in run
        for reply in answer.replies
    ]
    n_betas = sum(map(len, betas))
    alpha, low, high = math.nan, math.nan, math.nan
    if n_betas:
        alpha = math.fsum(float(text.sum()) for text in betas) / n_betas
        low, high = mean_interval(betas)
    n_equal, n_compared = _equal(answers, plain)
    bounds = [_counts(run).tokens_per_call for run in answers]
    speeds, plain_speeds = ([_per_s(run, "wall_s") for run in runs] for runs in (answers, plain))
    rounds, plain_rounds = ([_per_s(run, "rounds_s") for run in runs] for runs in (answers, plain))
    means, plain_means = ([_mean_speed(run) for run in runs] for runs in (answers, plain))
    return BenchRow(
        category=category,
        n_questions=len(main[0]),
        n_turns=sum(len(answer.replies) for answer in main[0]),
        n_tokens=round(sum(answer.n_tokens for run in main for answer in run) / len(main)),
        alpha=alpha,
        alpha_low=low,
        alpha_high=high,
        mean_acceptance_length=counts.mean_acceptance_length,
        draft_acceptance_rate=counts.draft_acceptance_rate,
        per_position_acceptance_rate=counts.per_position_acceptance_rate,
        tokens_per_call=_counts(answer for run in main for answer in run).tokens_per_call,
        tokens_per_s=tuple(speeds),
        plain_tokens_per_s=tuple(plain_speeds),
        speedup=_speedup(speeds, plain_speeds, bounds),
        decode_speedup=_speedup(rounds, plain_rounds, bounds),
        question_speedup=_speedup(means, plain_means, list(map(_question_bound, answers, plain))),
        n_equal=n_equal,
        n_compared=n_compared,
    )


def _counts(answers: Iterable[Answer]) -> DraftCounts:
    return DraftCounts.of(step for answer in answers for reply in answer.replies for step in reply.steps)


def _per_s(answers: Iterable[Answer], seconds: str) -> float:
    """New tokens over seconds: ``wall_s``, or ``rounds_s`` of the rounds alone."""
    every = list(answers)
    total = math.fsum(getattr(one, seconds) for one in every)
    return sum(one.n_tokens for one in every) / total if total else math.nan


def _mean_speed(answers: Sequence[Answer]) -> float:
    """The mean over questions of new tokens over seconds."""
    return math.fsum(_per_s([one], "wall_s") for one in answers) / len(answers)


def _speedup(ours: Sequence[float], plain: Sequence[float], bounds: Sequence[float]) -> Speedup:
    """Speeds over those of plain decoding, each repetition over its own; `bounds` are tokens per run."""
    if not ours or not plain:
        return NOT_RUN
    return Speedup(
        ratios=tuple(one / other if other else math.nan for one, other in zip(ours, plain, strict=True)),
        tokens_per_run=tuple(bounds),
    )


def _question_bound(answers: Sequence[Answer], plain: Sequence[Answer]) -> float:
    """What bounds the ratio of two means of speeds: tokens per run, questions weighted by their speed."""
    weights = [_per_s([one], "wall_s") for one in plain]
    bounds = [_counts([one]).tokens_per_call for one in answers]
    products = math.fsum(weight * bound for weight, bound in zip(weights, bounds, strict=True))
    return products / total if (total := math.fsum(weights)) else math.nan


def _equal(answers: Sequence[Sequence[Answer]], plain: Sequence[Sequence[Answer]]) -> tuple[int, int]:
    """(turns with the tokens of plain decoding, turns that both answered)."""
    if not answers or not plain:
        return 0, 0
    pairs = [
        pair
        for run, plain_run in zip(answers, plain, strict=True)
        for one, other in zip(run, plain_run, strict=True)
        for pair in zip(one.replies, other.replies, strict=False)
    ]
    return sum(ours.tokens == theirs.tokens for ours, theirs in pairs), len(pairs)


def _spread(values: Sequence[float]) -> str:
    """The median, and in brackets the least and the greatest of several."""
    middle = f"{float(np.median(values)):.1f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.1f} to {max(values):.1f})"


def _ratio(speedup: Speedup) -> str:
    """A speed-up with its spread, marked if it is an error of measurement."""
    middle = speedup.text("")
    return middle if len(speedup.ratios) == 1 else f"{middle} ({speedup.low:.2f} to {speedup.high:.2f})"
