"""The paper's figures and more, drawn by matplotlib from real runs and measurements.

>>> import specdec
>>> target, draft = specdec.embedded_pair()
>>> prompt = "It was a dark and stormy night"
>>> runs = [specdec.generate(target, draft if gamma else None, prompt, gamma=gamma) for gamma in (7, 3, 0)]
>>> specdec.plot.timeline(*runs)  # Figure 5 of arXiv 2211.17192

Functions take the results of runs or measurements and return the Axes. Shared arguments:

runs : Result, Trace, list of results and traces, or Measurement
    A list counts as one run. Without runs, theoretical figures show their curves only.
measurement, found : Measurement, Comparison
    Result of `specdec.measure` or `specdec.compare`.
temperature : float, optional
    One of the measured temperatures; None: the first.
labels : sequence of str, optional
    One per run; by default its gamma or temperature.
ax : Axes, optional
    Where to draw; by default a new figure. Legends are next to the axes: give your own figure
    ``layout="constrained"``.

Arguments that cannot be drawn raise `InputError`, such as a run without rounds or drafts, batch runs for
figures of times, or trees for figures of chains. Needs matplotlib (``pip install 'specdec-cpu[plot]'``; else
`MissingPackageError`). Colors are safe for color blindness and never the only distinction: lines differ in
style, points in shape, blocks in height. matplotlib's global settings are unchanged. Figure 1 needs no
matplotlib: printing a `specdec.Result` shows it.
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
