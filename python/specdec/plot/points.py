"""Points with intervals from runs and measurements, for all figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.analysis.experiment import ExperimentRow
from specdec.analysis.measure import Measurement
from specdec.analysis.statistics import acceptance_by_position
from specdec.decoding.result import Result
from specdec.errors import InputError, type_of
from specdec.trace import Trace

Run: TypeAlias = Result | Trace | Sequence[Result | Trace]
"""A run, or several similar ones that count as one."""

CONFIDENCE = 0.95  # of all intervals
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)


def trace_of(run: Run, *, drafted: bool = False, timed: bool = False) -> Trace:
    """Return the rounds of a run, or of a list of runs, as one trace; raises for unusable ones."""
    if isinstance(run, Result):
        run = run.trace
    if isinstance(run, Trace):
        trace = run
    elif isinstance(run, Sequence) and not isinstance(run, str) and run:
        trace = Trace.joined(trace_of(part) for part in run)
    else:
        found = repr(run) if isinstance(run, str | list | tuple) and not run else type_of(run)
        expected = "a Result, a Trace, or a list of these"
        raise InputError.of("a run", run, expected, found=found)
    if not trace.rounds:
        raise InputError("a run has no rounds to draw")
    if drafted and not trace.n_drafted:
        raise InputError("a run drafted nothing (plain decoding): it has no acceptance rate to draw")
    if timed and trace.n_sequences > 1:
        batch = f"a run's times are those of its batch of {trace.n_sequences}"
        raise InputError(f"{batch}; generate the prompts one by one to draw times")
    return trace


def gamma_of(trace: Trace) -> int:
    """Return the gamma of a run: the length of its longest round; all rounds must be chains."""
    for round_ in trace.rounds:
        if round_.depth != round_.n_drafted:
            tree = f"a tree of {round_.n_drafted} tokens and depth {round_.depth}"
            found = f"round {round_.index} of a run drafted {tree}"
            raise InputError(f"{found}; the paper's curves are for chains")
    return max(round_.n_drafted for round_ in trace.rounds)


def name_of(trace: Trace) -> str:
    """Return a run's default name."""
    depth = max(round_.depth for round_ in trace.rounds)
    if not depth:
        return "without a draft"
    chains = all(round_.depth == round_.n_drafted for round_ in trace.rounds)
    return f"γ = {depth}" if chains else f"trees of depth {depth}"


def full_rounds(trace: Trace) -> Trace:
    """Return the rounds with all gamma draft tokens: those before a length limit have fewer."""
    gamma = gamma_of(trace)
    return Trace([round_ for round_ in trace.rounds if round_.n_drafted == gamma])


def betas_of(trace: Trace) -> NDArray[np.float64]:
    """Return beta at each verified position, in order: float64 [n_verified]."""
    betas = np.array([beta for round_ in trace.rounds for beta in round_.betas], dtype=np.float64)
    return np.minimum(betas, 1.0)  # rounding may exceed 1 for equal distributions


def labels_of(labels: Sequence[str] | None, defaults: Sequence[str]) -> list[str]:
    """Return the caller's labels, one per run, or the defaults."""
    if labels is None:
        return list(defaults)
    if isinstance(labels, str) or len(labels) != len(defaults):
        raise InputError.of("labels", labels, f"one per run ({len(defaults)})")
    return list(labels)


class Point(NamedTuple):
    """Measurements of one gamma of one pair of models; NaN if missing."""

    gamma: int
    alpha: float
    alpha_low: float
    alpha_high: float
    tokens: float = math.nan  # per round
    tokens_half: float = math.nan  # half the width of the interval
    speedup: float = math.nan  # over plain decoding; NaN also for a measurement error
    verify_ratio: float = math.nan  # t(gamma + 1) / t(1)
    name: str = ""  # the temperature, if known


class Pair(NamedTuple):
    """A pair of models in one setting: one temperature, or all runs together."""

    name: str
    alpha: float
    alpha_low: float
    alpha_high: float
    cost: float  # c of Definition 3.7
    points: list[Point]  # one per gamma


def token_points(runs: Sequence[Run | Measurement]) -> list[Point]:
    """Return tokens per round: a point per run, and per exact row of a measurement.

    Uses a run's rounds with all gamma draft tokens, and a measurement's rounds from each position.
    """
    points = []
    for run in runs:
        if isinstance(run, Measurement):
            points += [_measured_point(run, row) for row in _exact_rows(run)]
        else:
            points.append(_run_point(trace_of(run, drafted=True)))
    return points


def pairs_of(runs: Sequence[Run | Measurement]) -> list[Pair]:
    """Return measurements of one pair of models, per temperature or over all runs."""
    traces = [run for run in runs if not isinstance(run, Measurement)]
    if len(traces) == len(runs):
        return [_pair_of_runs(traces)] if traces else []
    (measurement, *others) = runs
    if others or not isinstance(measurement, Measurement):
        found = f"there are {len(runs)} things to draw"
        raise InputError(f"{found}; expected one Measurement, or runs of one pair of models")
    pairs = []
    check_distribution(measurement)
    for temperature in measurement.betas:
        rows = [row for row in _exact_rows(measurement) if row.temperature == temperature]
        if rows[0].c is None:
            raise InputError("the Measurement has no times (timing=False): it has no c to draw")
        points = [_measured_point(measurement, row) for row in rows]
        pairs.append(Pair(f"T = {temperature:g}", *rows[0].rates, rows[0].c, points))
    return pairs


def _pair_of_runs(runs: Sequence[Run]) -> Pair:
    traces = [trace_of(run, timed=True) for run in runs]
    plain = [trace for trace in traces if not trace.n_drafted]
    drafted = [trace for trace in traces if trace.n_drafted]
    if not plain or not drafted:
        missing = "plain decoding (draft=None)" if drafted else "speculative decoding"
        raise InputError(f"there is no run of {missing} among the runs; a speed-up compares the two")
    base, every = trace_of(plain), trace_of(drafted)
    target_s = base.run_s
    points = []
    for trace in drafted:
        full, speedup = full_rounds(trace), trace.tokens_per_s / base.tokens_per_s
        valid = speedup <= trace.tokens_per_call  # no round is faster than a plain step
        point = _run_point(trace)._replace(verify_ratio=full.verify_s / full.n_calls / target_s)
        points.append(point._replace(speedup=speedup) if valid else point)
    cost = every.draft_s / every.n_drafted / target_s
    return Pair("this pair", every.acceptance_rate, *every.acceptance_interval(), cost=cost, points=points)


def _run_point(trace: Trace) -> Point:
    full = full_rounds(trace)
    lengths = [1 + round_.n_accepted for round_ in full.rounds]  # as equation (1) counts, despite stops
    half = _Z * float(np.std(lengths, ddof=1)) / math.sqrt(len(lengths)) if len(lengths) > 1 else math.nan
    rates = full.acceptance_rate, *full.acceptance_interval()
    return Point(gamma_of(trace), *rates, tokens=statistics.fmean(lengths), tokens_half=half)


def _measured_point(measurement: Measurement, row: ExperimentRow) -> Point:
    chances = acceptance_by_position(measurement.betas[row.temperature], row.gamma)
    return Point(
        row.gamma,
        *row.rates,
        tokens=1.0 + float(np.cumprod(chances).sum()),
        speedup=math.nan if row.invalid else row.timed.median,
        verify_ratio=math.nan if row.verify_ratio is None else row.verify_ratio,
        name=f"T = {row.temperature:g}",
    )


def _exact_rows(measurement: Measurement) -> list[ExperimentRow]:
    check_distribution(measurement)
    rows = [row for row in measurement.rows if row.lenience == 1.0]
    if not rows:
        found = "the Measurement has no row with lenience 1"
        raise InputError(f"{found}; the paper's curves are for the exact rule")
    return rows


def check_distribution(measurement: Measurement) -> None:
    """Raise if a measurement by running is used for a figure of the draft's distribution."""
    if not measurement.betas:
        found = f"{measurement.draft} was measured by running, without its distribution at every position"
        expected = "a Measurement of a model or a table, or runs"
        raise InputError(f"{found}; expected {expected}; plot.comparison shows every draft")
