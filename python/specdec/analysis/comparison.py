"""What was found of several drafts for one target: tables, by position, by prompt, by temperature."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, fields
from typing import Any

from specdec.analysis.measurement import position_tables, reason_tables
from specdec.analysis.running import EQUALS_PLAIN
from specdec.analysis.speedup import NOT_RUN, RoundCosts, Speedup
from specdec.tables import Table, Tabular, data_frame, interval, or_dash, plain

__all__ = ["Comparison", "ComparisonRow", "PromptRow"]


@dataclass(frozen=True)
class PromptRow:
    """What one prompt gave with one draft.

    Attributes
    ----------
    prompt : int
        Its index.
    n_tokens : int
        New tokens that were counted.
    tokens_per_call : float
        New tokens per run of the target.
    alpha : float or None
        As of `ComparisonRow`.
    speedup : Speedup or None
        As of `ComparisonRow`.
    """

    prompt: int
    n_tokens: int
    tokens_per_call: float
    alpha: float | None
    speedup: Speedup | None


@dataclass(frozen=True)
class ComparisonRow:
    """One draft at one temperature with one gamma, as it ran.

    Attributes
    ----------
    draft : str
        Its name.
    temperature : float
    gamma : int
        Guesses of a round at most.
    n_tokens, n_calls : int
        New tokens and runs of the target that were counted: of all turns, in greedy decoding of one, as the
        others give the same text.
    tokens_per_call, tokens_low, tokens_high : float
        New tokens per run of the target, and its 95 % confidence interval.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate at the positions that were verified (Corollary 3.6), and its 95 % confidence
        interval. None where a position had several guesses or nothing was drafted, see `reason`.
    drafted_per_call : float
        Guesses per run of the target.
    draft_acceptance_rate : float or None
        Accepted over drafted tokens, those behind a refused one included. None if nothing was drafted.
    by_position : tuple of float
        Of the rounds that drafted so far: share that accepted the first, second, ... guess of a path.
    prompts : tuple of PromptRow
        The same for each prompt.
    c : float or None
        Cost coefficient (Definition 3.7): seconds of drafting for a guess over those of a plain run of the
        target. None without timing, and if nothing was drafted.
    draft_ratio, verify_ratio : float or None
        Seconds of a round spent drafting, and in the target, over those of a plain run of the target. None
        without timing.
    tokens_per_s : tuple of float
        New tokens per second in each turn; empty without timing.
    speedup : Speedup or None
        Time of plain decoding over that with the draft for a new token, a ratio for each turn: its median,
        low, high, and why it is invalid. None without timing.
    reason : str
        Why figures are None; empty if none is.
    named_share : float or None
        Of a draft with another vocabulary than the target's, the mean share of its law that the target can
        name, over its guesses by the intersection. None of other drafts, and where it guessed through text.
    """

    draft: str
    temperature: float
    gamma: int
    n_tokens: int
    n_calls: int
    tokens_per_call: float
    tokens_low: float
    tokens_high: float
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    drafted_per_call: float
    draft_acceptance_rate: float | None
    by_position: tuple[float, ...]
    prompts: tuple[PromptRow, ...]
    c: float | None = None
    draft_ratio: float | None = None
    verify_ratio: float | None = None
    tokens_per_s: tuple[float, ...] = ()
    speedup: Speedup | None = None
    reason: str = ""
    named_share: float | None = None

    @property
    def invalid(self) -> str:
        """Why the speed-up is an error of measuring; empty if it is not, or there is none."""
        return "" if self.speedup is None else self.speedup.invalid

    @property
    def costs(self) -> RoundCosts | None:
        """What rounds cost, in plain runs of the target; None without timing."""
        if self.draft_ratio is None or self.verify_ratio is None:
            return None
        return RoundCosts(math.nan if self.c is None else self.c, self.draft_ratio, self.verify_ratio)

    def to_dict(self) -> dict[str, Any]:
        """The row as plain lists and numbers, ready for JSON; None where there is no number."""
        found: dict[str, Any] = plain(self)
        found["speedup"] = _speedup_dict(self.speedup)
        for entry, row in zip(found["prompts"], self.prompts, strict=True):
            entry["speedup"] = _speedup_dict(row.speedup)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """What `specdec.compare` found; ``print`` shows its tables, a notebook too.

    Attributes
    ----------
    target : str
        Its name.
    rows : tuple of ComparisonRow
        By temperature, then draft, then gamma.
    plain_tokens_per_s : dict of float to tuple of float
        By temperature: new tokens per second of plain decoding in each turn; empty without timing.
    prompts : list of list of int
        Token ids of the prompts; of an encoder-decoder those of the sources.
    labels : tuple of str
        How each prompt begins, as text; its token ids without a tokenizer.
    settings : dict of str to object
        What was asked for: n_tokens, repeats, verify, top_k, top_p, min_p, seed, n_threads.
    """

    target: str
    rows: tuple[ComparisonRow, ...]
    plain_tokens_per_s: dict[float, tuple[float, ...]]
    prompts: list[list[int]]
    labels: tuple[str, ...]
    settings: dict[str, Any]

    def __getitem__(self, draft: str) -> list[ComparisonRow]:
        """The rows of a draft.

        Raises
        ------
        KeyError
        """
        found = [row for row in self.rows if row.draft == draft]
        if not found:
            raise KeyError(draft)
        return found

    @property
    def drafts(self) -> tuple[str, ...]:
        """Their names, in the order in which they were given."""
        return tuple(dict.fromkeys(row.draft for row in self.rows))

    @property
    def temperatures(self) -> tuple[float, ...]:
        """In the order in which they were given."""
        return tuple(dict.fromkeys(row.temperature for row in self.rows))

    def best(self, temperature: float) -> ComparisonRow | None:
        """The fastest row at a temperature whose speed-up is not invalid; None: plain decoding is."""
        faster = [
            row
            for row in self.rows
            if row.temperature == temperature
            and row.speedup is not None
            and not row.speedup.invalid
            and row.speedup.median > 1.0
            and row.drafted_per_call
        ]
        return max(faster, key=_median, default=None)

    def tables(self) -> list[Table]:
        """All drafts in one table; acceptance by position; by prompt; why figures are missing."""
        positions = [(*_setting(row), row.by_position) for row in self.rows]
        found = [self.summary(), *position_tables(_HEAD, positions)]
        if len(self.prompts) > 1:
            found.append(self._by_prompt())
        return [*found, *reason_tables((row.draft, row.reason) for row in self.rows)]

    def summary(self) -> Table:
        """All drafts in one table, with plain decoding."""
        timed = bool(self.plain_tokens_per_s)
        head: tuple[str, ...] = (*_HEAD, "alpha", "95 %", "tokens/run", "95 %")
        named = any(row.named_share is not None for row in self.rows)
        if named:
            head += ("named",)
        if timed:
            head += ("c", "t(round)/t(1)", "tokens/s", "speed-up", "min to max")
        body: list[tuple[str, ...]] = []
        for temperature in self.temperatures:
            best = self.best(temperature)
            if timed:
                rate = f"{statistics.median(self.plain_tokens_per_s[temperature]):.1f}"
                counts = ("plain decoding", f"{temperature:g}", "0  ", "–", "", "1.00", "")
                body.append((*counts, *["–"] * named, "–", "1.00", rate, "1.00X", ""))
            for row in self.rows:
                if row.temperature == temperature:
                    body.append(_cells(row, " ★" if row is best else "  ", named))
        notes = "; ★ the fastest that beats plain decoding" if timed else ""
        notes += "; named: share of a draft's law that the target can name" if named else ""
        kept_longest = ("min to max", "tokens/s", "named", "c", "t(round)/t(1)")
        optional = [head.index(name) for name in kept_longest if name in head]
        optional += [i for i, name in enumerate(head) if name == "95 %"]
        return Table(f"Drafts for {self.target}{notes}", head, body, tuple(optional))

    def _by_prompt(self) -> Table:
        numbers = tuple(str(i) for i in range(len(self.prompts)))
        body = []
        for row in self.rows:
            cells = [f"{one.tokens_per_call:.2f}{_speed(one)}" for one in row.prompts]
            body.append((*_setting(row), *cells, *["–"] * (len(numbers) - len(cells))))
        shown = "\n".join(f"{i}: {label}" for i, label in enumerate(self.labels))
        timed = " (measured speed-up)" if self.plain_tokens_per_s else ""
        return Table(f"Tokens per run{timed} by prompt\n{shown}", (*_HEAD, *numbers), body)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON; None where there is no number."""
        return {
            "target": self.target,
            "rows": [row.to_dict() for row in self.rows],
            "plain": [
                {"temperature": temperature, "tokens_per_s": list(rates)}
                for temperature, rates in self.plain_tokens_per_s.items()
            ],
            "prompts": self.prompts,
            "labels": list(self.labels),
            "settings": self.settings,
        }

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with its rows; NaN where there is no number.

        Columns are the fields of `ComparisonRow` that are one number or text, and of the speed-up
        ``speedup``, ``speedup_low``, ``speedup_high`` and ``speedup_invalid``.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        skipped = ("by_position", "prompts", "tokens_per_s", "speedup")
        names = [field.name for field in fields(ComparisonRow) if field.name not in skipped]
        lines = []
        for row in self.rows:
            line = {name: getattr(row, name) for name in names}
            line |= {name: math.nan for name, value in line.items() if value is None}
            speedup = row.speedup or NOT_RUN
            rates = row.tokens_per_s or (math.nan,)
            lines.append(line | {"tokens_per_s": statistics.median(rates)} | speedup.columns("speedup"))
        return data_frame(lines)

    def __repr__(self) -> str:
        drafts = ", ".join(map(repr, self.drafts))
        return f"<specdec.Comparison of {drafts} drafting for {self.target!r}: {len(self.rows)} rows>"


_HEAD = ("draft", "temp", "gamma")


def _cells(row: ComparisonRow, star: str, named: bool) -> tuple[str, ...]:
    name, temperature, gamma = _setting(row)
    counts = (
        name,
        temperature,
        gamma + star,
        or_dash(row.alpha, ".3f"),
        interval(row.alpha_low, row.alpha_high),
        f"{row.tokens_per_call:.2f}",
        interval(row.tokens_low, row.tokens_high, ".2f"),
        *[or_dash(row.named_share, ".3f")] * named,
    )
    if row.speedup is None:
        return counts
    return (
        *counts,
        or_dash(row.c, ".3f"),
        or_dash(row.verify_ratio, ".2f"),
        f"{statistics.median(row.tokens_per_s):.1f}",
        EQUALS_PLAIN if not row.drafted_per_call else row.speedup.text(),
        f"{row.speedup.low:.2f} to {row.speedup.high:.2f}",
    )


def _setting(row: ComparisonRow) -> tuple[str, str, str]:
    return row.draft, f"{row.temperature:g}", f"{row.gamma}"


def _median(row: ComparisonRow) -> float:
    return math.nan if row.speedup is None else row.speedup.median


def _speed(row: PromptRow) -> str:
    return "" if row.speedup is None else f" ({row.speedup.text()})"


def _speedup_dict(speedup: Speedup | None) -> dict[str, Any] | None:
    if speedup is None:
        return None
    return {
        "median": speedup.median, "low": speedup.low, "high": speedup.high, "invalid": speedup.invalid,
        "ratios": list(speedup.ratios), "tokens_per_run": list(speedup.tokens_per_run),
    }  # fmt: skip
