"""Reports of benchmarks: medians with their spread, tables, and result files.

A report is printed in Markdown as it grows. ``--save`` also writes
``results/<date>-<machine>/<name>.md``, and the unrounded numbers of its tables to ``<name>.csv``.
"""

from __future__ import annotations

import csv
import datetime
import functools
import os
import platform
import re
import shlex
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarize values, at least one."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))

    def cells(self, column: str) -> dict[str, Any]:
        """Return columns of a CSV file."""
        return {column: self.median, f"{column} min": self.low, f"{column} max": self.high}

    def text(self, digits: str) -> str:
        """Return a table cell."""
        return f"{self.median:{digits}} ({self.low:{digits}} to {self.high:{digits}})"


@dataclass(frozen=True)
class Speedup(Spread):
    """Time of plain over speculative decoding, for the same number of tokens.

    A forward pass that verifies drafts takes at least as long as a plain one. So a speed-up above the tokens
    per forward pass is a measurement error, and is not reported.
    """

    tokens_per_call: float
    invalid: bool

    @classmethod
    def over(cls, ratios: Sequence[float], tokens_per_call: Sequence[float]) -> Speedup:
        """Summarize ratios and tokens per pass of all repeats."""
        above = [ratio / tokens for ratio, tokens in zip(ratios, tokens_per_call, strict=True)]
        spread = Spread.of(ratios)
        return cls(
            spread.median, spread.low, spread.high,
            statistics.mean(tokens_per_call), statistics.median(above) > 1.0,
        )  # fmt: skip

    def reason(self, digits: str = ".2f") -> str:
        """Return why the speed-up is invalid; empty if it is valid."""
        if not self.invalid:
            return ""
        return f"invalid: {self.median:{digits}} is above {self.tokens_per_call:{digits}} tokens per pass"

    def cells(self, column: str) -> dict[str, Any]:
        """Return columns of a CSV file, without numbers if invalid."""
        if self.invalid:
            return {column: None, f"{column} invalid": self.reason(".4f")}
        return super().cells(column)

    def text(self, digits: str) -> str:
        """Return a table cell, the reason if invalid."""
        return (
            self.reason(digits) or f"**{self.median:{digits}}** ({self.low:{digits}} to {self.high:{digits}})"
        )


class Table:
    """A table printed row by row; see :meth:`Report.table`."""

    def __init__(self, report: Report, title: str, columns: Mapping[str, str]) -> None:
        self.title, self.columns = title, dict(columns)
        self.rows: list[tuple[Any, ...]] = []
        self._report = report
        if title:
            report.say(f"\n## {title}")
        report.say(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")

    def row(self, *cells: Any) -> None:
        """Add a row of numbers, Spreads, texts or None."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)
        texts = (_text(cell, digits) for cell, digits in zip(cells, self.columns.values(), strict=True))
        self._report.say(f"| {' | '.join(texts)} |")

    def records(self) -> list[dict[str, Any]]:
        """Return the rows for a CSV file."""
        found = []
        for cells in self.rows:
            record: dict[str, Any] = {"table": self.title}
            for column, cell in zip(self.columns, cells, strict=True):
                record |= cell.cells(column) if isinstance(cell, Spread) else {column: cell}
            found.append(record)
        return found


def _text(cell: Any, digits: str) -> str:
    if cell is None or cell != cell:
        return "–"
    if isinstance(cell, Spread):
        return cell.text(digits)
    return cell.replace("|", "\\|") if isinstance(cell, str) else f"{cell:{digits}}"


class Report:
    """The output of one benchmark.

    Parameters
    ----------
    name : str
        Name of the benchmark and the files, with an optional label.
    words : sequence of str
        Command line after ``python -m benchmarks``.
    folder : Path, optional
        Folder for files; None: print only.
    machine : str
        Name of the machine.
    """

    def __init__(self, name: str, words: Sequence[str], folder: Path | None, machine: str) -> None:
        self.name, self.folder = name, folder
        self.lines: list[str] = []
        self.tables: list[Table] = []
        if folder is not None and (folder / f"{name}.md").exists():
            raise SystemExit(f"{folder.name}/{name}.md exists: add a label with --save LABEL")
        self.say(f"# {name}\n\n`python -m benchmarks {shlex.join(map(_without_path, words))}`\n")
        self.say(f"- machine: {machine}, {describe_machine()}")
        self.say(f"- date: {datetime.date.today()}; commit {commit(Path(__file__).parent)}")
        self.say(f"- load average at the beginning: {_load()}")

    def say(self, text: str = "") -> None:
        """Print one line or several."""
        print(text, flush=True)
        self.lines.append(text)

    def table(self, columns: Mapping[str, str], title: str = "") -> Table:
        """Begin a table with number formats by column name."""
        table = Table(self, title, columns)
        self.tables.append(table)
        return table

    def close(self) -> None:
        """Report the load of the machine and write the files."""
        self.say(f"\nLoad average at the end: {_load()}")
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{self.name}.md").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        records = [record for table in self.tables for record in table.records()]
        columns = list(dict.fromkeys(column for record in records for column in record))
        with open(self.folder / f"{self.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)
        print(f"Written to {self.folder.name}/{self.name}.md and .csv")


def result_folder(machine: str) -> Path:
    """Return today's folder of a machine."""
    return RESULTS / f"{datetime.date.today()}-{machine}"


def processor() -> str:
    """The processor's name."""
    name = _cpuinfo().get("model name") or platform.processor() or platform.machine()
    return re.sub(r"\s+", " ", name)


def machine_name() -> str:
    """A short name made of the processor's: letters, digits and dashes."""
    words = re.sub(r"\((R|TM)\)|@.*|\b(CPU|Processor|\d+-Core)\b", " ", processor(), flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "unknown"


def describe_machine() -> str:
    """Processor, cores, the kernels in use."""
    from specdec import _core

    info = _cpuinfo()
    family = f" (family {info['cpu family']}, model {info['model']})" if "cpu family" in info else ""
    return f"{processor()}{family}, {len(allowed_cores())} cores, kernels {_core.kernels()}"


@functools.cache
def allowed_cores() -> tuple[int, ...]:
    """Return the cores this process could use at the first call, before threads were pinned."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def commit(folder: Path) -> str:
    """Return the commit of a folder in a git checkout."""
    try:
        head = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}{' and changes' if changed else ''}"


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _load() -> str:
    return ", ".join(f"{value:.2f}" for value in os.getloadavg()) + " (1, 5, 15 minutes)"


def _without_path(word: str) -> str:
    return "PATH" if os.sep in word else word
