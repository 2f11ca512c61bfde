"""What was measured of a target and a draft: the paper's Tables 2 to 5 for the user's own pair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.analysis.experiment import EQUALS_PLAIN, ExperimentRow
from specdec.tables import Table, Tabular, interval, marked, or_dash, tables_by_position

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Independence:
    """Whether betas are independent and alike, as equation (1) and all that follows from it assume.

    Attributes
    ----------
    temperature : float
    n_tokens : int
        Positions that were looked at.
    autocorrelation : tuple of float
        Of beta with itself 1, 2, ... positions before, in the same text. NaN where all betas are the same.
    band : float
        Without any correlation 95 % of these are between -band and band: 1.96 / sqrt(n_tokens).
    statistic, p_value : float
        Ljung and Box's test on these lags: a small p value speaks against independence.
    by_position : tuple of float
        Chance that the first, second, ... draft of a round is accepted if those before it were. Each is
        alpha if betas are independent and alike.
    """

    temperature: float
    n_tokens: int
    autocorrelation: tuple[float, ...]
    band: float
    statistic: float
    p_value: float
    by_position: tuple[float, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Tabular):
    """What `specdec.measure` found; ``print`` shows its tables, a notebook too.

    Attributes
    ----------
    target, draft : str
        Names.
    rows : tuple of ExperimentRow
        By temperature, then lenience, then gamma, in the order asked for.
    verify_ratio : dict of int to float
        t(M) / t(1) of the target by the number M of positions; empty without timing.
    target_s, draft_s : float
        Median seconds of a run of the target on one position, and of the draft's for a token in rounds of a
        few. NaN without timing; draft_s 0 for a draft that the core does not run, and NaN for one that was
        measured by running, of which each row has a c of its own.
    independence : dict of float to Independence
        By temperature; empty, as are the three below, for a draft that was measured by running: other guesses
        are made for a position by rounds that begin elsewhere.
    betas : dict of float to list of ndarray of float64, [n_tokens]
        By temperature: for each prompt, sum(min(target, draft)) (Theorem 3.5) at every position that the
        target generated, in order; at temperature 0 each is 0 or 1. Without lenience.
    tokens : dict of float to list of list of int
        By temperature: for each prompt, the token ids that the target generated.
    text : dict of float to list of list of str, or None
        The same as text, a piece for each token; the pieces of a prompt add up to its text. A token that ends
        within a character has an empty piece. None if the target has no tokenizer.
    prompts : list of list of int
        Token ids of the prompts; of an encoder-decoder those of the sources.
    seed : int
        Prompt i was continued with the key (seed, i).
    n_threads : int
    stopped : str
        Why the measuring ended early, so that rows or times are missing; empty if it did not.
    """

    target: str
    draft: str
    rows: tuple[ExperimentRow, ...]
    verify_ratio: dict[int, float]
    target_s: float
    draft_s: float
    independence: dict[float, Independence]
    betas: dict[float, list[Array]]
    tokens: dict[float, list[list[int]]]
    text: dict[float, list[list[str]]] | None
    prompts: list[list[int]]
    seed: int
    n_threads: int
    stopped: str = ""

    def tables(self) -> list[Table]:
        """The paper's Tables 2 to 5, times of verification, the test of independence, where there are."""
        found = [*tables(self.rows, self.target), *_running_tables(self.rows)]
        if self.verify_ratio:
            ratios = [f"{ratio:.2f}" for ratio in self.verify_ratio.values()]
            head = ("positions M", *map(str, self.verify_ratio))
            title = f"Time of the target for M positions (t(1) = {1e3 * self.target_s:.3f} ms)"
            found.append(Table(title, head, [("t(M) / t(1)", *ratios)]))
        if self.independence:
            found.append(_independence_table(list(self.independence.values()), self.draft))
        if self.stopped:
            found.append(Table("Measuring ended early", ("because",), [(self.stopped,)]))
        return found

    def __repr__(self) -> str:
        firsts = _first_of_each(self.rows)
        figure = "alpha" if self.independence else f"tokens a run with gamma {firsts[0].gamma}"
        values = ", ".join(
            f"{row.tokens_per_call if row.by_running else row.alpha:.3f} at temperature {row.temperature:g}"
            for row in firsts
        )
        return f"<specdec.Measurement of {self.draft!r} drafting for {self.target!r}: {figure} {values}>"


def tables(rows: Sequence[ExperimentRow], target: str) -> list[Table]:
    """Make the paper's Tables 2 to 5 of these rows, which may be of several drafts.

    Parameters
    ----------
    rows : sequence of ExperimentRow
    target : str
        Name of the target.
    """
    exact = [row for row in rows if row.lenience == 1.0]
    ran = [row for row in exact if row.speedup is not None]
    by_distribution = [row for row in rows if not row.by_running]
    predicted = [row for row in by_distribution if row.lenience == 1.0]
    found = [_speedup_table(ran, target)] if ran else []
    body: list[tuple[str, ...]]
    if predicted:
        title = f"Table 3: acceptance rates of drafts for {target} (Corollary 3.6)"
        body = [
            (
                row.draft, f"T={row.temperature:g}", or_dash(row.alpha, ".3f"),
                interval(row.alpha_low, row.alpha_high), f"{row.n_tokens}",
            )
            for row in _first_of_each(predicted)
        ]  # fmt: skip
        found.append(Table(title, ("draft", "sampling", "alpha", "95 % interval", "tokens"), body))
    if any(row.predicted_speedup is not None for row in predicted):
        title = "Table 4: speed-up predicted with t(γ+1)/t(1), measured (min to max), ideal (Theorem 3.8)"
        head = ("draft", "temp", "gamma", "alpha", "c", "t(γ+1)/t(1)", "predicted", "measured", "ideal")
        body = [
            (
                row.draft, f"{row.temperature:g}", f"{row.gamma}", or_dash(row.alpha, ".2f"),
                or_dash(row.c, ".3f"), or_dash(row.verify_ratio, ".2f"),
                marked(or_dash(row.predicted_speedup, ".2f"), row.invalid_prediction), _measured(row),
                or_dash(row.ideal_speedup, ".2f"),
            )
            for row in predicted
        ]  # fmt: skip
        found.append(Table(title, head, body))
    if len({row.lenience for row in by_distribution}) > 1:
        found.append(_lenience_table(by_distribution))
    return found


def _speedup_table(ran: Sequence[ExperimentRow], target: str) -> Table:
    """Make Table 2; the fastest valid row of each draft and temperature has a star, if it pays."""
    fastest: dict[Any, ExperimentRow] = {}
    for row in ran:
        if not row.invalid and row.timed.median > 1.0:  # else plain decoding is the fastest
            best = fastest.setdefault(_setting(row), row)
            if row.timed.median > best.timed.median:
                fastest[_setting(row)] = row
    body = [
        (
            row.draft, f"{row.temperature:g}", f"{row.gamma}{' ★' if row in fastest.values() else '  '}",
            or_dash(row.alpha, ".2f"), _measured(row, "X"),
        )
        for row in ran
    ]  # fmt: skip
    title = f"Table 2: measured speed-up of {target} (★ the fastest that beats plain decoding)"
    return Table(title, ("draft", "temp", "gamma", "alpha", "speed-up (min to max)"), body)


def _running_tables(rows: Sequence[ExperimentRow]) -> list[Table]:
    """What rows that were measured by running have: counts, costs, acceptance by position; [] without any."""
    ran = [row for row in rows if row.by_running]
    if not ran:
        return []
    setting = [(row.draft, f"{row.temperature:g}", f"{row.lenience:g}", f"{row.gamma}") for row in ran]
    head = ("draft", "temp", "lenience", "gamma")
    named = any(row.named_share is not None for row in ran)
    title = "Measured by running (intervals: 95 %; c and t(round) in runs of the target for one token"
    title += "; named: share of the draft's law that the target can name)" if named else ")"
    names = ("tokens", "tokens/run", "interval", "alpha", "interval", *["named"] * named, "c", "t(round)")
    body = [
        (
            *one, f"{row.n_tokens}", or_dash(row.tokens_per_call, ".2f"),
            interval(row.tokens_low, row.tokens_high, ".2f"), or_dash(row.alpha, ".3f"),
            interval(row.alpha_low, row.alpha_high), *[or_dash(row.named_share, ".3f")] * named,
            or_dash(row.c, ".3f"), or_dash(row.verify_ratio, ".2f"),
        )
        for one, row in zip(setting, ran, strict=True)
    ]  # fmt: skip
    positions = [(*one, row.by_position) for one, row in zip(setting, ran, strict=True)]
    found = [Table(title, (*head, *names), body), *position_tables(head, positions)]
    return [*found, *reason_tables((row.draft, row.reason) for row in ran)]


def reason_tables(reasons: Iterable[tuple[str, str]]) -> list[Table]:
    """Why figures are missing, each reason once; [] where none is. Pairs of a draft and a reason or ""."""
    rows = list(dict.fromkeys((draft, reason) for draft, reason in reasons if reason))
    return [Table("Figures that are missing (–)", ("draft", "because"), rows)] if rows else []


def position_tables(head: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> list[Table]:
    """Share of rounds that accepted each of their drafts; [] where nothing was drafted.

    `rows` end with these shares, and `head` names what is before them.
    """
    title = "Share of rounds that accepted their first, second, ... guess, of those that drafted so far"
    return tables_by_position(title, head, rows, ".2f")


def _measured(row: ExperimentRow, unit: str = "") -> str:
    """The measured speed-up and its spread for a table; empty where there is none."""
    if row.speedup is None:
        return ""
    return EQUALS_PLAIN if row.is_plain else f"{row.speedup.text(unit)} ({row.speedup.interval})"


def _lenience_table(rows: Sequence[ExperimentRow]) -> Table:
    leniences = list(dict.fromkeys(row.lenience for row in rows))
    body = []
    for first in _first_of_each(rows):
        cells = [first.draft, f"T={first.temperature:g}"]
        for lenience in leniences:
            alike = [row for row in rows if _setting(row) == _setting(first) and row.lenience == lenience]
            cell = or_dash(alike[0].alpha, ".2f") if alike else ""
            timed = [row for row in alike if row.predicted_speedup is not None]
            if timed:
                best = max(timed, key=lambda row: row.predicted_speedup or 0.0)
                promised = best.predicted_speedup or 0.0
                # Plain decoding is a choice too.
                predicted = marked(f"{promised:.2f}X", best.invalid_prediction)
                cell += f" ({predicted}, γ {best.gamma}" if promised > 1.0 else " (1X, γ 0"
                cell += ")" if best.speedup is None else f"; measured {_measured(best, 'X')})"
            cells.append(cell)
        body.append(tuple(cells))
    title = "Table 5: alpha by lenience l"
    if any(row.predicted_speedup is not None for row in rows):
        title += " (in brackets the predicted speed-up at its best gamma)"
    return Table(title, ("draft", "sampling", *(f"l = {lenience:g}" for lenience in leniences)), body)


def _independence_table(found: Sequence[Independence], draft: str) -> Table:
    n_lags = max(len(one.autocorrelation) for one in found)
    body: list[tuple[str, ...]] = []

    def line(name: str, cells: Iterable[str]) -> None:
        body.append((name, *cells))

    for lag in range(min(3, n_lags)):
        line(f"correlation with lag {lag + 1}", (or_dash(one.autocorrelation[lag], "+.3f") for one in found))
    line("95 % band of none", (f"±{one.band:.3f}" for one in found))
    line(f"Ljung-Box, {n_lags} lags", (or_dash(one.statistic, ".1f") for one in found))
    line("p value", ("< 1e-300" if one.p_value == 0.0 else or_dash(one.p_value, ".2g") for one in found))
    for position in range(max(len(one.by_position) for one in found)):
        shares = [one.by_position[position] for one in found]
        cells = ["" if math.isnan(share) else f"{share:.3f}" for share in shares]  # no round got so far
        line(f"draft {position + 1} accepted", cells)
    head = ("are betas independent?", *(f"T={one.temperature:g}" for one in found))
    return Table(f"Independence of acceptances of {draft} (section 3.1)", head, body)


def _setting(row: ExperimentRow) -> tuple[str, float]:
    return row.draft, row.temperature


def _first_of_each(rows: Sequence[ExperimentRow]) -> list[ExperimentRow]:
    """The first row of each draft and temperature."""
    firsts: dict[Any, ExperimentRow] = {}
    for row in rows:
        firsts.setdefault(_setting(row), row)
    return list(firsts.values())
