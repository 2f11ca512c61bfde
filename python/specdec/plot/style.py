"""Style of the figures, and axes to draw on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from specdec.errors import InputError, MissingPackageError, type_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    try:
        from matplotlib.axes import Axes
    except ImportError:  # `pyplot` says so when something is drawn
        Axes = Any

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's colors (https://jfly.uni-koeln.de/color/), distinct under all types of color blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"

SEQUENTIAL = "cividis"  # perceptually uniform, also under color blindness

_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)  # yellow is too light for lines on white
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, and has Greek letters and signs
    "font.size": 10.0, "axes.titlesize": 11.0, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8, "lines.linewidth": 1.8, "lines.markersize": 7.0, "legend.frameon": False,
    "legend.handlelength": 2.6, "figure.dpi": 110.0,
}  # fmt: skip


class Look(NamedTuple):
    """Look of a series: color, line style and marker all differ from the others'."""

    color: str
    dashes: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Return matplotlib keyword arguments for a line with this look."""
        return {"color": self.color, "linestyle": self.dashes}


def looks() -> Iterator[Look]:
    """Yield distinct looks; the first 28 pairs of color and line style differ."""
    return map(Look, cycle(_COLORS), cycle(_DASHES), cycle(_MARKERS))


def pyplot() -> Any:
    """Import matplotlib.pyplot."""
    try:
        import matplotlib.pyplot
    except ImportError:
        message = "specdec.plot needs matplotlib, which is not installed: pip install 'specdec-cpu[plot]'"
        raise MissingPackageError(message) from None
    return matplotlib.pyplot


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to draw with `STYLE`, leaving matplotlib's settings unchanged."""

    @wraps(draw)
    def draw_styled(*args: P.args, **kwargs: P.kwargs) -> R:
        settings = pyplot().rcParams
        # Not rc_context: it would also undo settings that a notebook makes for its first figure.
        before = {name: settings[name] for name in STYLE}
        settings.update(STYLE)
        try:
            return draw(*args, **kwargs)
        finally:
            settings.update(before)

    return draw_styled


def axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return `ax`, or the axes of a new figure of this size in inches."""
    if ax is None:
        axes: Axes = pyplot().subplots(figsize=size, layout="constrained")[1]
        return axes
    if not isinstance(ax, Axes):
        raise InputError.of("ax", ax, "matplotlib Axes", found=type_of(ax))
    return ax


def label_axes(ax: Axes, title: str, x: str, y: str, *, whole: str = "", **limits: Any) -> None:
    """Set title, axis labels and limits; axes in `whole` have integer ticks."""
    ax.set(title=title, xlabel=x, ylabel=y, **limits)
    for name in whole:
        getattr(ax, f"{name}axis").get_major_locator().set_params(integer=True, min_n_ticks=1)


def mark(
    ax: Axes, x: ArrayLike, y: ArrayLike, look: Look, *, x_bounds: ArrayLike | None = None,
    y_bounds: ArrayLike | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Draw measured points [n] with interval bounds [2, n]; return the points alone."""
    bounds = {
        name: None if ends is None else np.abs(np.asarray(ends, dtype=np.float64) - np.asarray(values))
        for name, ends, values in (("xerr", x_bounds, x), ("yerr", y_bounds, y))
    }
    ax.errorbar(x, y, **bounds, fmt="none", ecolor=look.color, elinewidth=1.2, capsize=4.0, zorder=3)
    (points,) = ax.plot(
        x, y, look.marker, color=look.color, linestyle="", markeredgecolor="white", markeredgewidth=0.8,
        zorder=4, **options,
    )  # fmt: skip
    return points


def legend(ax: Axes, **options: Any) -> None:
    """Draw a legend to the right of the axes, where it covers no data."""
    ax.legend(**{"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.3, **options})


def legend_below(ax: Axes, n_columns: int, **options: Any) -> None:
    """Draw a legend below the label of the x axis, for long entries."""
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0.0, -0.55, ax.figure.dpi_scale_trans)  # inches
    anchor = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "bbox_transform": below}
    ax.legend(**anchor, ncols=n_columns, borderaxespad=0.0, **options)
