"""Figures of acceptance rates: by position in the round, and their variation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.analysis.measure import Measurement
from specdec.checks import check_integer
from specdec.errors import InputError, type_of
from specdec.plot import style
from specdec.plot.points import Run, betas_of, check_distribution, labels_of, name_of, trace_of
from specdec.plot.style import BLACK, GREY, Axes, axes, label_axes, looks, mark, styled
from specdec.trace import Trace, wilson_interval


@styled
def acceptance_by_position(
    *runs: Run | Measurement, labels: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Share of rounds that accepted their first, second, … draft token, next to the i.i.d. prediction.

    Acceptance requires all earlier tokens. A run's points are `Trace.acceptance_by_position` with Wilson's 95
    % intervals; a measurement's are for rounds that begin at every position (products of
    `Independence.by_position`). The lines are α^i, equation (1)'s assumption of independent acceptance with
    probability α. A measurement counts as a run per temperature.
    """
    series = _series_of(runs, labels)
    ax = axes(ax, (7.0, 4.2))
    measured, compared = [], []
    for i, (one, look) in enumerate(zip(series, looks(), strict=False)):
        positions = np.arange(1, len(one.shares) + 1)
        label = f"αⁱ, α = {one.alpha:.2f}"
        compared += ax.plot(positions, one.alpha**positions, **look.line, label=label)
        dodged = _dodged(positions, i, len(series), 0.06)
        label = f"{one.name}measured {one.measured_on}"
        measured.append(mark(ax, dodged, one.shares, look, y_bounds=one.bounds, label=label))
    longest = max(len(one.shares) for one in series)
    label_axes(
        ax, "Accepted draft tokens by position in the round", "position i", "share of rounds",
        xlim=(0.5, longest + 0.5), ylim=(0.0, 1.02), whole="x",
    )  # fmt: skip
    style.legend_below(ax, 2, handles=[*measured, *compared])  # filled column by column
    return ax


@styled
def beta_histogram(
    *runs: Run | Measurement, labels: Sequence[str] | None = None, bins: int = 20, ax: Axes | None = None
) -> Axes:
    """Distribution of the acceptance rate beta (Definition 3.1) over positions, in `bins` bars.

    beta = sum(min(target, draft)) (Theorem 3.5). Under equation (1) all positions would be in one bar.
    Vertical lines are the means: alpha (Corollary 3.6). A measurement counts as a run per temperature.
    """
    bins = check_integer("bins", bins, 1)
    series = _series_of(runs, labels)
    ax = axes(ax, (7.0, 4.2))
    measured, compared = [], []
    edges = np.linspace(0.0, 1.0, bins + 1)
    for one, look in zip(series, looks(), strict=False):
        shares = np.histogram(one.betas, edges)[0] / len(one.betas)
        ax.stairs(shares, edges, color=look.color, alpha=0.25, fill=True)
        label = f"{one.name}{len(one.betas)} positions"
        measured.append(ax.stairs(shares, edges, **look.line, linewidth=1.6, label=label))
        label = f"mean, α = {one.alpha:.2f}"
        compared.append(ax.axvline(one.alpha, **look.line, linewidth=1.2, label=label))
    label_axes(
        ax, "Agreement of draft and target by position",
        "β = Σ min(target, draft), the acceptance probability", "share of positions",
        xlim=(-0.02, 1.02),
    )  # fmt: skip
    ax.set_ylim(bottom=0.0)
    style.legend_below(ax, 2, handles=[*measured, *compared])  # filled column by column
    return ax


@styled
def acceptance_rates(measurement: Measurement, *, ax: Axes | None = None) -> Axes:
    """Acceptance rate alpha by temperature, a line per lenience, with 95 % intervals.

    The data of the paper's Tables 3 and 5. Sharper distributions raise alpha; a lenience l below 1 accepts
    more, and makes no token more than 1 / l times as probable (appendix A.5).
    """
    _check_measurement(measurement)
    ax = axes(ax, (7.0, 4.2))
    leniences = list(dict.fromkeys(row.lenience for row in measurement.rows))
    for lenience, look in zip(leniences, looks(), strict=False):
        rows = {row.temperature: row for row in measurement.rows if row.lenience == lenience}
        temperatures = sorted(rows)
        alphas, *bounds = zip(*(rows[temperature].rates for temperature in temperatures), strict=True)
        ax.plot(temperatures, alphas, **look.line, linewidth=1.2)
        label = f"l = {lenience:g}{', the exact rule' if lenience == 1.0 else ''}"
        mark(ax, temperatures, alphas, look, y_bounds=bounds, label=label)
    label_axes(
        ax, "Acceptance rate by temperature", "temperature", "acceptance rate α",
        ylim=(0.0, 1.02),
    )  # fmt: skip
    style.legend(ax, title="lenience", alignment="left")
    return ax


@styled
def autocorrelation(measurement: Measurement, *, ax: Axes | None = None) -> Axes:
    """Autocorrelation of beta by lag, with the band of no correlation.

    Equation (1) assumes independent betas. If they are, 95 % of the points are between the dashed lines;
    `Independence` has the test.
    """
    _check_measurement(measurement)
    ax = axes(ax, (7.0, 4.2))
    n_series = len(measurement.independence)
    for i, (found, look) in enumerate(zip(measurement.independence.values(), looks(), strict=False)):
        lags = np.arange(1, len(found.autocorrelation) + 1)
        p_value = "< 1e-99" if found.p_value < 1e-99 else f"= {found.p_value:.2g}"
        label = f"T = {found.temperature:g}, p {p_value}"
        dodged = _dodged(lags, i, n_series, 0.16)
        ax.vlines(dodged, 0.0, found.autocorrelation, color=look.color, linewidth=1.2)
        mark(ax, dodged, found.autocorrelation, look, label=label)
    bands = sorted({found.band for found in measurement.independence.values()})
    for i, end in enumerate([end for band in bands for end in (-band, band)]):
        label = "_" if i else "95 % without correlation"
        ax.axhline(end, color=GREY, linestyle="--", linewidth=1.2, zorder=1, label=label)
    ax.axhline(0.0, color=BLACK, linewidth=0.8)
    label_axes(
        ax, "Does one position predict the next?", "lag in positions", "autocorrelation of β",
        whole="x",
    )  # fmt: skip
    style.legend(ax, title="Ljung and Box's test", alignment="left")
    return ax


def _check_measurement(measurement: Measurement) -> None:
    if not isinstance(measurement, Measurement):
        raise InputError.of("measurement", measurement, "a Measurement", found=type_of(measurement))
    check_distribution(measurement)


class _Series(NamedTuple):
    """A run, or one temperature of a measurement: its alpha, betas, and acceptance by position."""

    name: str  # with a colon; empty for a single one without a label
    alpha: float
    betas: NDArray[np.float64]  # [n_positions]
    shares: NDArray[np.float64]  # [gamma]
    bounds: NDArray[np.float64] | None  # [2, gamma]
    measured_on: str


def _series_of(runs: Sequence[Run | Measurement], labels: Sequence[str] | None) -> list[_Series]:
    series = []
    for run in runs:
        if isinstance(run, Measurement):
            check_distribution(run)
            series += [_measured_series(run, temperature) for temperature in run.betas]
        else:
            series.append(_run_series(trace_of(run, drafted=True)))
    if not series:
        raise InputError("there is no run to draw; give a Measurement, a Result, a Trace, or a list of these")
    if labels is None and len(series) == 1:
        return [series[0]._replace(name="")]
    names = labels_of(labels, [one.name for one in series])
    return [one._replace(name=f"{name}: ") for one, name in zip(series, names, strict=True)]


def _run_series(trace: Trace) -> _Series:
    shares = np.array(trace.acceptance_by_position)
    reached = [sum(round_.depth > position for round_ in trace.rounds) for position in range(len(shares))]
    bounds = [wilson_interval(share, n) for share, n in zip(shares, reached, strict=True)]
    where = f"in {trace.n_calls} rounds"
    rate = trace.acceptance_rate
    return _Series(name_of(trace), rate, betas_of(trace), shares, np.array(bounds).T, where)


def _measured_series(measurement: Measurement, temperature: float) -> _Series:
    betas = np.concatenate(measurement.betas[temperature])
    chances = np.array(measurement.independence[temperature].by_position)  # each conditional on those before
    where = f"at {len(betas)} positions"
    return _Series(f"T = {temperature:g}", float(betas.mean()), betas, np.cumprod(chances), None, where)


def _dodged(positions: NDArray[np.int64], i: int, n_series: int, step: float) -> NDArray[np.float64]:
    """Shift the positions of series `i` slightly, so that series do not overlap."""
    return positions.astype(np.float64) + min(step, 0.8 / n_series) * (i - (n_series - 1) / 2.0)
