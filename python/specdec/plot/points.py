"""What was measured, as points for the curves of the theory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specdec.analysis.experiment import ExperimentRow
from specdec.analysis.measurement import Measurement
from specdec.analysis.statistics import acceptance_by_position
from specdec.errors import InputError
from specdec.plot.runs import Run, full_rounds, gamma_of, half_width, timed_trace, trace_of
from specdec.trace import Trace


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

    Rounds that drafted fewer than the run's gamma, as before a limit of length, are left out. Those of a
    measurement are the rounds that begin at each position of its texts.
    """
    points = []
    for run in runs:
        if isinstance(run, Measurement):
            points += [_measured_point(run, row) for row in _exact_rows(run)]
        else:
            points.append(_run_point(trace_of(run)))
    return points


def pairs_of(runs: Sequence[Run | Measurement]) -> list[Pair]:
    """What was measured of one pair of models: for each temperature of a measurement, or over all runs.

    Runs are compared with the plain ones among them.
    """
    measurements = [run for run in runs if isinstance(run, Measurement)]
    if not measurements:
        traces = [run for run in runs if not isinstance(run, Measurement)]
        return [_pair_of_runs(traces)] if traces else []
    if len(runs) > 1:
        raise InputError(
            f"there are {len(runs)} things to draw; expected one Measurement, or runs of one pair"
        )
    return _pairs_of_measurement(measurements[0])


def _pairs_of_measurement(measurement: Measurement) -> list[Pair]:
    pairs = []
    check_law(measurement)
    for temperature in measurement.betas:
        rows = [row for row in _exact_rows(measurement) if row.temperature == temperature]
        first = rows[0]
        if first.c is None:
            raise InputError("the Measurement has no times (timing=False): its pair has no c to draw")
        pairs.append(
            Pair(
                f"T = {temperature:g}", *first.rates, first.c,
                [_measured_point(measurement, row) for row in rows],
            )
        )  # fmt: skip
    return pairs


def _pair_of_runs(runs: Sequence[Run]) -> Pair:
    traces = [timed_trace(run) for run in runs]
    plain = [trace for trace in traces if not trace.n_drafted]
    drafted = [trace for trace in traces if trace.n_drafted]
    if not plain or not drafted:
        missing = "plain decoding (draft=None)" if drafted else "speculative decoding"
        raise InputError(f"there is no run of {missing} among the runs; a speed-up compares the two")
    base, every = trace_of(plain), trace_of(drafted)
    target_s = base.run_s
    points = []
    for trace in drafted:
        full = full_rounds(trace)
        speedup = trace.tokens_per_s / base.tokens_per_s
        points.append(
            _run_point(trace)._replace(
                # No round is faster than a plain step, so none gives more speed than tokens.
                speedup=math.nan if speedup > trace.tokens_per_call else speedup,
                verify_ratio=full.verify_s / full.n_calls / target_s,
            )
        )
    cost = every.draft_s / every.n_drafted / target_s
    return Pair("this pair", every.acceptance_rate, *every.acceptance_interval(), cost=cost, points=points)


def _run_point(trace: Trace) -> Point:
    if not trace.n_drafted:
        raise InputError("a run drafted nothing (plain decoding): it has no acceptance rate to draw")
    full = full_rounds(trace)
    lengths = [1 + round_.n_accepted for round_ in full.rounds]  # all that equation (1) is about, stop or not
    return Point(
        gamma_of(trace),
        full.acceptance_rate,
        *full.acceptance_interval(),
        tokens=statistics.fmean(lengths),
        tokens_half=half_width(lengths),
    )


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
    check_law(measurement)
    rows = [row for row in measurement.rows if row.lenience == 1.0]
    if not rows:
        raise InputError(
            "the Measurement has no row with lenience 1; the paper's curves are those of the exact rule"
        )
    return rows


def check_law(measurement: Measurement) -> None:
    """Refuse what was measured by running where a picture is of the draft's distribution."""
    if not measurement.betas:
        raise InputError(
            f"{measurement.draft} was measured by running: it has no distribution at every position to draw; "
            "expected a Measurement of a model or a table, or runs; plot.comparison shows every draft"
        )
