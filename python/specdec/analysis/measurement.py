"""What was measured of a target and a draft: the paper's Tables 2 to 5 for the user's own pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.analysis.running import EQUALS_PLAIN, NOTHING_DRAFTED
from specdec.tables import Table, Tabular, interval, marked, or_dash, plain, tables_by_position
from specdec.trace import invalid_ratio

__all__ = [
    "Independence",
    "Measurement",
    "MeasurementRow",
    "position_tables",
    "reason_tables",
    "running_tables",
    "tables",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MeasurementRow:
    """One line: a temperature, a lenience, a gamma.

    Attributes
    ----------
    draft : str
        Name of the draft.
    temperature : float
    lenience : float
        l of appendix A.5; 1 is the exact rule.
    gamma : int
        Drafted tokens a round.
    n_tokens : int
        Positions that alpha is the mean of; of a draft that was measured by running the tokens of its runs.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate (Corollary 3.6; A.5 with lenience), and its 95 % confidence interval. Of a draft
        that was measured by running, the mean over the positions that its runs verified; None where a
        position had several guesses, as in trees, or nothing was drafted.
    c : float
        Cost coefficient (Definition 3.7): time of one run of the draft over that of one run of the target. 0
        for a draft that the core does not run (section 3.6: negligible cost), NaN without timing. Of a draft
        that was measured by running, the time of drafting for each guess.
    t_ratio : float
        t(gamma + 1) / t(1), the target's time for gamma + 1 positions over that for one. NaN without timing.
        Of a draft that was measured by running, the mean time of the target's runs in its rounds over t(1).
    ideal_speedup : float or None
        Speed-up by Theorem 3.8, which takes t_ratio as 1. None for a draft that was measured by running.
    predicted_speedup : float or None
        Speed-up by the same with the measured t_ratio, or 1 if that is less: what to choose gamma by. It may
        come from an error of measurement, see `invalid_prediction`. None for a draft that was measured by
        running.
    measured : float
        Speed-up found by running both, the median over all repetitions. NaN where that was not done: without
        timing, for a draft that the core does not run, and with lenience unless it was asked for.
    measured_low, measured_high : float
        The smallest and the largest speed-up of a repetition.
    tokens_per_call : float
        New tokens per run of the target in the timed runs, the mean of the repetitions. Of a draft that was
        measured by running those of the untimed runs.
    invalid : str
        Why `measured` is an error of measuring, as on a busy machine; empty if it is not. A run that verifies
        a round takes at least as long as one that computes a token, so a speed-up above the tokens per run,
        in the median repetition, is no result.
    by_running : bool
        Whether the draft has no distribution that could be held against every text, and was measured by
        running it.
    tokens_low, tokens_high : float
        95 % confidence interval of `tokens_per_call`; NaN unless `by_running`.
    by_position : tuple of float
        Of the rounds that drafted so far: share that accepted the first, second, ... guess of a path. Empty
        unless `by_running`; `Independence` has it for the others.
    reason : str
        Why figures are None; empty if none is.
    named_share : float or None
        Of a draft with another vocabulary than the target's, the mean share of its law that the target can
        name, over its guesses by the intersection. None of other drafts, and where it guessed through text.
    expected, law : float
        Earlier names of `ideal_speedup` and `predicted_speedup`.
    """

    draft: str
    temperature: float
    lenience: float
    gamma: int
    n_tokens: int
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    c: float
    t_ratio: float
    ideal_speedup: float | None
    predicted_speedup: float | None
    measured: float
    measured_low: float = math.nan
    measured_high: float = math.nan
    tokens_per_call: float = math.nan
    invalid: str = ""
    by_running: bool = False
    tokens_low: float = math.nan
    tokens_high: float = math.nan
    by_position: tuple[float, ...] = ()
    reason: str = ""
    named_share: float | None = None

    @property
    def rates(self) -> tuple[float, float, float]:
        """(alpha, low, high); NaN where there is none."""
        rates = [math.nan if rate is None else rate for rate in (self.alpha, self.alpha_low, self.alpha_high)]
        return rates[0], rates[1], rates[2]

    @property
    def prediction(self) -> float:
        """`predicted_speedup`, NaN where there is none."""
        return math.nan if self.predicted_speedup is None else self.predicted_speedup

    @property
    def invalid_prediction(self) -> str:
        """Why `predicted_speedup` comes from an error of measurement; empty if it does not.

        `t_ratio` is then below 1, though a forward pass on several positions takes at least as long as on
        one. The prediction counts it as 1, so that it is never above `ideal_speedup`.
        """
        return "" if self.alpha is None or self.by_running else invalid_ratio(self.gamma, self.t_ratio)

    @property
    def expected(self) -> float | None:
        """Earlier name of `ideal_speedup`."""
        return self.ideal_speedup

    @property
    def law(self) -> float | None:
        """Earlier name of `predicted_speedup`."""
        return self.predicted_speedup


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
    rows : tuple of MeasurementRow
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
    rows: tuple[MeasurementRow, ...]
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

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON: a number that is NaN is None."""
        texts = [
            {
                "temperature": temperature,
                "betas": plain(betas),
                "tokens": self.tokens[temperature],
                "text": None if self.text is None else self.text[temperature],
            }
            for temperature, betas in self.betas.items()
        ]
        ratios = [{"n_positions": m, "ratio": ratio} for m, ratio in self.verify_ratio.items()]
        found = super().to_dict() | {
            "verify_ratio": plain(ratios), "independence": plain([*self.independence.values()]),
            "texts": texts,
        }  # fmt: skip
        return {name: value for name, value in found.items() if name not in ("betas", "tokens", "text")}

    def tables(self) -> list[Table]:
        """The paper's Tables 2 to 5, the law of verification, the test of independence, where there are."""
        found = [*tables(self.rows, self.target), *running_tables(self.rows)]
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
        firsts = _first_of_each(self.rows, _setting)
        figure = "alpha" if self.independence else f"tokens a run with gamma {firsts[0].gamma}"
        values = ", ".join(
            f"{row.tokens_per_call if row.by_running else row.rates[0]:.3f} at temperature "
            f"{row.temperature:g}"
            for row in firsts
        )
        return f"<specdec.Measurement of {self.draft!r} drafting for {self.target!r}: {figure} {values}>"


def tables(rows: Sequence[MeasurementRow], target: str) -> list[Table]:
    """The paper's Tables 2 to 5 of these rows, which may be of several drafts; those there is something for.

    Parameters
    ----------
    rows : sequence of MeasurementRow
    target : str
        Name of the target.
    """
    exact = [row for row in rows if row.lenience == 1.0]
    with_law = [row for row in exact if not row.by_running]
    found = []
    ran = [row for row in exact if not math.isnan(row.measured)]
    if ran:
        possible = [row for row in ran if not row.invalid]
        best = {
            max((r for r in possible if _setting(r) == _setting(row)), key=lambda r: r.measured)
            for row in possible
        }
        fastest = {row for row in best if row.measured > 1.0}  # else plain decoding is the fastest
        title = f"Table 2: measured speed-up of {target} (★ the fastest that beats plain decoding)"
        found.append(
            Table(
                title,
                ("draft", "temp", "gamma", "alpha", "speed-up (min to max)"),
                [
                    (
                        row.draft,
                        f"{row.temperature:g}",
                        f"{row.gamma}{' ★' if row in fastest else '  '}",
                        or_dash(row.alpha, ".2f"),
                        _measured(row, "X"),
                    )
                    for row in ran
                ],
            )
        )
    if with_law:
        found.append(
            Table(
                f"Table 3: acceptance rates of drafts for {target} (Corollary 3.6)",
                ("draft", "sampling", "alpha", "95 % interval", "tokens"),
                [
                    (
                        row.draft,
                        f"T={row.temperature:g}",
                        or_dash(row.alpha, ".3f"),
                        interval(row.alpha_low, row.alpha_high),
                        f"{row.n_tokens}",
                    )
                    for row in _first_of_each(with_law, _setting)
                ],
            )
        )
    if any(not math.isnan(row.prediction) for row in with_law):
        found.append(
            Table(
                "Table 4: speed-up predicted with t(γ+1)/t(1), measured (min to max), ideal (Theorem 3.8)",
                ("draft", "temp", "gamma", "alpha", "c", "t(γ+1)/t(1)", "predicted", "measured", "ideal"),
                [
                    (
                        row.draft,
                        f"{row.temperature:g}",
                        f"{row.gamma}",
                        or_dash(row.alpha, ".2f"),
                        f"{row.c:.3f}",
                        f"{row.t_ratio:.2f}",
                        marked(or_dash(row.predicted_speedup, ".2f"), row.invalid_prediction),
                        _measured(row),
                        or_dash(row.ideal_speedup, ".2f"),
                    )
                    for row in with_law
                ],
            )
        )
    if len({row.lenience for row in rows if not row.by_running}) > 1:
        found.append(_lenience_table([row for row in rows if not row.by_running]))
    return found


def running_tables(rows: Sequence[MeasurementRow]) -> list[Table]:
    """What rows that were measured by running have: counts, costs, acceptance by position; [] without any."""
    ran = [row for row in rows if row.by_running]
    if not ran:
        return []
    setting = [(row.draft, f"{row.temperature:g}", f"{row.lenience:g}", f"{row.gamma}") for row in ran]
    head = ("draft", "temp", "lenience", "gamma")
    named = any(row.named_share is not None for row in ran)
    title = "Measured by running (intervals: 95 %; c and t(round) in runs of the target for one token"
    title += "; named: share of the draft's law that the target can name)" if named else ")"
    counts = Table(
        title,
        (
            *head, "tokens", "tokens/run", "interval", "alpha", "interval", *["named"] * named, "c",
            "t(round)",
        ),
        [
            (
                *one, f"{row.n_tokens}", f"{row.tokens_per_call:.2f}",
                interval(row.tokens_low, row.tokens_high, ".2f"), or_dash(row.alpha, ".3f"),
                interval(row.alpha_low, row.alpha_high), *[or_dash(row.named_share, ".3f")] * named,
                or_dash(row.c, ".3f"), or_dash(row.t_ratio, ".2f"),
            )
            for one, row in zip(setting, ran, strict=True)
        ],
    )  # fmt: skip
    positions = [(*one, row.by_position) for one, row in zip(setting, ran, strict=True)]
    found = [counts, *position_tables(head, positions)]
    return [*found, *reason_tables((row.draft, row.reason) for row in ran)]


def reason_tables(reasons: Iterable[tuple[str, str]]) -> list[Table]:
    """Why figures are missing, each reason once; [] where none is. Pairs of a draft and a reason or ""."""
    rows = list(dict.fromkeys((draft, reason) for draft, reason in reasons if reason))
    return [Table("Figures that are missing (–)", ("draft", "because"), rows)] if rows else []


def position_tables(head: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> list[Table]:
    """Share of rounds that accepted each of their guesses; [] where nothing was drafted.

    `rows` end with these shares, and `head` names what is before them.
    """
    title = "Share of rounds that accepted their first, second, ... guess, of those that drafted so far"
    return tables_by_position(title, head, rows, ".2f")


def _measured(row: MeasurementRow, unit: str = "") -> str:
    """The measured speed-up and its spread for a table; empty where there is none."""
    if math.isnan(row.measured):
        return ""
    if row.by_running and NOTHING_DRAFTED in row.reason:
        return EQUALS_PLAIN
    return (
        f"{marked(f'{row.measured:.2f}{unit}', row.invalid)} "
        f"({row.measured_low:.2f} to {row.measured_high:.2f})"
    )


def _lenience_table(rows: Sequence[MeasurementRow]) -> Table:
    leniences = list(dict.fromkeys(row.lenience for row in rows))
    body = []
    for first in _first_of_each(rows, _setting):
        cells = [first.draft, f"T={first.temperature:g}"]
        for lenience in leniences:
            alike = [row for row in rows if _setting(row) == _setting(first) and row.lenience == lenience]
            timed = [row for row in alike if not math.isnan(row.prediction)]
            cell = or_dash(alike[0].alpha, ".2f") if alike else ""
            if timed:
                best = max(timed, key=lambda row: row.prediction)
                # Plain decoding is a choice too.
                predicted = marked(f"{best.prediction:.2f}X", best.invalid_prediction)
                cell += f" ({predicted}, γ {best.gamma}" if best.prediction > 1.0 else " (1X, γ 0"
                cell += ")" if math.isnan(best.measured) else f"; measured {_measured(best, 'X')})"
            cells.append(cell)
        body.append(tuple(cells))
    title = "Table 5: alpha by lenience l"
    if any(not math.isnan(row.prediction) for row in rows):
        title += " (in brackets the predicted speed-up at its best gamma)"
    return Table(title, ("draft", "sampling", *(f"l = {lenience:g}" for lenience in leniences)), body)


def _independence_table(found: Sequence[Independence], draft: str) -> Table:
    n_lags = max((len(one.autocorrelation) for one in found), default=0)
    n_positions = max((len(one.by_position) for one in found), default=0)
    head = ["are betas independent?", *(f"T={one.temperature:g}" for one in found)]
    body = [
        (
            f"correlation with lag {lag + 1}",
            *(or_dash(one.autocorrelation[lag], "+.3f") for one in found),
        )
        for lag in range(min(3, n_lags))
    ]
    body.append(("95 % band of none", *(f"±{one.band:.3f}" for one in found)))
    body.append((f"Ljung-Box, {n_lags} lags", *(or_dash(one.statistic, ".1f") for one in found)))
    p_values = ["< 1e-300" if one.p_value == 0.0 else or_dash(one.p_value, ".2g") for one in found]
    body.append(("p value", *p_values))
    for position in range(n_positions):
        shares = [one.by_position[position] for one in found]
        cells = ["" if math.isnan(share) else f"{share:.3f}" for share in shares]  # no round got so far
        body.append((f"draft {position + 1} accepted", *cells))
    return Table(f"Independence of acceptances of {draft} (section 3.1)", tuple(head), body)


def _setting(row: MeasurementRow) -> tuple[str, float]:
    return row.draft, row.temperature


def _first_of_each(
    rows: Sequence[MeasurementRow], key: Callable[[MeasurementRow], Any]
) -> list[MeasurementRow]:
    firsts: dict[Any, MeasurementRow] = {}
    for row in rows:
        firsts.setdefault(key(row), row)
    return list(firsts.values())
