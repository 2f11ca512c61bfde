"""Interleaved runs of jobs, and shared prompts, models and options of the benchmarks."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import specdec
from benchmarks.report import Spread
from benchmarks.shapes import SHAPES, random_model
from specdec import _core

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

DTYPES = ("f32", "bf16", "int8", "int4")
PROMPTS = (
    "Once upon a time",
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    '"My dear sir," said the old gentleman,',
    "The captain of the ship",
)


def interleave(jobs: Mapping[Key, Callable[[], float]], repeats: int) -> dict[Key, list[float]]:
    """Run all jobs one after another, ``repeats`` times, and return their values.

    The speed of a shared machine changes within seconds; interleaved jobs see the same changes.
    """
    values: dict[Key, list[float]] = {key: [] for key in jobs}
    for _ in range(repeats):
        for key, job in jobs.items():
            values[key].append(job())
    return values


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of ratios, repeat by repeat."""
    return Spread.of(a / b for a, b in zip(over, under, strict=True))


def median(values: Iterable[float]) -> float:
    """Return the median; NaN for no values."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


def progress(items: Iterable[Item], what: str) -> Iterable[Item]:
    """Iterate with a progress bar, in a terminal with tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(list(items), desc=what, disable=None, leave=False)


def core_model_and_formats(
    name: str, dtype: str | None, cache_dtype: str | None = None, n_threads: int = 2
) -> tuple[_core.Model, Mapping[str, str]]:
    """Open a model by name, and return the formats of a GGUF file's matrices by canonical name."""
    if name in SHAPES:
        return random_model(name, dtype or "bf16", cache_dtype, n_threads=n_threads), {}
    if name in ("target", "draft"):
        return specdec.embedded_pair(dtype, dtype)[name == "draft"].core, {}
    model = specdec.load(name, dtype, cache_dtype=cache_dtype, n_threads=n_threads)
    return model.core, getattr(model, "formats", {})  # another build may lack formats


def load_pair(
    target: str | None, draft: str | None, dtype: str | None
) -> tuple[specdec.Model, specdec.Model]:
    """Load two checkpoints, or the embedded pair."""
    if (target is None) != (draft is None):
        raise SystemExit("--target and --draft must be given together")
    if target is None or draft is None:
        return specdec.embedded_pair(dtype, dtype)
    return specdec.load(target, dtype), specdec.load(draft, dtype)


class Options:
    """Options that several benchmarks share."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.add = parser.add_argument

    def repeats(self, default: int) -> None:
        """Add the number of interleaved repeats."""
        self.add("--repeats", type=int, default=default, help="interleaved repeats; shows median, min, max")

    def pair(self) -> None:
        """Add target and draft."""
        self.add("--target", help="default: the embedded pair")
        self.add("--draft")
        self.add("--dtype", choices=DTYPES, help="number format of both; default: as stored")

    def against(self) -> None:
        """Add another build of specdec."""
        self.add("--against", metavar="PYTHON", help="Python with another build, for interleaved runs")

    def many(self, name: str, value_type: Callable[[str], Any], default: Sequence[Any], **more: Any) -> None:
        """Add a list of values."""
        self.add(name, type=value_type, nargs="+", default=list(default), **more)

    def work(self) -> None:
        """Add the folder for the models of other engines."""
        self.add("--work", type=Path, required=True, metavar="FOLDER", help="folder for models, which stay")
