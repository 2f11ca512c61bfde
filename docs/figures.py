"""Draw the picture of a run that the README shows, docs/run.png; `make figures` does it.

A line is a round of speculative decoding, as in Figure 1 of arXiv 2211.17192: accepted drafts, rejected
drafts struck out, and the target's own token underlined. The run is a real one of the embedded pair, and the
same on every machine.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.patches import Rectangle
from PIL import Image

import specdec
from specdec.display.rounds import Figure
from specdec.plot import style

PATH = Path(__file__).resolve().with_name("run.png")
PROMPT, GAMMA, SEED, N_ROUNDS = "It was a dark and stormy night, and", 4, 3, 9
TEXT = 8  # column where the text begins

INK = {"accepted": "#BFE5D8", "rejected": "#F3CBB3", "unseen": "#FAE8DE", "target": "#BFDAEC"}
"""Backgrounds: tints of the colors that `specdec.plot` uses."""
NAMES = [
    ("accepted", "drafted, accepted"),
    ("rejected", "drafted, rejected"),
    ("unseen", "drafted after a rejected one"),
    ("target", "the target's own token"),
]
FONT_SIZE, ADVANCE, LINE = 11.0, 0.602, 1.75  # of DejaVu Sans Mono, in ems: a character, a line


def main(path: Path = PATH) -> None:
    """Write the picture."""
    matplotlib.use("Agg")
    target, draft = specdec.embedded_pair(prefill="rows")
    run = specdec.generate(
        target,
        draft,
        PROMPT,
        gamma=GAMMA,
        temperature=0.6,
        repetition_penalty=1.1,
        seed=SEED,
        max_new_tokens=60,
    )
    figure = Figure(run.tokenizer, run.prompt_ids)
    rounds = [(round_, figure.pieces(round_)) for round_ in run.trace.rounds[:N_ROUNDS]]
    longest = max(len(PROMPT), *(sum(len(piece.text) for piece in pieces) for _, pieces in rounds))
    legend = TEXT + longest + 4  # column where the legend begins
    columns = legend + max(len(name) for _, name in NAMES)

    em = FONT_SIZE / 72.0
    size = ((columns + 2) * ADVANCE * em, (len(rounds) + 2.6) * LINE * em)
    fig = pyplot.figure(figsize=size, facecolor="white")
    ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set(xlim=(-1.0, columns + 1.0), ylim=(len(rounds) + 1.8, -0.8))
    ax.set_axis_off()

    for row, (status, name) in enumerate(NAMES):
        write(ax, legend, 1 + 1.4 * row, name, status)
    write(ax, TEXT, 0, PROMPT, None, color=style.GREY)
    for row, (round_, pieces) in enumerate(rounds, start=1):
        write(ax, 0, row, f"{round_.n_accepted} of {round_.n_drafted}", None, color=style.GREY)
        column = TEXT
        for piece in pieces:
            write(ax, column, row, piece.text, piece.status)
            column += len(piece.text)
    n_tokens = sum(round_.kept for round_, _ in rounds)
    total = f"{n_tokens} tokens in {len(rounds)} forward passes of the target"
    write(ax, TEXT, len(rounds) + 1, total, None, color=style.GREY)

    file = io.BytesIO()
    fig.savefig(file, format="png", dpi=160)
    Image.open(file).convert("RGB").quantize(32, dither=Image.Dither.NONE).save(path, "png", optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB")


def write(
    ax: Any, column: float, row: float, text: str, status: str | None, color: str = style.BLACK
) -> None:
    """Text in cells of one character each, on the background of its status."""
    if status is not None:
        box = Rectangle((column, row - 0.46), len(text), 0.86, facecolor=INK[status], edgecolor="white")
        ax.add_patch(box)
    if status in ("rejected", "unseen"):
        ax.hlines(row - 0.02, column, column + len(text), color=style.VERMILION, linewidth=1.2)
    if status == "target":
        ax.hlines(row + 0.3, column, column + len(text), color=style.BLUE, linewidth=1.2)
    for i, character in enumerate(text):
        ax.text(
            column + i + 0.5, row + 0.16, character, color=color, ha="center", va="baseline",
            family="DejaVu Sans Mono", fontsize=FONT_SIZE, parse_math=False,
        )  # fmt: skip


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
