"""Figures 2, 3 and 4 of the paper: theory as curves over alpha, measurements as points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec import theory
from specdec.analysis.measure import Measurement
from specdec.checks import check_integer
from specdec.errors import InputError
from specdec.plot import style
from specdec.plot.points import Pair, Point, Run, pairs_of, token_points
from specdec.plot.style import BLACK, GREY, Axes, Look, axes, label_axes, looks, mark, styled

_GAMMAS = (1, 3, 5, 7, 10)  # drawn without runs
_COSTS = (0.01, 0.02, 0.05, 0.1)
_ALPHAS = np.linspace(0.0, 1.0, 201)
_MOST = 64  # largest gamma in Figure 3, where more is always better (c = 0)
_ALPHA_LABEL = "acceptance rate α"


@styled
def expected_tokens(
    *runs: Run | Measurement, gammas: Sequence[int] | None = None, ax: Axes | None = None
) -> Axes:
    """Figure 2: expected tokens per target forward pass over alpha, equation (1), with runs as points.

    A run's point is the mean over its rounds, at its alpha, with 95 % intervals of both. A measurement has a
    point per temperature and gamma, for rounds that begin at every position. Points are above their curve if
    acceptances cluster and below it if they alternate, because equation (1) assumes independence. `gammas`
    are the curves; by default those of the runs, or 1, 3, 5, 7, 10.
    """
    points = token_points(runs)
    curves = _curves(gammas, points)
    ax = axes(ax, (7.0, 4.2))
    for gamma, look in curves.items():
        ax.plot(_ALPHAS, theory.expected_tokens(_ALPHAS, gamma), **look.line, label=f"γ = {gamma}")
    for point in points:
        ends = (point.tokens - point.tokens_half, point.tokens + point.tokens_half)
        _mark(ax, point, point.tokens, curves[point.gamma], None if math.isnan(point.tokens_half) else ends)
    if points:
        _key(ax, _measured(points), marker="o", linestyle="")
    label_axes(
        ax, "Tokens per target forward pass, equation (1)", _ALPHA_LABEL, "expected tokens",
        xlim=(0.0, 1.0), ylim=(0.0, max(curves) + 1.5),
    )  # fmt: skip
    style.legend(ax)
    return ax


@styled
def optimal_gamma(*runs: Run | Measurement, costs: Sequence[float] = _COSTS, ax: Axes | None = None) -> Axes:
    """Figure 3: the gamma with the largest expected speed-up over alpha, for several c (section 3.5).

    The curves follow Theorem 3.8, with a target that verifies γ + 1 positions in the time of one; `costs` are
    their c (Definition 3.7). One timed measurement, or runs of one pair in one setting including plain ones,
    adds the curve of that pair's c. It also adds two points at its alpha, among the gammas that were run: the
    best one predicted with the measured t(γ + 1) / t(1) (a ring), and the fastest (a star).
    """
    if not costs:
        raise InputError("costs is empty; expected at least one cost coefficient")
    pairs = pairs_of(runs)
    curves = [theory.optimal_gamma(_ALPHAS, cost, max_gamma=_MOST) for cost in costs]
    ax = axes(ax, (7.5, 5.0))
    for cost, curve, look in zip(costs, curves, looks(), strict=False):
        ax.step(_ALPHAS, curve, where="mid", **look.line, label=f"c = {cost:g}")
    for cost in dict.fromkeys(pair.cost for pair in pairs):
        ax.step(
            _ALPHAS, theory.optimal_gamma(_ALPHAS, cost, max_gamma=_MOST), where="mid", color=GREY,
            linewidth=4.0, alpha=0.6, zorder=1, label=f"c = {cost:.3f}, measured",
        )  # fmt: skip
    best = [max(pair.points, key=lambda point: _predicted(pair, point)).gamma for pair in pairs]
    ran = [(pair, [one for one in pair.points if not math.isnan(one.speedup)]) for pair in pairs]
    fastest = [(pair, max(points, key=lambda one: one.speedup).gamma) for pair, points in ran if points]
    if pairs:
        ax.plot(
            [pair.alpha for pair in pairs], best, "o", markersize=15.0, markerfacecolor="none",
            markeredgewidth=1.6, color=BLACK, linestyle="", zorder=4,
            label=f"predicted with measured times, of γ = {_listed(pairs)}",
        )  # fmt: skip
    if fastest:
        bounds = [[pair.alpha_low for pair, _ in fastest], [pair.alpha_high for pair, _ in fastest]]
        mark(
            ax, [pair.alpha for pair, _ in fastest], [gamma for _, gamma in fastest], Look(BLACK, "-", "*"),
            markersize=13.0, x_bounds=bounds, label=f"fastest when run, of γ = {_listed(pairs, ran=True)}",
        )  # fmt: skip
    highest = {pair.name: gamma for pair, gamma in fastest}
    for pair, gamma in zip(pairs, best, strict=True):
        position = pair.alpha, max(gamma, highest.get(pair.name, 0))
        ax.annotate(
            pair.name, position, (0.0, 11.0), textcoords="offset points", ha="center", zorder=5,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )  # fmt: skip
    top = max([16.0, *(1.2 * gamma for gamma in (*best, *highest.values()))])
    label_axes(
        ax, "Best γ: curves by Theorem 3.8 (verification costs a plain step)", _ALPHA_LABEL,
        "optimal γ", xlim=(0.0, 1.0), ylim=(-0.4, top), whole="y",
    )  # fmt: skip
    style.legend_below(ax, 2)
    return ax


@styled
def speed_and_operations(
    *runs: Run | Measurement,
    gammas: Sequence[int] | None = None,
    cost: float | None = None,
    operations_cost: float = 0.0,
    axs: Sequence[Axes] | None = None,
) -> tuple[Axes, Axes]:
    """Figure 4: speed-up (Theorem 3.8) and factor of operations (Theorem 3.11) over alpha; runs as points.

    With one timed measurement, or runs of one pair including plain ones, c is the pair's own, and each gamma
    has a second, thin curve with the measured t(γ + 1) / t(1) instead of 1. The points are measured
    speed-ups, and the operations of the rounds of Figure 2's points.

    Parameters
    ----------
    gammas : sequence of int, optional
        The curves; by default those of the runs, or 1, 3, 5, 7, 10.
    cost : float, optional
        c; by default as measured, or 0 (the paper's figure) without runs.
    operations_cost : float, default 0.0
        ĉ of Definition 3.10: operations per token of the draft over those of the target.
    axs : pair of Axes, optional
        Axes for speed-up and operations, which are returned; by default a new figure.
    """
    pairs = pairs_of(runs)
    points = [point for pair in pairs for point in pair.points]
    curves = _curves(gammas, points)
    if cost is None:
        cost = pairs[0].cost if pairs else 0.0
    speed, operations = _two_axes(axs)
    for gamma, look in curves.items():
        line = {**look.line, "label": f"γ = {gamma}"}
        speed.plot(_ALPHAS, theory.expected_speedup(_ALPHAS, gamma, cost), **line)
        operations.plot(_ALPHAS, theory.expected_operations(_ALPHAS, gamma, operations_cost), **line)
    for gamma, ratio in dict.fromkeys((point.gamma, point.verify_ratio) for point in points):
        look = curves[gamma]
        speedups = theory.expected_speedup(_ALPHAS, gamma, cost, ratio)
        speed.plot(_ALPHAS, speedups, **look.line, linewidth=1.0)
    for point in points:
        look = curves[point.gamma]
        if not math.isnan(point.speedup):
            _mark(speed, point, point.speedup, look)
        _mark(operations, point, (point.gamma * (operations_cost + 1.0) + 1.0) / point.tokens, look)
    if points:
        _key(operations, _measured(points), marker="o", linestyle="")
        _key(operations, "with t(γ + 1) / t(1)\nas measured", linewidth=1.0)
    highest = [float(theory.expected_speedup(1.0, gamma, cost)) for gamma in curves]
    highest += [point.speedup for point in points if not math.isnan(point.speedup)]
    label_axes(
        speed, f"Speed-up, Theorem 3.8, c = {cost:.3g}", _ALPHA_LABEL, "speed-up over plain decoding",
        xlim=(0.0, 1.0), ylim=(0.0, 1.05 * max(highest)),
    )  # fmt: skip
    most = max(float(theory.expected_operations(0.0, gamma, operations_cost)) for gamma in curves)
    label_axes(
        operations, f"Operations, Theorem 3.11, ĉ = {operations_cost:.3g}", _ALPHA_LABEL,
        "operations over those of plain decoding", xlim=(0.0, 1.0), ylim=(0.0, 1.05 * most),
    )  # fmt: skip
    style.legend(operations)
    return speed, operations


def _predicted(pair: Pair, point: Point) -> float:
    """Return the speed-up at the pair's alpha with this gamma's measured verification time."""
    return float(theory.expected_speedup(pair.alpha, point.gamma, pair.cost, point.verify_ratio))


def _curves(gammas: Sequence[int] | None, points: Sequence[Point]) -> dict[int, Look]:
    """Return the look of each gamma, requested or measured, in order."""
    if gammas is None:
        gammas = () if points else _GAMMAS
    chosen = [check_integer("a gamma", gamma, 1) for gamma in gammas]
    every = sorted({*chosen, *(point.gamma for point in points)})
    return dict(zip(every, looks(), strict=False))


def _mark(ax: Axes, point: Point, y: float, look: Look, y_bounds: Sequence[float] | None = None) -> None:
    """Mark a measured point in the look of its curve."""
    x_bounds = [[point.alpha_low], [point.alpha_high]]
    mark(ax, [point.alpha], [y], look, x_bounds=x_bounds, y_bounds=y_bounds and [[end] for end in y_bounds])


def _key(ax: Axes, label: str, **look: Any) -> None:
    """Add a legend entry without a line of its own."""
    ax.plot([], [], color=BLACK, label=label, **look)


def _measured(points: Sequence[Point]) -> str:
    """Describe the points and the alpha of each temperature."""
    alphas = {point.name: point.alpha for point in points if point.name}
    return "\n".join(["measured", *(f"{name} at α = {alpha:.2f}" for name, alpha in alphas.items())])


def _two_axes(axs: Sequence[Axes] | None) -> tuple[Axes, Axes]:
    if axs is None:
        _, (left, right) = style.pyplot().subplots(1, 2, figsize=(11.5, 4.2), layout="constrained")
        return left, right
    if len(axs) != 2:
        raise InputError.of("axs", axs, "two, for the speed-up and the operations", f"{len(axs)} axes", "has")
    return axes(axs[0], (0, 0)), axes(axs[1], (0, 0))


def _listed(pairs: Sequence[Pair], *, ran: bool = False) -> str:
    """List the gammas of pairs; with `ran` those whose speed was measured."""
    points = [point for pair in pairs for point in pair.points if not (ran and math.isnan(point.speedup))]
    return ", ".join(str(gamma) for gamma in sorted({point.gamma for point in points}))
