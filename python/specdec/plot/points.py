"""What runs and measurements give to pictures: their rounds, their gamma, and points with intervals."""

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
"""A run, or several of one kind that count as one."""

CONFIDENCE = 0.95  # of every interval that is drawn
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)


def trace_of(run: Run, *, drafted: bool = False, timed: bool = False) -> Trace:
    """The rounds of a run, or of several in a list, as one trace; with times of its own, if it is `timed`."""
    if isinstance(run, Result):
        run = run.trace
    if isinstance(run, Trace):
        trace = run
    elif isinstance(run, Sequence) and not isinstance(run, str) and run:
        trace = Trace.joined(trace_of(part) for part in run)
    else:
        found = repr(run) if isinstance(run, str | list | tuple) and not run else type_of(run)
        expected = "a Result, a Trace, or a list of these that count as one"
        raise InputError.of("a run", run, expected, found=found)
    if not trace.rounds:
        raise InputError("a run has no round: there is nothing to draw")
    if drafted and not trace.n_drafted:
        raise InputError("a run drafted nothing (plain decoding): it has no acceptance rate to draw")
    if timed and trace.n_sequences > 1:
        batch = f"a run was one of a batch of {trace.n_sequences}, and its times are those of the batch"
        raise InputError(f"{batch}; generate the prompts one by one for a picture of times")
    return trace


def gamma_of(trace: Trace) -> int:
    """Drafts in a row that the run was asked for: those of its longest round, which must all be chains."""
    for round_ in trace.rounds:
        if round_.depth != round_.n_drafted:
            tree = f"a tree of {round_.n_drafted} tokens and depth {round_.depth}"
            found = f"round {round_.index} of a run drafted {tree}"
            raise InputError(f"{found}; the paper's curves are those of chains")
    return max(round_.n_drafted for round_ in trace.rounds)


def name_of(trace: Trace) -> str:
    """What a run is called where the caller does not say."""
    depth = max(round_.depth for round_ in trace.rounds)
    if not depth:
        return "without a draft"
    chains = all(round_.depth == round_.n_drafted for round_ in trace.rounds)
    return f"γ = {depth}" if chains else f"trees of depth {depth}"


def full_rounds(trace: Trace) -> Trace:
    """Only the rounds with all gamma drafts: before a limit of length rounds draft fewer."""
    gamma = gamma_of(trace)
    return Trace([round_ for round_ in trace.rounds if round_.n_drafted == gamma])


def betas_of(trace: Trace) -> NDArray[np.float64]:
    """beta at each verified position, in order: float64 [n_verified]."""
    betas = np.array([beta for round_ in trace.rounds for beta in round_.betas], dtype=np.float64)
    return np.minimum(betas, 1.0)  # equal distributions may overlap by a rounding more than 1


def labels_of(labels: Sequence[str] | None, defaults: Sequence[str]) -> list[str]:
    """The caller's labels, one for each run, or the defaults."""
    if labels is None:
        return list(defaults)
    if isinstance(labels, str) or len(labels) != len(defaults):
        raise InputError.of("labels", labels, f"one for each of the {len(defaults)} runs")
    return list(labels)


class Point(NamedTuple):
    """One gamma of one pair of models, as measured; NaN where it was not."""

    gamma: int
    alpha: float
    alpha_low: float
    alpha_high: float
    tokens: float = math.nan  # of a round
    tokens_half: float = math.nan  # half the width of their interval
    speedup: float = math.nan  # over plain decoding; NaN also where an error of measuring shows
    verify_ratio: float = math.nan  # t(gamma + 1) / t(1)
    name: str = ""  # the temperature, where it is known


class Pair(NamedTuple):
    """A pair of models in one setting: a temperature, or all that runs have."""

    name: str
    alpha: float
    alpha_low: float
    alpha_high: float
    cost: float  # c of Definition 3.7
    points: list[Point]  # one for each gamma


def token_points(runs: Sequence[Run | Measurement]) -> list[Point]:
    """How many tokens rounds gave: a point for each run, and for each exact row of a measurement.

    Of a run its rounds with all gamma drafts count, of a measurement rounds that begin at each position.
    """
    points = []
    for run in runs:
        if isinstance(run, Measurement):
            points += [_measured_point(run, row) for row in _exact_rows(run)]
        else:
            points.append(_run_point(trace_of(run, drafted=True)))
    return points


def pairs_of(runs: Sequence[Run | Measurement]) -> list[Pair]:
    """What was measured of one pair of models: for each temperature, or over all runs and plain ones."""
    traces = [run for run in runs if not isinstance(run, Measurement)]
    if len(traces) == len(runs):
        return [_pair_of_runs(traces)] if traces else []
    (measurement, *others) = runs
    if others or not isinstance(measurement, Measurement):
        found = f"there are {len(runs)} things to draw"
        raise InputError(f"{found}; expected one Measurement, or runs of one pair")
    pairs = []
    check_distribution(measurement)
    for temperature in measurement.betas:
        rows = [row for row in _exact_rows(measurement) if row.temperature == temperature]
        if rows[0].c is None:
            raise InputError("the Measurement has no times (timing=False): its pair has no c to draw")
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
    lengths = [1 + round_.n_accepted for round_ in full.rounds]  # all that equation (1) is about, stop or not
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
        raise InputError(f"{found}; the paper's curves are those of the exact rule")
    return rows


def check_distribution(measurement: Measurement) -> None:
    """Refuse what was measured by running where a picture is of the draft's distribution."""
    if not measurement.betas:
        found = f"{measurement.draft} was measured by running: it has no distribution to draw everywhere"
        expected = "a Measurement of a model or a table, or runs"
        raise InputError(f"{found}; expected {expected}; plot.comparison shows every draft")
