"""A small table, for terminals, Markdown and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Table", "Tabular"]


@dataclass(frozen=True)
class Table:
    """Cells that are text already.

    Attributes
    ----------
    title : str
    head : tuple of str
    rows : sequence of tuple of str
        Each as long as the head. The first column is set to the left, the others to the right.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def text(self) -> str:
        """In columns of a fixed width."""
        widths = [max(len(row[i]) for row in (self.head, *self.rows)) for i in range(len(self.head))]
        lines = [self.title]
        for first, *others in (self.head, *self.rows):
            cells = [first.ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """With pipes, the title in bold above."""
        rule = "|".join(["---", *["---:"] * (len(self.head) - 1)])
        lines = [f"**{self.title}**", "", _piped(self.head), f"|{rule}|", *map(_piped, self.rows)]
        return "\n".join(lines)

    def html(self) -> str:
        """A fragment; the page's own style sets it."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.head)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        return f"<table><caption>{escape(self.title)}</caption><tr>{head}</tr>{rows}</table>"


class Tabular:
    """What has a `table` is shown as it, in terminals and notebooks."""

    __slots__ = ()

    def table(self) -> Table:
        """What is shown."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
