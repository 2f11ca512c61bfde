"""`Table` for terminals, Markdown and notebooks, and base classes of results shown as tables."""

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
    "! measurement error, for example on a busy machine: verifying several tokens takes at least as "
    "long as computing one"
)

Column: TypeAlias = tuple[str, Callable[[Any], str]]
"""(head of a column, function from a row to its cell)."""


@dataclass(frozen=True)
class Table:
    """A table of text cells; control characters are made visible.

    Each of the `rows` is as long as the `head`. The first column is left-aligned, the others right-aligned.
    `optional` are the columns to drop on narrow terminals, the most important first.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    optional: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, title: str, rows: Iterable[Any], columns: Sequence[Column], optional: tuple[int, ...] = ()
    ) -> Table:
        """Make a table with a line for each of `rows`."""
        body = [tuple(cell(row) for _, cell in columns) for row in rows]
        return cls(title, tuple(head for head, _ in columns), body, optional)

    def text(self, width: int | None = None) -> str:
        """Format in columns, dropping `optional` ones, least important first, until lines fit `width`."""
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
            lines.append(f"(hidden columns: {', '.join(left_out)}; a wider terminal or --json has them)")
        return "\n".join(lines)

    @property
    def has_marks(self) -> bool:
        """Whether a cell is marked as a measurement error, see `marked`."""
        return any(_MARK in cell for row in self.rows for cell in row[1:])

    def markdown(self) -> str:
        """Format as Markdown, with the title in bold above."""
        rule = "|".join(["---", *["---:"] * (len(self.head) - 1)])
        lines = [f"**{self.title}**", "", _piped(self.head), f"|{rule}|", *map(_piped, self.rows)]
        return "\n".join(lines)

    def html(self) -> str:
        """Format as an HTML fragment without styles."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.head)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        title = "<br>".join(map(escape, self.title.splitlines()))
        return f"<table><caption>{title}</caption><tr>{head}</tr>{rows}</table>"


class Tabular(ABC):
    """Base class of a dataclass shown as tables in terminals and notebooks."""

    __slots__ = ()
    _not_in_dict: ClassVar[tuple[str, ...]] = ()
    """Fields that `to_dict` omits."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """Return all tables."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers for JSON: None for NaN and infinities."""
        return {name: value for name, value in record(self).items() if name not in self._not_in_dict}

    def markdown(self) -> str:
        """Format the tables as Markdown."""
        tables = self.tables()
        return "\n\n".join([*(table.markdown() for table in tables), *_footnotes(tables)])

    def plain_text(self, width: int | None = None) -> str:
        """Format the tables for lines of `width` characters, see `Table.text`."""
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
    """Base class of a dataclass shown as one table."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """Return the table."""

    def tables(self) -> list[Table]:
        """Return the one `table`."""
        return [self.table()]


def marked(text: str, invalid: object) -> str:
    """Mark a number if it is a measurement error; a footnote explains the mark."""
    return f"{text}{_MARK}" if invalid else text


def _footnotes(tables: Sequence[Table]) -> list[str]:
    return [_FOOTNOTE] if any(table.has_marks for table in tables) else []


def or_dash(value: float | None, spec: str, unit: str = "", none: str = "–") -> str:
    """Format a number with its unit, or a dash for None and NaN."""
    return none if value is None or math.isnan(value) else f"{value:{spec}}{unit}"


def interval(low: float | None, high: float | None, spec: str = ".3f") -> str:
    """Format the ends of an interval, or a dash."""
    if low is None or high is None or math.isnan(low):
        return "–"
    return f"{low:{spec}} to {high:{spec}}"


def figure(head: str, name: str, spec: str, unit: str = "", none: str = "–") -> Column:
    """Return a column for a numeric attribute of the rows."""
    return head, lambda row: or_dash(getattr(row, name), spec, unit, none)


def bounds(head: str, name: str, spec: str = ".3f") -> Column:
    """Return a column for an interval, the attributes `name`_low and `name`_high of the rows."""
    return head, lambda row: interval(getattr(row, f"{name}_low"), getattr(row, f"{name}_high"), spec)


def tables_by_position(
    title: str, head: tuple[str, ...], rows: Sequence[tuple[Any, ...]], spec: str
) -> list[Table]:
    """Return a table with a column per position; [] if there are none.

    `rows` end with the numbers of their positions; `head` names the cells before them.
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
    """Convert dataclasses, arrays, tuples and paths to JSON types; None for NaN and infinities."""
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
    """Convert a dataclass's fields to JSON types."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def data_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return a `pandas.DataFrame` with a row per dict, and these columns or those of the dicts."""
    try:
        import pandas
    except ImportError:
        needs = "to_pandas needs the package pandas, which is not installed"
        raise MissingPackageError(f"{needs}: pip install 'specdec-cpu[pandas]'") from None
    return pandas.DataFrame(rows, columns=columns)


def figures_frame(rows: Sequence[Any], *properties: str) -> Any:
    """Return a `pandas.DataFrame` of dataclasses' numbers and these properties; NaN for None.

    Tokens per second become their median, a `Speedup` its columns; other tuples are omitted.
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
