"""Figure 5 of the paper: draft and target forward passes over time."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.errors import InputError
from specdec.plot.points import Run, labels_of, name_of, trace_of
from specdec.plot.style import BLUE, GREY, ORANGE, SKY, Axes, axes, label_axes, legend_below, styled
from specdec.trace import Trace

_WIDTH = 10.0  # inches

# Blocks differ in height as well as in color.
_BLOCKS = {
    "prompt": ("prompt, both models", ORANGE, 0.72),
    "draft": ("draft forward pass", SKY, 0.44),
    "target": ("target forward pass", BLUE, 0.72),
    "other": ("sampling, acceptance", GREY, 0.16),
}


def blocks(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """Return (begin, duration) in milliseconds of every block of a run, by type.

    A round is its draft passes, of equal length each, then the target's pass, then the rest, which includes
    the time between draft passes.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _BLOCKS}
    now = 0.0

    def add(name: str, seconds: float) -> None:
        nonlocal now
        if seconds > 0.0:
            found[name].append((now, seconds * 1e3))
            now += seconds * 1e3

    add("prompt", trace.prefill_s)
    for round_ in trace.rounds:
        for _ in range(round_.n_drafted):
            add("draft", round_.draft_s / round_.n_drafted)
        add("target", round_.verify_s)
        add("other", round_.other_s)
    return found


@styled
def timeline(
    *runs: Run, labels: Sequence[str] | None = None, max_ms: float | None = None, ax: Axes | None = None
) -> Axes:
    """Draw Figure 5 from real runs: draft and target forward passes on a time axis, one row per run.

    Durations are from the trace: each round's `verify_s` and `other_s`, and its `draft_s` in equal blocks,
    one per draft token. For the paper's figure, pass the same prompt at two gammas and without a draft; the
    parts of a list follow each other. The axis ends at `max_ms`, or with the longest run.
    """
    if not runs:
        raise InputError("there is no run to draw; pass a Result or a Trace")
    if max_ms is not None and not max_ms > 0.0:
        raise InputError.of("max_ms", max_ms, "a positive number of milliseconds")
    traces = [trace_of(run, timed=True) for run in runs]
    names = labels_of(labels, [name_of(trace) for trace in traces])
    ax = axes(ax, (_WIDTH, 1.3 + 0.75 * len(traces)))
    width_ms = max_ms or 1e3 * max(trace.total_s for trace in traces)
    labeled = set()
    for row, trace in enumerate(traces):
        for name, spans in blocks(trace).items():
            if not spans:
                continue
            block_label, color, height = _BLOCKS[name]
            # White seams separate successive passes, and take at most a fraction of a short one.
            points = [duration / width_ms * _WIDTH * 72.0 for _, duration in spans]
            ax.broken_barh(
                spans, (row - height / 2.0, height), facecolors=color, edgecolors="white",
                linewidths=[min(0.6, 0.12 * width) for width in points],
                label="_" if name in labeled else block_label,
            )  # fmt: skip
            labeled.add(name)
    ticks = [
        f"{name}\n{trace.n_tokens} tokens, {trace.n_calls}\ntarget passes, {trace.total_s * 1e3:.1f} ms"
        for name, trace in zip(names, traces, strict=True)
    ]
    label_axes(
        ax, "Forward passes of draft and target", "time in milliseconds", "",
        xlim=(0.0, width_ms), ylim=(len(traces) - 0.5, -0.5),
    )  # fmt: skip
    ax.set_yticks(range(len(traces)), ticks)
    ax.tick_params(axis="y", length=0.0)
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    legend_below(ax, 2)
    return ax
