"""The loss curve of a training as a picture."""

from __future__ import annotations

from pathlib import Path

from specdec.plot.style import looks, pyplot, styled
from specdec.training.loop import LossCurve

__all__ = ["draw_losses"]


@styled
def draw_losses(curve: Path, picture: Path) -> None:
    """Draw the loss and alpha over the steps, as a PNG file.

    Raises
    ------
    MissingPackageError
        matplotlib is not installed.
    """
    rows = LossCurve.read(curve)
    steps = [row[0] for row in rows]
    figure, (above, below) = pyplot().subplots(2, 1, figsize=(7.0, 5.5), layout="constrained", sharex=True)
    styles = looks()
    look = next(styles)
    above.plot(steps, [row[2] for row in rows], color=look.colour, linestyle=look.dashes)
    above.set_ylabel("loss")
    for column, label in ((3, "greedy"), (4, "temperature 1")):
        look = next(styles)
        below.plot(
            steps, [row[column] for row in rows], color=look.colour, linestyle=look.dashes, label=label
        )
    below.set_ylabel("alpha, some held-out texts")
    below.set_xlabel("step")
    below.legend()
    figure.savefig(picture, dpi=120)
    pyplot().close(figure)
