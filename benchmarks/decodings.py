"""Timed decoding in one or two builds of specdec (see `builds.py`), and speed-ups."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import specdec
from benchmarks.interleaved import load_pair
from benchmarks.report import Speedup, Spread

Run = dict[str, Any]
"""Seconds per token without prefill, new tokens, target forward passes, texts, and rounds of each text."""


class Decodings:
    """Runs of `specdec.generate` on several prompts.

    Parameters
    ----------
    target, draft, dtype : str or None
        See :func:`load_pair`.
    n_threads : int
    """

    def __init__(self, target: str | None, draft: str | None, dtype: str | None, n_threads: int) -> None:
        self.target, self.draft = load_pair(target, draft, dtype)
        self.n_threads = n_threads

    def described(self) -> str:
        """Describe both models."""

        def text(model: specdec.Model) -> str:
            size = model.core.n_parameters / 1e6
            return f"{model.path.name}, {size:.1f} M parameters in {model.core.dtype}"

        return f"target: {text(self.target)}; draft: {text(self.draft)}"

    def run(self, prompts: Sequence[str], n_tokens: int, seed: int, gamma: Any, **how: Any) -> Run:
        """Continue the prompts one by one; gamma 0 decodes without the draft."""
        draft = self.draft if gamma != 0 else None
        work = [(prompt, {"max_new_tokens": n_tokens}) for prompt in prompts]
        return self.decode(draft, work, seed=seed, gamma=gamma, **how)

    def decode(
        self,
        draft: Any,
        work: Sequence[tuple[Any, dict[str, Any]]],
        *,
        seed: int,
        models_only: bool = False,
        **how: Any,
    ) -> Run:
        """Continue prompts with their own options; `models_only` times only draft and target."""
        seconds, results = 0.0, []
        for i, (prompt, own) in enumerate(work):
            begun = time.perf_counter()
            result = specdec.generate(
                self.target, draft, prompt, seed=[(seed, i)], n_threads=self.n_threads, ignore_eos=True,
                **how, **own,
            )  # fmt: skip
            wall = time.perf_counter() - begun - result.trace.prefill_s
            seconds += result.trace.draft_s + result.trace.verify_s if models_only else wall
            results.append(result)
        n_tokens = sum(len(result.tokens) for result in results)
        return {
            "seconds": seconds / n_tokens,
            "n_tokens": n_tokens,
            "n_calls": sum(result.trace.n_calls for result in results),
            "tokens": [list(result.tokens) for result in results],
            "rounds": [[asdict(round_) for round_ in result.trace.rounds] for result in results],
        }


def traces(run: Run, plain: Run | None = None) -> list[specdec.Trace]:
    """Return the traces of a run, with t(1) of the plain run."""

    def trace(rounds: list[dict[str, Any]]) -> specdec.Trace:
        fields = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}
            for one in rounds
        ]
        return specdec.Trace([specdec.Round(**one) for one in fields])

    found = [trace(rounds) for rounds in run["rounds"]]
    if plain is None:
        return found
    bases = [trace(rounds) for rounds in plain["rounds"]]
    return [one.against(base) for one, base in zip(found, bases, strict=True)]


@dataclass
class Cell:
    """Runs of one setting, and the plain runs of the same repeats."""

    runs: list[Run] = field(default_factory=list)
    plain: list[Run] = field(default_factory=list)
    other: list[Run] = field(default_factory=list)
    """Of the other build, in the same turns."""

    @property
    def speedup(self) -> Speedup:
        """Over plain decoding."""
        pairs = zip(self.plain, self.runs, strict=True)
        return Speedup.over(
            [plain["seconds"] / run["seconds"] for plain, run in pairs],
            [run["n_tokens"] / run["n_calls"] for run in self.runs],
        )

    @property
    def against(self) -> Spread:
        """Speed relative to the other build."""
        pairs = zip(self.other, self.runs, strict=True)
        return Spread.of(other["seconds"] / run["seconds"] for other, run in pairs)

    @property
    def tokens_per_call(self) -> float:
        """New tokens per target forward pass, over all repeats."""
        return sum(run["n_tokens"] for run in self.runs) / sum(run["n_calls"] for run in self.runs)

    def mean(self, figure: str) -> float:
        """Return the mean of a figure over all traces."""
        values = [
            getattr(trace, figure)
            for run, plain in zip(self.runs, self.plain, strict=True)
            for trace in traces(run, plain if run is not plain else None)
        ]
        values = [value for value in values if not math.isnan(value)]
        return statistics.mean(values) if values else math.nan


def run_cells(
    keys: Sequence[Any], run: Callable[[int, Any], list[Run]], repeats: int, plain_key: Any, equal: bool
) -> dict[Any, Cell]:
    """Run all settings interleaved.

    Parameters
    ----------
    keys : sequence
        Settings, which run after `plain_key`.
    run : callable
        Maps (repeat, setting) to the run of each build.
    repeats : int
        Repeats after one warm-up.
    plain_key
        The setting of plain decoding.
    equal : bool
        Require the texts of plain decoding.
    """
    cells: dict[Any, Cell] = {key: Cell() for key in (plain_key, *keys)}
    for repeat in range(-1, repeats):
        plain: Run = {}
        for key, cell in cells.items():
            this, *other = run(repeat + 1, key)
            if key == plain_key:
                plain = this
            elif equal and any(found["tokens"] != plain["tokens"] for found in (this, *other)):
                raise RuntimeError(f"{key}: the text differs from plain decoding")
            if repeat >= 0:
                cell.runs.append(this)
                cell.plain.append(plain)
                cell.other += other
    return cells
