"""A small table, for terminals, Markdown and notebooks, and results that are shown as tables."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from specdec.errors import MissingPackageError, printable
from specdec.fields import without_nan

_MARK: Final = " !"
_FOOTNOTE: Final = (
    "! an error of measurement, as on a busy machine: the target takes at least as long to verify several "
    "tokens as to compute one"
)

Column: TypeAlias = tuple[str, Callable[[Any], str]]
"""The head of a column, and the function that makes its cell of a row."""


@dataclass(frozen=True)
class Table:
    """Cells that are text already; control characters of a caller's file are shown as such.

    Each of the `rows` is as long as the `head`. The first column is aligned left, the others right.
    `optional` are columns that a narrow terminal does without, the one to keep longest first.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    optional: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, title: str, rows: Iterable[Any], columns: Sequence[Column], optional: tuple[int, ...] = ()
    ) -> Table:
        """A table with a line for each of `rows`."""
        body = [tuple(cell(row) for _, cell in columns) for row in rows]
        return cls(title, tuple(head for head, _ in columns), body, optional)

    def text(self, width: int | None = None) -> str:
        """In columns; those of `optional` are left out, the last first, until a line fits a given `width`."""
        cells = [[printable(cell) for cell in row] for row in (self.head, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        shown = list(range(len(self.head)))
        if width is not None:
            for i in reversed(self.optional):
                if sum(widths[k] for k in shown) + 2 * (len(shown) - 1) <= width:
                    break
                shown.remove(i)
        lines = [self.title]
        for row in cells:
            line = (row[i].rjust(widths[i]) if i else row[i].ljust(widths[i]) for i in shown)
            lines.append("  ".join(line).rstrip())
        if len(shown) < len(self.head):
            left_out = [name for i, name in enumerate(self.head) if i not in shown]
            lines.append(f"(columns left out: {', '.join(left_out)}; a wider terminal or --json has them)")
        return "\n".join(lines)

    @property
    def has_marks(self) -> bool:
        """Whether a cell is marked as an error of measurement, see `marked`."""
        return any(_MARK in cell for row in self.rows for cell in row[1:])

    def markdown(self) -> str:
        """With pipes, the title in bold above."""
        rule = "|".join(["---", *["---:"] * (len(self.head) - 1)])
        lines = [f"**{self.title}**", "", _piped(self.head), f"|{rule}|", *map(_piped, self.rows)]
        return "\n".join(lines)

    def html(self) -> str:
        """A fragment; the page's own style sets it."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.head)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        title = "<br>".join(map(escape, self.title.splitlines()))
        return f"<table><caption>{title}</caption><tr>{head}</tr>{rows}</table>"


class Tabular(ABC):
    """A dataclass that is shown as its tables, in terminals and notebooks."""

    __slots__ = ()
    _not_in_dict: ClassVar[tuple[str, ...]] = ()
    """Fields that `to_dict` leaves out."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """All that is shown."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON: None for NaN and infinities."""
        return {name: value for name, value in record(self).items() if name not in self._not_in_dict}

    def markdown(self) -> str:
        """The tables in Markdown."""
        tables = self.tables()
        return "\n\n".join([*(table.markdown() for table in tables), *_footnotes(tables)])

    def plain_text(self, width: int | None = None) -> str:
        """The tables for lines of so many characters, see `Table.text`."""
        tables = self.tables()
        return "\n\n".join([*(table.text(width) for table in tables), *_footnotes(tables)])

    def __str__(self) -> str:
        return self.plain_text()

    def __repr__(self) -> str:
        return f"<specdec.{type(self).__name__}: {self.tables()[0].title.splitlines()[0]}>"

    def _repr_html_(self) -> str:
        tables = self.tables()
        notes = (f"<p>{escape(note)}</p>" for note in _footnotes(tables))
        return "".join([*(table.html() for table in tables), *notes])


class OneTable(Tabular):
    """A dataclass that is shown as one table."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """What is shown."""

    def tables(self) -> list[Table]:
        """The one `table`."""
        return [self.table()]


def marked(text: str, invalid: object) -> str:
    """A number for a table, with a mark if it is an error of measurement; a footnote explains the mark."""
    return f"{text}{_MARK}" if invalid else text


def _footnotes(tables: Sequence[Table]) -> list[str]:
    return [_FOOTNOTE] if any(table.has_marks for table in tables) else []


def or_dash(value: float | None, spec: str, unit: str = "", none: str = "–") -> str:
    """The number with its unit, or a dash where there is none."""
    return none if value is None or math.isnan(value) else f"{value:{spec}}{unit}"


def interval(low: float | None, high: float | None, spec: str = ".3f") -> str:
    """The ends of an interval, or a dash where there is none."""
    if low is None or high is None or math.isnan(low):
        return "–"
    return f"{low:{spec}} to {high:{spec}}"


def figure(head: str, name: str, spec: str, unit: str = "", none: str = "–") -> Column:
    """A column of a figure of the rows."""
    return head, lambda row: or_dash(getattr(row, name), spec, unit, none)


def bounds(head: str, name: str, spec: str = ".3f") -> Column:
    """A column of the interval of a figure, the attributes `name`_low and `name`_high of the rows."""
    return head, lambda row: interval(getattr(row, f"{name}_low"), getattr(row, f"{name}_high"), spec)


def tables_by_position(
    title: str, head: tuple[str, ...], rows: Sequence[tuple[Any, ...]], spec: str
) -> list[Table]:
    """A table with a column for each position; [] where there is none.

    `rows` end with the numbers of their positions, and `head` names what is before them.
    """
    n_positions = max((len(numbers) for *_, numbers in rows), default=0)
    if not n_positions:
        return []
    body = []
    for *before, numbers in rows:
        cells = (f"{number:{spec}}" for number in numbers)
        body.append((*before, *cells, *[""] * (n_positions - len(numbers))))
    return [Table(title, (*head, *(str(i + 1) for i in range(n_positions))), body)]


def plain(value: Any) -> Any:
    """Dataclasses, arrays, tuples and paths as what JSON has; None for NaN and infinities."""
    if callable(as_dict := getattr(value, "to_dict", None)):
        return as_dict()
    if is_dataclass(value):
        return record(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return without_nan(value.tolist())
    return str(value) if isinstance(value, Path) else without_nan(value)


def record(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as what JSON has."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def data_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """A `pandas.DataFrame` with a row for each dict, with these columns or those of the dicts."""
    try:
        import pandas
    except ImportError:
        needs = "to_pandas needs the package pandas, which is not installed"
        raise MissingPackageError(f"{needs}: pip install 'specdec-cpu[pandas]'") from None
    return pandas.DataFrame(rows, columns=columns)


def figures_frame(rows: Sequence[Any], *properties: str) -> Any:
    """A `pandas.DataFrame` with the figures of dataclasses, and these properties of them; NaN for None.

    Of tokens per second it has the median, of a `Speedup` its columns; other tuples are left out.
    """
    lines = []
    for row in rows:
        line: dict[str, Any] = {}
        for name in (*(field.name for field in fields(row)), *properties):
            value = getattr(row, name)
            if callable(columns := getattr(value, "columns", None)):
                line |= columns(name)
            elif name.endswith("tokens_per_s"):
                line[name] = statistics.median(value or (math.nan,))
            elif not isinstance(value, tuple):
                line[name] = math.nan if value is None else value
        lines.append(line)
    return data_frame(lines)


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(printable(cell).replace('|', chr(92) + '|') for cell in cells)} |"
