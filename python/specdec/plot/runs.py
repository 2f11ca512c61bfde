"""What runs give to pictures: their rounds, their gamma, means with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.decoding.result import Result
from specdec.errors import InputError, kind_of, shown
from specdec.trace import Trace

Run: TypeAlias = Result | Trace | Sequence[Result | Trace]
"""A run, or several of one kind that count as one."""

CONFIDENCE = 0.95  # of every interval that is drawn
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)


def trace_of(run: Run) -> Trace:
    """The rounds of a run, or of all runs of a list, as one trace."""
    if isinstance(run, Result):
        run = run.trace
    if isinstance(run, Trace):
        trace = run
    elif isinstance(run, Sequence) and not isinstance(run, str) and run:
        trace = Trace.joined(trace_of(part) for part in run)
    else:
        raise InputError(
            f"a run is {_name(run)}; expected a Result, a Trace, or a list of these that count as one"
        )
    if not trace.rounds:
        raise InputError("a run has no round: there is nothing to draw")
    return trace


def drafted_trace(run: Run) -> Trace:
    """The same of a run that must have drafted."""
    trace = trace_of(run)
    if not trace.n_drafted:
        raise InputError("a run drafted nothing (plain decoding): it has no acceptance rate to draw")
    return trace


def timed_trace(run: Run) -> Trace:
    """The same of a run whose times are its own, not those of a batch."""
    trace = trace_of(run)
    if trace.n_sequences > 1:
        raise InputError(
            f"a run was one of a batch of {trace.n_sequences}, and its times are those of the batch; "
            "generate the prompts one by one for a picture of times"
        )
    return trace


def gamma_of(trace: Trace) -> int:
    """Drafts in a row that the run was asked for: those of its longest round, which must all be chains."""
    for round_ in trace.rounds:
        if round_.depth != round_.n_drafted:
            raise InputError(
                f"round {round_.index} of a run drafted a tree of {round_.n_drafted} tokens and depth "
                f"{round_.depth}; the paper's curves are those of chains"
            )
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


def half_width(values: Sequence[float]) -> float:
    """Half the normal confidence interval of the mean of `values`; NaN of fewer than two."""
    if len(values) < 2:
        return math.nan
    return _Z * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def labels_of(labels: Sequence[str] | None, defaults: Sequence[str]) -> list[str]:
    """The caller's labels, one for each run, or the defaults."""
    if labels is None:
        return list(defaults)
    if isinstance(labels, str) or len(labels) != len(defaults):
        raise InputError(f"labels is {shown(labels)}; expected one for each of the {len(defaults)} runs")
    return list(labels)


def _name(value: object) -> str:
    return repr(value) if isinstance(value, str | list | tuple) and not value else kind_of(value)
