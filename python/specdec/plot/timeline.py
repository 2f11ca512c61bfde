"""Figure 5 of the paper: who computed when."""

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
    "draft": ("run of the draft", SKY, 0.44),
    "target": ("run of the target", BLUE, 0.72),
    "other": ("sampling, acceptance", GREY, 0.16),
}


def blocks(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """(begin, duration) in milliseconds of every block of a run, by name.

    A round is its runs of the draft, of equal length each, then the run of the target, then the rest. The
    rest is measured as a whole; what of it passed between two runs of the draft is drawn with it.
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
    """Figure 5 of the paper from real runs: calls of draft and target on a time axis, a row a run.

    Durations are those of the trace: each round's `verify_s` and `other_s`, and its `draft_s` in as many
    equal blocks as tokens were drafted. For the paper's figure give the same prompt with two gammas and
    without a draft; parts of a list follow each other. The axis ends at `max_ms`, or with the longest run.
    """
    if not runs:
        raise InputError("there is no run to draw; give a Result or a Trace")
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
            # White seams part runs that follow each other, and take no more than a part of a short one.
            points = [duration / width_ms * _WIDTH * 72.0 for _, duration in spans]
            ax.broken_barh(
                spans, (row - height / 2.0, height), facecolors=color, edgecolors="white",
                linewidths=[min(0.6, 0.12 * width) for width in points],
                label="_" if name in labeled else block_label,
            )  # fmt: skip
            labeled.add(name)
    ticks = [
        f"{name}\n{trace.n_tokens} tokens, {trace.n_calls} runs\nof the target, {trace.total_s * 1e3:.1f} ms"
        for name, trace in zip(names, traces, strict=True)
    ]
    label_axes(
        ax, "Who computes when: every run of draft and target", "time in milliseconds", "",
        xlim=(0.0, width_ms), ylim=(len(traces) - 0.5, -0.5),
    )  # fmt: skip
    ax.set_yticks(range(len(traces)), ticks)
    ax.tick_params(axis="y", length=0.0)
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    legend_below(ax, 2)
    return ax
