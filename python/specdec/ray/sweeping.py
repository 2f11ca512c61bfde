"""`sweep`: measure drafts, gammas, temperatures and number formats on many machines in one table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from specdec._core import kernels
from specdec.analysis.experiment import ExperimentRow
from specdec.analysis.measure import Timing, measure
from specdec.checks import as_integer, check_choice, check_flag, check_integer, check_items
from specdec.containers import prompts_of
from specdec.decoding.options import DecodingOptions, TextOptions
from specdec.errors import InputError, type_of
from specdec.models.loading import load
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.number_formats import DTYPES, Dtype
from specdec.progress import counted
from specdec.ray.jobs import (
    DraftGiven,
    connected,
    described,
    do_jobs,
    is_function,
    machines_of,
    opened_draft,
    opened_target,
    pickled,
    placement_on,
)
from specdec.ray.records import OutputFolder, line
from specdec.settings_table import Unpack
from specdec.tables import OneTable, Table, interval, or_dash


@dataclass(frozen=True)
class SweepRow:
    """Measurement of one number format, draft, temperature and gamma on one machine.

    Values that were not measured or do not apply to the draft are None.

    Attributes
    ----------
    format : str
        Number format of the target.
    draft : str
        Name of the draft in the call.
    temperature : float
    gamma : int
        Draft tokens per round.
    alpha, alpha_low, alpha_high : float or None
        Mean acceptance rate (Corollary 3.6 of arXiv 2211.17192) and its 95 % confidence interval.
    c : float or None
        Cost coefficient (Definition 3.7).
    predicted_speedup : float or None
        From Theorem 3.8 with the measured time of verification.
    measured, measured_low, measured_high : float or None
        Speed-up over plain decoding in interleaved runs on the same machine: median, minimum, maximum.
    tokens_per_call : float or None
        New tokens per target forward pass in the timed runs.
    target_s : float or None
        Seconds of a target forward pass for one token.
    invalid : str
        Why `measured` is a measurement error; empty if valid.
    reason : str
        Why `specdec.measure` gives no value for this draft; else empty.
    machine, kernels : str
        Name of the machine and its instruction set in use.
    n_threads : int
    """

    format: str
    draft: str
    temperature: float
    gamma: int
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    c: float | None
    predicted_speedup: float | None
    measured: float | None
    measured_low: float | None
    measured_high: float | None
    tokens_per_call: float | None
    target_s: float | None
    invalid: str
    reason: str
    machine: str
    kernels: str
    n_threads: int


@dataclass(frozen=True, repr=False)
class Sweep(OneTable):
    """Result of a sweep; ``print`` and notebooks show its table.

    Attributes
    ----------
    rows : tuple of SweepRow
        Sorted by format, draft, temperature and gamma, in the order of the call.
    run : dict
        Arguments of the sweep.
    """

    rows: tuple[SweepRow, ...]
    run: dict[str, Any] = field(compare=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Sweep:
        """Read a sweep from its output folder; an interrupted one has only its finished rows.

        Raises
        ------
        InputError
            The folder holds no sweep, or one of its files is damaged.
        """
        held = OutputFolder.open(folder, "sweep")
        rows: list[SweepRow] = []
        for job in _cells(held.run):
            if held.has(job):
                rows += _read(held, job)
        return cls(tuple(rows), held.run)

    @property
    def best(self) -> SweepRow | None:
        """Valid row with the largest measured speed-up; None without times."""
        valid = [row for row in self.rows if row.measured is not None and not row.invalid]
        return max(valid, key=lambda row: row.measured or 0.0, default=None)

    def table(self) -> Table:
        """Return a table with one line per row."""
        head = (
            "format", "draft", "T", "gamma", "alpha", "c", "predicted", "measured", "spread", "tokens/call",
            "machine",
        )  # fmt: skip
        best = self.best
        title = f"{self.run['target']}: {len(self.rows)} combinations"
        return Table(title, head, [_cells_of(row, row is best) for row in self.rows])

    def __repr__(self) -> str:
        return f"<specdec.ray.Sweep of {len(self.rows)} combinations>"


class SweepOptions(TextOptions, total=False):
    """Settings of `sweep`, for type checkers."""

    seed: int | None


def sweep(
    target: ModelLike | Callable[[], Model], drafts: Mapping[str, DraftGiven],
    prompts: Prompt | Sequence[Prompt], output: str | os.PathLike[str], *,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8), temperatures: Sequence[float] = (0.0, 1.0),
    formats: Sequence[Dtype | None] = (None,), n_tokens: int = 2000, timing: bool | Timing = True,
    n_actors: int | None = None, n_threads: int | None = None, retries: int = 3, progress: bool = False,
    options: DecodingOptions | None = None, **changes: Unpack[SweepOptions],
) -> Sweep:  # fmt: skip
    """Measure drafts at gammas, temperatures and number formats, on the machines of a Ray cluster.

    `specdec.measure` measures each format, draft and temperature, with interleaved gammas, on a machine that
    does nothing else for this sweep. Speed-ups are over plain decoding on the same machine. Each finished
    measurement is a file of the folder `output`; the same call resumes an interrupted sweep.

    Parameters
    ----------
    target : Model, path, hub name or function
        As in `specdec.ray.generate`.
    drafts : mapping
        Drafts by name, each as in `specdec.ray.generate`; a function gets the target in the current format.
        Drafts keep their own number formats, unless they are layers of the target.
    prompts : str, sequence of int, or a list of these
    output : path-like
        A new or empty folder, or that of the same sweep.
    gammas, temperatures : sequence
    formats : sequence of {None, "f32", "bf16", "int8", "int4"}
        Number formats of the target; None: as given.
    n_tokens, timing, options, **changes
        As in `specdec.measure`.
    n_actors : int, optional
        Machines that measure at once; None: all with more than half of the largest machine's CPUs.
    n_threads : int, optional
        Threads of each; None: the CPUs of the smallest of these machines.
    retries : int, default 3
        Retries of a measurement.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Sweep

    Raises
    ------
    InputError, WorkerError, MissingPackageError
        As in `specdec.ray.generate`.

    Examples
    --------
    >>> drafts = {"small": "path/to/draft", "copies": specdec.drafts.PromptLookup()}
    >>> print(specdec.ray.sweep("path/to/target", drafts, prompts, "sweep", formats=("bf16", "int8")))
    """
    if not isinstance(drafts, Mapping) or not drafts or not all(isinstance(name, str) for name in drafts):
        raise InputError(f"drafts is {type_of(drafts)}; expected a nonempty dict of drafts by name")
    given, _ = prompts_of("prompts", prompts)
    options = (DecodingOptions() if options is None else options).replace(**changes)
    settings = {
        "gammas": check_items("gammas", gammas, "integers"),
        "n_tokens": check_integer("n_tokens", n_tokens, 1),
        "timing": timing if isinstance(timing, Timing) else check_flag("timing", timing),
    }
    asked = {
        "target": described(target),
        "drafts": {name: described(draft) for name, draft in drafts.items()},
        "prompts": [_as_json(f"prompts[{i}]", prompt) for i, prompt in enumerate(given)],
        "temperatures": _once("temperatures", temperatures),
        "formats": [
            check_choice("formats", entry, DTYPES, optional=True) for entry in _once("formats", formats)
        ],
        "settings": described(settings | options.arguments()),
    }
    retries = check_integer("retries", retries, 0)
    ray = connected()
    placement = placement_on(machines_of(ray), n_actors, n_threads, alone=True)
    folder = OutputFolder.begin(output, "sweep", asked, {})
    cells = _cells(folder.run)
    with counted(len(cells), "measurement", progress) as done:

        def finished(job: str, content: str) -> None:
            folder.store(job, content)
            done(1)

        waiting = {job: json.dumps(cell) for job, cell in cells.items() if not folder.has(job)}
        done(len(cells) - len(waiting))
        if waiting:
            for name, value in (("target", target), *drafts.items()):
                pickled(ray, name, value)
            settings["options"] = options
            work = partial(open_sweep, target, dict(drafts), asked["prompts"], settings, placement.n_threads)
            do_jobs(ray, work, waiting, placement, noun="measurement", retries=retries, finished=finished)
    return Sweep.load(folder.path)


def open_sweep(
    given: Any, drafts: dict[str, DraftGiven], prompts: list[Any], settings: dict[str, Any], n_threads: int
) -> Callable[[str], str]:
    """Return the function that measures a cell in an actor; it caches the target of the last format."""
    loaded: dict[str | None, Model] = {}

    def in_format(dtype: Dtype | None) -> Model:
        if dtype is None or is_function(given):
            target = opened_target(given)
            return target if dtype is None else load(target.path, dtype, n_threads=n_threads)
        return load(given.path if isinstance(given, Model) else given, dtype, n_threads=n_threads)

    def cell(job: str) -> str:
        asked = json.loads(job)
        dtype, name, temperature = asked["format"], asked["draft"], asked["temperature"]
        if dtype not in loaded:
            loaded.clear()  # free memory before loading the next
            loaded[dtype] = in_format(dtype)
        target = loaded[dtype]
        draft: Any = opened_draft(drafts[name], target)
        found = measure(
            target, draft, prompts, temperatures=[temperature], leniences=[1.0], n_threads=n_threads,
            **settings,
        )  # fmt: skip
        common = {
            "format": target.dtype, "draft": name, "temperature": temperature, "target_s": found.target_s,
            "machine": platform.node(), "kernels": kernels(), "n_threads": n_threads,
        }  # fmt: skip
        return "".join(line(common | _measured(row)) for row in found.rows)

    return cell


def _measured(row: ExperimentRow) -> dict[str, Any]:
    timed = {"measured": row.timed.median, "measured_low": row.timed.low, "measured_high": row.timed.high}
    return timed | {name: getattr(row, name) for name in _MEASURED}


_MEASURED = (
    "gamma", "alpha", "alpha_low", "alpha_high", "c", "predicted_speedup", "tokens_per_call", "invalid",
    "reason",
)  # fmt: skip
"""Fields of a row copied from an `ExperimentRow`."""


def _cells(run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the cells, each measured in one job, by file name."""
    cells = [
        {"format": dtype, "draft": draft, "temperature": temperature}
        for dtype in run["formats"]
        for draft in run["drafts"]
        for temperature in run["temperatures"]
    ]
    return {f"cell-{i:05d}.jsonl": cell for i, cell in enumerate(cells)}


def _read(folder: OutputFolder, job: str) -> list[SweepRow]:
    path = folder.file(job)
    try:
        found = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        return [SweepRow(**{entry.name: row[entry.name] for entry in fields(SweepRow)}) for row in found]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected rows of a sweep ({type(error).__name__}: {error}); delete the file and repeat "
            "the call to recreate it"
        ) from error


def _as_json(name: str, prompt: Any) -> str | list[int]:
    """Return a prompt as a JSON value."""
    if isinstance(prompt, str):
        return prompt
    items = check_items(name, prompt, "a text or token ids")
    ids = [number for item in items if (number := as_integer(item)) is not None]
    if len(ids) < len(items):
        raise InputError.of(name, prompt, "a text or token ids")
    return ids


def _once(name: str, values: Any) -> list[Any]:
    found = check_items(name, values, "a sequence")
    if not found or any(value in found[:i] for i, value in enumerate(found)):
        raise InputError.of(name, values, "one or more distinct values")
    return found


def _cells_of(row: SweepRow, best: bool) -> tuple[str, ...]:
    mark = " ★" if best else " invalid" if row.invalid else ""
    return (
        row.format, row.draft, f"{row.temperature:g}", str(row.gamma), or_dash(row.alpha, ".3f"),
        or_dash(row.c, ".3f"), or_dash(row.predicted_speedup, ".2f", "X"),
        or_dash(row.measured, ".2f", "X") + mark, interval(row.measured_low, row.measured_high, ".2f"),
        or_dash(row.tokens_per_call, ".2f"), row.machine,
    )  # fmt: skip
