"""The paper's figures and a few more, drawn from real runs and measurements with matplotlib.

>>> import specdec
>>> target, draft = specdec.embedded_pair()
>>> prompt = "It was a dark and stormy night"
>>> runs = [specdec.generate(target, draft if gamma else None, prompt, gamma=gamma) for gamma in (7, 3, 0)]
>>> specdec.plot.timeline(*runs)  # Figure 5 of arXiv 2211.17192: who computed when

Each function takes what a run or a measurement gave back and returns the Axes. Arguments of several
functions:

runs : Result, Trace, list of results and traces, or Measurement
    A list counts as one run. Without runs, figures of the theory have their curves alone.
measurement, found : Measurement, Comparison
temperature : float, optional
    One of those measured; None: the first.
labels : sequence of str, optional
    One for each run; by default its gamma, or its temperature.
ax : Axes, optional
    Where to draw; by default a new figure. Legends are next to the axes, where they cover no data: give a
    figure of your own ``layout="constrained"``.

An argument that cannot be drawn raises `InputError`: something else than the above, a run without rounds or
drafts where these are drawn, one of a batch where times are, a tree where chains are. Pictures need
matplotlib (``pip install 'specdec-cpu[plot]'``; else `MissingPackageError`). Color-blind readers can tell the
colors apart, which never stand alone: lines differ in style, points in shape, blocks in height. Settings of
matplotlib are changed for these pictures alone. Figure 1, the rounds in color, needs none of it: it is how a
`specdec.Result` prints.
"""

from __future__ import annotations

from specdec.plot.comparisons import (
    comparison,
    comparison_by_position,
    comparison_by_prompt,
    comparison_by_temperature,
    comparison_of_costs,
)
from specdec.plot.curves import expected_tokens, optimal_gamma, speed_and_operations
from specdec.plot.heat import heat_map, heat_map_html
from specdec.plot.rates import acceptance_by_position, acceptance_rates, autocorrelation, beta_histogram
from specdec.plot.timeline import timeline

__all__ = [
    "acceptance_by_position", "acceptance_rates", "autocorrelation", "beta_histogram", "comparison",
    "comparison_by_position", "comparison_by_prompt", "comparison_by_temperature", "comparison_of_costs",
    "expected_tokens", "heat_map", "heat_map_html", "optimal_gamma", "speed_and_operations", "timeline",
]  # fmt: skip
