"""Figures of `specdec.compare` results: several drafts for one target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specdec.analysis.compare import Comparison
from specdec.analysis.experiment import ExperimentRow
from specdec.errors import InputError, type_of
from specdec.plot.style import GREY, Axes, Look, axes, label_axes, legend, legend_below, looks, mark, styled

_INVALID = "invalid: above the tokens per pass"


@styled
def comparison(found: Comparison, *, temperature: float | None = None, ax: Axes | None = None) -> Axes:
    """Measured speed-up of every draft: median, minimum and maximum over the repetitions.

    The dashed line is plain decoding. A speed-up above the tokens per pass is a measurement error and
    drawn as a gray cross.
    """
    rows = _rows(found, temperature)
    ax = axes(ax, (7.0, 1.6 + 0.45 * len(rows)))
    for y, (row, look) in enumerate(zip(rows, looks(), strict=False)):
        _mark_speedup(ax, row, y, look)
    ax.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2, label="plain decoding")
    ax.set_yticks(range(len(rows)), [_name(row, rows) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    title = f"Speed-up over plain decoding, T = {rows[0].temperature:g}"
    label_axes(ax, title, "speed-up, min to max", "draft")
    _legend_once(ax)
    return ax


@styled
def comparison_by_position(
    found: Comparison, *, temperature: float | None = None, ax: Axes | None = None
) -> Axes:
    """Share of rounds that accepted their first, second, ... draft token, a line per draft.

    Among the rounds that drafted so many (`ExperimentRow.by_position`). Drafts without draft tokens are
    omitted.
    """
    rows = [row for row in _rows(found, temperature, timed=False) if row.by_position]
    if not rows:
        raise InputError("no draft proposed any token: there is no acceptance to draw")
    ax = axes(ax, (7.0, 4.2))
    for row, look in zip(rows, looks(), strict=False):
        positions = np.arange(1, len(row.by_position) + 1)
        ax.plot(positions, row.by_position, **look.line, marker=look.marker, label=_name(row, rows))
    label_axes(
        ax, f"Accepted draft tokens by position in the round, T = {rows[0].temperature:g}",
        "position of the draft token", "share of rounds", ylim=(0.0, 1.02), whole="x",
    )  # fmt: skip
    legend(ax)
    return ax


@styled
def comparison_by_prompt(
    found: Comparison, *, temperature: float | None = None, speed: bool = False, ax: Axes | None = None
) -> Axes:
    """Tokens per pass of every draft on every prompt; with `speed`, the measured speed-up.

    Speed-ups have their minimum and maximum; measurement errors are gray crosses.
    """
    rows = _rows(found, temperature, timed=speed)
    n_prompts = len(found.prompts)
    ax = axes(ax, (8.0, 1.6 + 0.5 * n_prompts + 0.25 * len(rows)))
    step = 0.7 / len(rows)
    for i, (row, look) in enumerate(zip(rows, looks(), strict=False)):
        y = np.arange(len(row.prompts)) + step * (i - (len(rows) - 1) / 2.0)
        label = _name(row, rows)
        if not speed:
            mark(ax, [one.tokens_per_call for one in row.prompts], y, look, label=label)
        for height, one in zip(y, row.prompts, strict=True) if speed else ():
            _mark_speedup(ax, one, height, look, label)
    ax.set_yticks(range(n_prompts), found.labels)
    ax.set_ylim(n_prompts - 0.5, -0.5)
    what = "Speed-up over plain decoding" if speed else "Tokens per pass"
    label_axes(ax, f"{what}, T = {rows[0].temperature:g}", what.lower(), "prompt")
    _legend_once(ax)
    return ax


@styled
def comparison_by_temperature(
    found: Comparison, *, figure: str = "tokens_per_call", ax: Axes | None = None
) -> Axes:
    """A statistic of every draft by temperature, with its interval.

    Parameters
    ----------
    figure : {"tokens_per_call", "alpha", "speedup"}
        Tokens per pass or mean acceptance rate, with 95 % intervals; or the measured speed-up with
        minimum and maximum. Rows without the value, and invalid speed-ups, are omitted.
    """
    if figure not in _BY_TEMPERATURE:
        raise InputError.of("figure", figure, f"one of {', '.join(_BY_TEMPERATURE)}")
    label, of = _BY_TEMPERATURE[figure]
    series: dict[tuple[str, int], list[tuple[float, float, float, float]]] = {}
    names = {}
    for row in _checked(found).rows:
        values = of(row)
        if not (math.isnan(values[0]) or (figure == "speedup" and row.invalid)):
            series.setdefault((row.draft, row.gamma), []).append((row.temperature, *values))
            names[row.draft, row.gamma] = _name(row, found.rows)
    if not series:
        raise InputError(f"no row has a {label}: there is nothing to draw")
    ax = axes(ax, (7.0, 4.2))
    for (key, points), look in zip(series.items(), looks(), strict=False):
        x, y, low, high = np.array(sorted(points)).T
        ax.plot(x, y, **look.line, linewidth=1.2)
        mark(ax, x, y, look, y_bounds=[low, high], label=names[key])
    if figure == "speedup":
        ax.axhline(1.0, color=GREY, linestyle="--", linewidth=1.2, label="plain decoding")
    label_axes(ax, f"{label[0].upper()}{label[1:]}, by temperature", "temperature", label)
    legend(ax)
    return ax


@styled
def comparison_of_costs(
    found: Comparison, *, temperature: float | None = None, ax: Axes | None = None
) -> Axes:
    """Cost and yield of rounds: seconds of a round over t(1), and its tokens.

    A round costs drafting plus a target pass with all its rows, in units of a plain target pass. Below the
    dashed line, a round yields fewer tokens than plain decoding in the same time.
    """
    rows = _rows(found, temperature)
    ax = axes(ax, (7.0, 4.2))
    most = 1.0
    for row, look in zip(rows, looks(), strict=False):
        if row.draft_ratio is None or row.verify_ratio is None:  # not timed
            continue
        x = row.draft_ratio + row.verify_ratio
        c = "" if row.c is None else f", c = {row.c:.3f}"
        alpha = "" if row.alpha is None else f", α = {row.alpha:.2f}"
        mark(
            ax, [x], [row.tokens_per_call], look, y_bounds=[[row.tokens_low], [min(row.tokens_high, 99.0)]],
            label=f"{_name(row, rows)}{alpha}{c}",
        )  # fmt: skip
        most = max(most, x)
    ax.plot([0.0, 1.1 * most], [0.0, 1.1 * most], "--", color=GREY, linewidth=1.2, label="plain decoding")
    label_axes(
        ax, f"Yield and cost of rounds, T = {rows[0].temperature:g}",
        "time of a round, drafting and verification, over t(1)", "tokens per pass",
    )  # fmt: skip
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    legend_below(ax, 2)
    return ax


def _checked(found: Comparison) -> Comparison:
    if not isinstance(found, Comparison):
        raise InputError.of("found", found, "a Comparison", found=type_of(found))
    return found


def _rows(found: Comparison, temperature: float | None, *, timed: bool = True) -> list[ExperimentRow]:
    """Return the rows of one temperature."""
    wanted = _checked(found).temperatures[0] if temperature is None else temperature
    rows = [row for row in found.rows if row.temperature == wanted]
    if not rows:
        known = ", ".join(f"{one:g}" for one in found.temperatures)
        raise InputError.of("temperature", temperature, f"one of {known}")
    if timed and not found.plain_tokens_per_s:
        raise InputError("the Comparison has no times (timing=False): there is no speed to draw")
    return rows


def _name(row: ExperimentRow, rows: Sequence[ExperimentRow]) -> str:
    """Return the draft's name, with its gamma if there are several."""
    several = any(one.draft == row.draft and one.gamma != row.gamma for one in rows)
    return f"{row.draft}, γ = {row.gamma}" if several else row.draft


def _mark_speedup(ax: Axes, row: ExperimentRow, y: float, look: Look, label: str | None = None) -> None:
    """Mark a measured speed-up with minimum and maximum; a measurement error is a gray cross."""
    speedup = row.timed
    if speedup.invalid:
        ax.plot([speedup.median], [y], "x", color=GREY, markersize=9.0, label=_INVALID)
    else:
        mark(ax, [speedup.median], [y], look, x_bounds=[[speedup.low], [speedup.high]], label=label)


_Values = Callable[[ExperimentRow], tuple[float, float, float]]
_BY_TEMPERATURE: dict[str, tuple[str, _Values]] = {
    "tokens_per_call": (
        "tokens per pass", lambda row: (row.tokens_per_call, row.tokens_low, row.tokens_high),
    ),
    "alpha": ("acceptance rate α", lambda row: row.rates),
    "speedup": (
        "speed-up over plain decoding", lambda row: (row.timed.median, row.timed.low, row.timed.high),
    ),
}  # fmt: skip
"""Statistics with their intervals; NaN if missing."""


def _legend_once(ax: Axes) -> None:
    """Draw a legend with each label once."""
    handles, labels = ax.get_legend_handles_labels()
    once: dict[str, Any] = {}
    for handle, label in zip(handles, labels, strict=True):
        once.setdefault(label, handle)
    legend_below(ax, 1, handles=list(once.values()), labels=list(once))
