"""Heat map of a text: its tokens, colored by beta, show where the draft fails."""

from __future__ import annotations

import html as html_escapes
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specdec.analysis.measure import Measurement
from specdec.checks import as_integer, check_integer
from specdec.decoding.result import Result
from specdec.display.rounds import Figure, visible
from specdec.errors import InputError, shown, type_of
from specdec.plot.points import check_distribution
from specdec.plot.style import SEQUENTIAL, Axes, pyplot, styled

if TYPE_CHECKING:
    from matplotlib.text import Text

_TITLE = "Where the draft fails: dark tokens"
_MEANING = "β: acceptance probability of the draft token"
_UNJUDGED = "bonus token: not judged"
_PART = "·"  # shown for a token inside a character
_FONT = "DejaVu Sans Mono"  # comes with matplotlib
_FONT_SIZE = 10.0  # points, in a new figure
_ADVANCE = 0.602  # width of its characters, in ems
_LINE = 1.75  # from line to line, in ems


class Cell(NamedTuple):
    """A token of the text: what it shows, beta at its position (None if not judged), its id."""

    text: str
    beta: float | None
    token: int


class Html(str):
    """HTML that notebooks render."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


@styled
def heat_map(
    source: Result | Measurement,
    *,
    prompt: int = 0,
    temperature: float | None = None,
    n_tokens: int | None = None,
    columns: int = 84,
    ax: Axes | None = None,
) -> Axes:
    """Draw a text with each token colored by beta at its position, dark where the draft fails.

    beta is the probability that the draft's token is accepted there (Definition 3.1). In a run, a correction
    has the beta of the token it replaced; a bonus token has none and is white. In trees and under the coupled
    rule a run's betas are 0 and 1 (`Round.betas`).

    Parameters
    ----------
    source : Result or Measurement
        A run that drafted, or a measurement, which judges every position.
    prompt : int, default 0
        Index of the measurement's text.
    temperature : float, optional
        Its temperature; required if there are several.
    n_tokens : int, optional
        Number of tokens to show; all by default.
    columns : int, default 84
        Characters per line, at least 50; the font size adapts.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Rectangle

    cells = cells_of(source, prompt, temperature, n_tokens)
    columns = check_integer("columns", columns, 50)
    families = _families({character for cell in cells for character in cell.text})
    cells = [cell._replace(text=_with_glyphs(cell.text, families)) for cell in cells]
    placed = layout(cells, columns)
    n_rows = placed[-1][0] + 1
    columns = max(columns, *(column + _width(cell.text) for _, column, cell in placed))
    if ax is None:
        ax, key = _own_axes(n_rows, columns)
    else:
        key = ax.inset_axes((0.0, -0.16, 0.45, 0.05))
    for row, column, cell in placed:
        back = (1.0, 1.0, 1.0) if cell.beta is None else _color(cell.beta)
        ax.add_patch(
            Rectangle(
                (column, row), _width(cell.text), 1.0, facecolor=back, linewidth=0.8,
                edgecolor="#B0B0B0" if cell.beta is None else "white", zorder=2 if cell.beta is None else 1,
            )
        )  # fmt: skip
        ax.add_artist(_cell_text(column, row, cell.text, columns, n_rows, families, _ink(back)))
    ax.set(xlim=(0.0, columns), ylim=(n_rows, 0.0), title=_TITLE)
    ax.set_axis_off()
    mappable = ScalarMappable(cmap=SEQUENTIAL)
    mappable.set_clim(0.0, 1.0)
    bar = ax.figure.colorbar(mappable, cax=key, orientation="horizontal", ticks=[0.0, 0.5, 1.0], format="%g")
    bar.set_label(_MEANING, loc="left")
    if any(cell.beta is None for cell in cells):
        patch = Rectangle((0, 0), 1, 1, facecolor="white", edgecolor="#B0B0B0")
        key.legend([patch], [_UNJUDGED], loc="center left", bbox_to_anchor=(1.05, 0.5), handlelength=1.4)
    return ax


def heat_map_html(
    source: Result | Measurement,
    *,
    prompt: int = 0,
    temperature: float | None = None,
    n_tokens: int | None = None,
) -> Html:
    """Return `heat_map` as HTML in the same colors, with a tooltip per token; notebooks render it."""
    escape = html_escapes.escape
    cells = cells_of(source, prompt, temperature, n_tokens)
    spans = []
    for cell in cells:
        if cell.beta is None:
            style, what = "outline: 1px solid #B0B0B0; outline-offset: -1px", _UNJUDGED
        else:
            back = _color(cell.beta)
            style, what = f"background: {_hex(back)}; color: {_ink(back)}", f"β = {cell.beta:.3f}"
        title = escape(f"id {cell.token}: {what}")
        line_end = "<br>" if cell.text.endswith("⏎") else "<wbr>"
        spans.append(f'<span style="{style}" title="{title}">{escape(cell.text)}</span>{line_end}')
    scale = ", ".join(_hex(_color(i / 8.0)) for i in range(9))
    bar = f"display: inline-block; width: 12em; height: 0.8em; background: linear-gradient(to right, {scale})"
    unjudged = f" · outlined: {escape(_UNJUDGED)}" if any(cell.beta is None for cell in cells) else ""
    key = f'<div>β: 0 <span style="{bar}"></span> 1{unjudged}</div>'
    text_style = "font-family: monospace; line-height: 1.7; white-space: pre-wrap; overflow-wrap: anywhere"
    return Html(
        f'<div class="specdec-heat"><div><b>{escape(_TITLE)}</b></div>{key}'
        f'<div style="{text_style}">{"".join(spans)}</div></div>'
    )


def cells_of(
    source: Result | Measurement,
    prompt: int = 0,
    temperature: float | None = None,
    n_tokens: int | None = None,
) -> list[Cell]:
    """Return the tokens of a text with beta at each position."""
    if n_tokens is not None:
        n_tokens = check_integer("n_tokens", n_tokens, 1)
    if isinstance(source, Measurement):
        check_distribution(source)
        cells = _measured_cells(source, prompt, temperature)
    elif isinstance(source, Result):
        cells = _run_cells(source)
    else:
        raise InputError.of("source", source, "a Result or a Measurement", found=type_of(source))
    if not cells:
        raise InputError("the text has no tokens to draw")
    return cells[:n_tokens]


def _run_cells(result: Result) -> list[Cell]:
    if not result.trace.n_drafted:
        raise InputError("the run drafted nothing (plain decoding): its tokens have no beta")
    figure, cells = Figure.of(result), []
    for round_ in result.trace.rounds:
        pieces = [piece for piece in figure.pieces(round_) if piece.status not in ("rejected", "unseen")]
        for position, piece in enumerate(pieces[: round_.kept]):
            beta = min(1.0, round_.betas[position]) if position < len(round_.betas) else None
            cells.append(Cell(piece.text or _PART, beta, piece.token))
    return cells


def _measured_cells(measurement: Measurement, prompt: int, temperature: float | None) -> list[Cell]:
    temperatures = list(measurement.betas)
    if temperature is None and len(temperatures) == 1:
        temperature = temperatures[0]
    if temperature not in temperatures:
        raise InputError(f"temperature is {shown(temperature)}; the Measurement has {temperatures}")
    n_prompts = len(measurement.prompts)
    if as_integer(prompt) not in range(n_prompts):
        raise InputError.of("prompt", prompt, f"0 to {n_prompts - 1}, a text of the Measurement")
    tokens = measurement.tokens[temperature][prompt]
    betas = np.minimum(1.0, measurement.betas[temperature][prompt]).tolist()
    if measurement.text is None:
        texts = [f" {token}" for token in tokens]
    else:
        texts = [visible(text) for text in measurement.text[temperature][prompt]]
        texts = [text.replace(" ", "␣") if text.isspace() else text or _PART for text in texts]
    return [Cell(*cell) for cell in zip(texts, betas, tokens, strict=True)]


def layout(cells: Iterable[Cell], columns: int) -> list[tuple[int, int, Cell]]:
    """Lay out cells as (row, column, cell) in lines of at most `columns` characters."""
    placed = []
    row = column = 0
    for cell in cells:
        width = _width(cell.text)
        if column and column + width > columns:
            row, column = row + 1, 0
        placed.append((row, column, cell))
        column += width
        if cell.text.endswith("⏎"):
            row, column = row + 1, 0
    return placed


def _width(text: str) -> int:
    """Return the columns of a text: two for East Asian wide characters, none for combining ones."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text if not unicodedata.combining(c))
    return wide + sum(not unicodedata.combining(c) for c in text)


def _color(beta: float) -> tuple[float, float, float]:
    return tuple(pyplot().get_cmap(SEQUENTIAL)(float(beta))[:3])


def _hex(color: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in color)


def _ink(back: Sequence[float]) -> str:
    """Return black or white, whichever has more contrast with `back` (WCAG 2.1, relative luminance)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in back]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.179 else "white"


def _families(characters: set[str]) -> list[str]:
    """Return fonts that together have these characters, as far as available."""
    from matplotlib import font_manager

    families, missing = [_FONT], {character for character in characters if not _has(_FONT, character)}
    known = sorted({entry.name for entry in font_manager.fontManager.ttflist}) if missing else []
    for family in known:
        # The font of last resort has a box for every character.
        if "Last Resort" not in family and (found := {c for c in missing if _has(family, c)}):
            families.append(family)
            missing -= found
    return families


def _has(family: str, character: str) -> bool:
    from matplotlib import font_manager

    path = font_manager.findfont(font_manager.FontProperties(family=[family]))
    font = font_manager.get_font(path)
    return bool(font.scalable and font.get_char_index(ord(character)))


def _with_glyphs(text: str, families: Sequence[str]) -> str:
    r"""Replace characters that no font has by \uXXXX."""
    return "".join(
        c if any(_has(family, c) for family in families) else c.encode("ascii", "backslashreplace").decode()
        for c in text
    )


def _own_axes(n_rows: int, columns: int) -> tuple[Axes, Axes]:
    """Make a new figure of the needed size, with axes for the text and for the key below it."""
    left, top, bottom = 0.15, 0.4, 0.75  # inches around the text
    em = _FONT_SIZE / 72.0
    width, height = columns * _ADVANCE * em, n_rows * _LINE * em
    size = np.array([width + 2.0 * left, height + top + bottom] * 2)
    figure = pyplot().figure(figsize=size[:2])
    ax = figure.add_axes(np.array([left, bottom, width, height]) / size)
    return ax, figure.add_axes(np.array([left, 0.5, 0.4 * width, 0.12]) / size)


def _cell_text(
    column: int, row: int, text: str, columns: int, n_rows: int, families: list[str], ink: str
) -> Text:
    """Make text that fills its cells at any size of the axes."""
    from matplotlib.text import Text

    class CellText(Text):  # type: ignore[misc]  # mypy does not look into matplotlib
        def draw(self, renderer: Any) -> None:
            box = self.axes.bbox
            em = min(box.width / (columns * _ADVANCE), box.height / (n_rows * _LINE))
            self.set_fontsize(em * 72.0 / self.figure.dpi)
            super().draw(renderer)

    cell_text = CellText(
        column, row + 0.72, text, family=families, fontsize=_FONT_SIZE, color=ink, va="baseline",
        ha="left", parse_math=False,
    )  # fmt: skip
    cell_text.set_in_layout(False)
    return cell_text
