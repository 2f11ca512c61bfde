"""What a benchmark found: figures by category, and the tables that show them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from specdec.analysis.answers import Answer, Reply
from specdec.analysis.questions import Question
from specdec.analysis.speedup import NOT_RUN, Speedup
from specdec.analysis.statistics import mean_interval
from specdec.draft_counts import DraftCounts
from specdec.tables import Table, Tabular, data_frame, interval, or_dash, tables_by_position

__all__ = ["Bench", "BenchRow", "bench_rows"]

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
        trees the share of positions at which one of several guesses was accepted (`Round.betas`). NaN where
        nothing was drafted.
    mean_acceptance_length : float
        New tokens of a run of the target that verified a draft, its own token included, as vLLM names it. A
        draft that was accepted behind the end of a text does not count.
    draft_acceptance_rate : float
        Accepted over drafted tokens, as vLLM names it.
    per_position_acceptance_rate : tuple of float
        Share of the runs with a draft that accepted its first, second, … token.
    tokens_per_call : float
        New tokens per run of the target, those without a draft included: the mean of Spec-Bench's
        ``accept_lengths``.
    tokens_per_s, plain_tokens_per_s : tuple of float
        New tokens over seconds of the whole calls, the reading of the prompts included, of each repetition.
        NaN for what was not run.
    speedup : Speedup
        tokens_per_s over plain_tokens_per_s.
    decode_speedup : Speedup
        The same of the rounds alone, without the reading of the prompts.
    question_speedup : Speedup
        As Spec-Bench counts it: the mean over questions of their tokens per second, over that of plain
        decoding. A question counts the same however long its answer is.
    n_equal : int
        Turns of all repetitions whose new tokens are those of plain decoding; at temperature 0 with the exact
        rule all are.
    n_compared : int
        Turns of all repetitions that both ways answered.
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

    Attributes
    ----------
    target, draft : str
        Names; "plain" where there is no draft.
    settings : dict
        What the answers were made with.
    rows : tuple of BenchRow
        A category each, in the order of the questions; then MT-Bench and all together, where that is more
        than one category.
    questions : tuple of Question
        That were answered.
    skipped : tuple of (int or str, str)
        Ids of questions that were not asked, or not to their last turn, and why.
    answers, plain_answers : tuple of tuple of Answer
        By repetition, then by question. The one or the other is empty where it was not run.
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
        """The row of a category.

        Raises
        ------
        KeyError
        """
        for row in self.rows:
            if row.category == category:
                return row
        raise KeyError(category)

    def to_dict(self) -> dict[str, Any]:
        """The rows and settings as plain dicts, lists and numbers, ready for JSON; not the answers."""
        left_out = ("questions", "answers", "plain_answers")
        return {name: value for name, value in super().to_dict().items() if name not in left_out}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with its rows.

        Columns are the fields of `BenchRow`, medians of the repetitions for ``tokens_per_s`` and
        ``plain_tokens_per_s``; of each speed-up NAME ``NAME``, ``NAME_low``, ``NAME_high`` and
        ``NAME_invalid``. Rates by position are left out.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        lines = []
        for row in self.rows:
            line: dict[str, Any] = {}
            for field in fields(row):
                value = getattr(row, field.name)
                if isinstance(value, Speedup):
                    line |= value.columns(field.name)
                elif not isinstance(value, tuple):
                    line[field.name] = value
            line["tokens_per_s"] = statistics.median(row.tokens_per_s)
            line["plain_tokens_per_s"] = statistics.median(row.plain_tokens_per_s)
            lines.append(line)
        return data_frame(lines)

    def tables(self) -> list[Table]:
        """Speed; then acceptance, and acceptance by position, where there was a draft."""
        found = [self._speed_table()]
        if self.answers:
            found.append(self._acceptance_table())
            found += self._position_tables()
        return found

    def _speed_table(self) -> Table:
        """Tokens per second and speed-ups."""
        title = f"{self.draft} drafting for {self.target}" if self.answers else f"{self.target} alone"
        title += f", gamma {self.settings['gamma']}" if self.answers else ""
        title += f", temperature {self.settings['temperature']:g}"
        n_equal, n_compared = self.rows[-1].n_equal, self.rows[-1].n_compared
        decides = not self.settings["temperature"] or self.settings["verify"] == "coupled"
        if decides and self.answers and self.plain_answers:  # else they are other samples
            title += f"; {n_equal} of {n_compared} answers equal those of plain decoding"
        if self.skipped:
            title += f"; not asked, or not to the end: {len(self.skipped)} questions"
        head = ["", "questions", "tokens"]
        if self.plain_answers:
            head += ["plain tokens/s"]
        if self.answers:
            head += ["tokens/s"]
        if self.answers and self.plain_answers:
            head += ["speed-up (min to max)", "without prompts"]
        rows = []
        for row in self.rows:
            cells = [row.category, f"{row.n_questions}", f"{row.n_tokens}"]
            if self.plain_answers:
                cells += [_spread(row.plain_tokens_per_s)]
            if self.answers:
                cells += [_spread(row.tokens_per_s)]
            if self.answers and self.plain_answers:
                cells += [_ratio(row.speedup), _ratio(row.decode_speedup)]
            rows.append(tuple(cells))
        return Table(title, tuple(head), rows)

    def _acceptance_table(self) -> Table:
        """Alpha, and what vLLM counts."""
        head = (
            "", "alpha", "95 % interval", "mean acceptance length", "draft acceptance rate", "tokens/run",
        )  # fmt: skip
        rows = []
        for row in self.rows:
            rows.append(
                (
                    row.category, or_dash(row.alpha, ".3f"), interval(row.alpha_low, row.alpha_high),
                    or_dash(row.mean_acceptance_length, ".2f"), or_dash(row.draft_acceptance_rate, ".3f"),
                    or_dash(row.tokens_per_call, ".2f"),
                )
            )  # fmt: skip
        return Table("Acceptance", head, rows)

    def _position_tables(self) -> list[Table]:
        """Shares of the runs that verified a draft, by position of the draft."""
        title = "Share of the runs with a draft that accepted its first, second, … token"
        rows = [(row.category, row.per_position_acceptance_rate) for row in self.rows]
        return tables_by_position(title, ("position",), rows, ".3f")

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
    """Count answers by category.

    Parameters
    ----------
    questions : sequence of Question
    answers, plain : sequence of sequence of Answer
        By repetition, then by question; empty for what was not run.
    sampled : bool
        Whether repetitions are different samples, and not the same texts again.
    """
    categories = list(dict.fromkeys(question.category for question in questions))
    groups = {
        category: [i for i, question in enumerate(questions) if question.category == category]
        for category in categories
    }
    if set(MT_BENCH_CATEGORIES) <= set(categories) and MT_BENCH not in categories:
        groups[MT_BENCH] = [i for i, one in enumerate(questions) if one.category in MT_BENCH_CATEGORIES]
    if len(categories) > 1:
        groups[OVERALL] = list(range(len(questions)))
    return tuple(
        _row(
            category,
            [[run[i] for i in indices] for run in answers],
            [[run[i] for i in indices] for run in plain],
            sampled,
        )
        for category, indices in groups.items()
    )


def _row(category: str, answers: list[list[Answer]], plain: list[list[Answer]], sampled: bool) -> BenchRow:
    main = answers or plain
    replies = [[reply for answer in run for reply in answer.replies] for run in answers]
    betas = [
        np.minimum([beta for step in reply.steps for beta in step.betas], 1.0)
        for run in (replies if sampled else replies[:1])  # repetitions of one text say nothing more
        for reply in run
    ]
    n_betas = sum(map(len, betas))
    counts = DraftCounts.of(step for run in replies for reply in run for step in reply.steps)
    alpha, low, high = math.nan, math.nan, math.nan
    if n_betas:
        alpha = math.fsum(float(text.sum()) for text in betas) / n_betas
        low, high = mean_interval(betas)
    n_equal, n_compared = _equal(answers, plain)
    bounds = [_tokens_per_run(run) for run in answers]
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
        tokens_per_call=_tokens_per_run([answer for run in main for answer in run]),
        tokens_per_s=_speeds(answers),
        plain_tokens_per_s=_speeds(plain),
        speedup=_speedup(_speeds(answers), _speeds(plain), bounds),
        decode_speedup=_speedup(_decode_speeds(answers), _decode_speeds(plain), bounds),
        question_speedup=_speedup(
            _question_speeds(answers), _question_speeds(plain), list(map(_question_bound, answers, plain))
        ),
        n_equal=n_equal,
        n_compared=n_compared,
    )


def _speeds(runs: Sequence[Sequence[Answer]]) -> tuple[float, ...]:
    """New tokens over seconds, of each repetition."""
    return tuple(_per_s(sum(a.n_tokens for a in run), math.fsum(a.wall_s for a in run)) for run in runs)


def _decode_speeds(runs: Sequence[Sequence[Answer]]) -> tuple[float, ...]:
    """The same of the rounds alone."""
    return tuple(_per_s(sum(a.n_tokens for a in run), math.fsum(a.rounds_s for a in run)) for run in runs)


def _question_speeds(runs: Sequence[Sequence[Answer]]) -> tuple[float, ...]:
    """The mean over questions of new tokens over seconds."""
    return tuple(math.fsum(_per_s(a.n_tokens, a.wall_s) for a in run) / len(run) for run in runs)


def _per_s(n_tokens: int, seconds: float) -> float:
    return n_tokens / seconds if seconds else math.nan


def _speedup(ours: Sequence[float], plain: Sequence[float], bounds: Sequence[float]) -> Speedup:
    """Speeds over those of plain decoding, each repetition over its own; `bounds` are tokens per run."""
    if not ours or not plain:
        return NOT_RUN
    return Speedup(
        ratios=tuple(one / other if other else math.nan for one, other in zip(ours, plain, strict=True)),
        tokens_per_run=tuple(bounds),
    )


def _tokens_per_run(answers: Sequence[Answer]) -> float:
    """New tokens per run of the target."""
    return DraftCounts.of(
        step for answer in answers for reply in answer.replies for step in reply.steps
    ).tokens_per_call


def _question_bound(answers: Sequence[Answer], plain: Sequence[Answer]) -> float:
    """What bounds the ratio of two means of speeds: tokens per run, questions weighted by their speed."""
    weights = [_per_s(one.n_tokens, one.wall_s) for one in plain]
    bounds = [_tokens_per_run([one]) for one in answers]
    products = math.fsum(weight * bound for weight, bound in zip(weights, bounds, strict=True))
    return products / total if (total := math.fsum(weights)) else math.nan


def _equal(answers: Sequence[Sequence[Answer]], plain: Sequence[Sequence[Answer]]) -> tuple[int, int]:
    """(turns with the tokens of plain decoding, turns that both answered)."""
    if not answers or not plain:
        return 0, 0
    pairs: list[tuple[Reply, Reply]] = []
    for run, plain_run in zip(answers, plain, strict=True):
        both = zip(run, plain_run, strict=True)
        pairs += itertools.chain.from_iterable(zip(a.replies, b.replies, strict=False) for a, b in both)
    return sum(ours.tokens == theirs.tokens for ours, theirs in pairs), len(pairs)


def _spread(values: Sequence[float]) -> str:
    """The median, and in brackets the least and the greatest of several."""
    middle = f"{float(np.median(values)):.1f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.1f} to {max(values):.1f})"


def _ratio(speedup: Speedup) -> str:
    """A speed-up with its spread, marked if it is an error of measurement."""
    middle = speedup.text("")
    return middle if len(speedup.ratios) == 1 else f"{middle} ({speedup.low:.2f} to {speedup.high:.2f})"
