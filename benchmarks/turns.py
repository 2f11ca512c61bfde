"""What the benchmarks share of timing: jobs that take turns, prompts, models by name, options."""

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


def take_turns(jobs: Mapping[Key, Callable[[], float]], repeats: int) -> dict[Key, list[float]]:
    """What each job returns, one after the other, ``repeats`` times.

    The speed of a shared machine changes within seconds; jobs that take turns see the same changes.
    """
    values: dict[Key, list[float]] = {key: [] for key in jobs}
    for _ in range(repeats):
        for key, job in jobs.items():
            values[key].append(job())
    return values


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Of each turn."""
    return Spread.of(a / b for a, b in zip(over, under, strict=True))


def median(values: Iterable[float]) -> float:
    """NaN of nothing."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


def progress(items: Iterable[Item], what: str) -> Iterable[Item]:
    """The items, with a progress bar in a terminal where tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(list(items), desc=what, disable=None, leave=False)


def core_model_and_formats(
    name: str, dtype: str | None, cache_dtype: str | None = None, n_threads: int = 2
) -> tuple[_core.Model, Mapping[str, str]]:
    """The same, and the formats of the matrices of a GGUF file by canonical name; of others empty."""
    if name in SHAPES:
        return random_model(name, dtype or "bf16", cache_dtype, n_threads=n_threads), {}
    if name in ("target", "draft"):
        return specdec.embedded_pair(dtype, dtype)[name == "draft"].core, {}
    model = specdec.load(name, dtype, cache_dtype=cache_dtype, n_threads=n_threads)
    return model.core, getattr(model, "formats", {})  # another build may know of no such files


def load_pair(
    target: str | None, draft: str | None, dtype: str | None
) -> tuple[specdec.Model, specdec.Model]:
    """Two checkpoints, or the embedded pair."""
    if (target is None) != (draft is None):
        raise SystemExit("--target and --draft go together")
    if target is None or draft is None:
        return specdec.embedded_pair(dtype, dtype)
    return specdec.load(target, dtype), specdec.load(draft, dtype)


class Options:
    """The options that several benchmarks have, each worded once."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.add = parser.add_argument

    def repeats(self, default: int) -> None:
        """How often everything has its turn."""
        self.add("--repeats", type=int, default=default, help="turns; medians, least and most are shown")

    def pair(self) -> None:
        """A target and a draft."""
        self.add("--target", help="default: the embedded pair")
        self.add("--draft")
        self.add("--dtype", choices=DTYPES, help="number format of both; default: as they are stored")

    def against(self) -> None:
        """Another build of specdec."""
        self.add(
            "--against", metavar="PYTHON", help="another Python, whose build of specdec takes turns with this"
        )

    def many(self, name: str, kind: Callable[[str], Any], default: Sequence[Any], **more: Any) -> None:
        """A list of values."""
        self.add(name, type=kind, nargs="+", default=list(default), **more)

    def work(self) -> None:
        """Where the models of other engines are kept."""
        self.add("--work", type=Path, required=True, metavar="FOLDER", help="for models; kept")
