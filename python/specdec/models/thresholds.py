"""Thresholds of the kernels: measured when the first model is loaded on a machine, then kept in a file."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.atomic_file import write_json
from specdec.errors import pass_signals_on
from specdec.models.number_formats import DTYPES

Thresholds: TypeAlias = dict[str, list[int]]
"""By name, numbers of rows for each number format, in the order of `FORMATS` (csrc/kernels/kernels.h)."""

FORMATS: Final = _core.panel_formats()
"""All number formats of packed weights."""
_MEASURED: Final = (*DTYPES, "q4_k", "q5_k", "q6_k")
"""Those that ask for memory ahead by thresholds; others keep those of the table."""

_VARIABLE = "SPECDEC_THRESHOLDS"
_OFF = "off"
_NEVER = 1 << 20
"""A threshold that no number of rows reaches."""

_BYTES = 8 << 20
"""Panels in all: near ones fit a shared cache, and no cache of one core."""
_SAMPLE_BYTES = 512 << 10
"""Panels of one timing: tens of microseconds."""
_N_IN = 2048
"""Inputs of a panel, which then takes half of the bytes of a sample or less in every format."""
_REPEATS = 7
_MANY_ROWS = (17, 64)
"""Rows that take several blocks: wide verification, and a slice of a prompt."""
_GAIN = 0.05
"""The share of time that a choice must save to take the place of the table's own."""

_MAX_FILE = 1 << 16

Sample: TypeAlias = Callable[[str, int, bool], float]
"""Seconds of a product with some panels: of a number format, of so many rows, with panels that are near."""


def settle() -> None:
    """Let the kernels use the thresholds of this machine; only the first call of a process does anything.

    They are read from a file, or measured, which takes some 0.2 s, and written to it. The environment
    variable ``SPECDEC_THRESHOLDS`` names the folder of such files; "off": thresholds are neither measured nor
    read. A file that cannot be read, is damaged or belongs to other kernels counts as missing, and one that
    cannot be written is left unwritten.
    """
    global _settled
    with _settling:
        folder = os.environ.get(_VARIABLE, "")
        if not _settled and folder != _OFF and _core.kernels() != "ref":  # whose speed nobody needs
            key = {
                "processor": _core.processor(), "kernels": _core.kernels(), "version": _core.__version__,
                "digest": _core.kernels_digest(),
            }  # fmt: skip
            path = _path(folder, key)
            if path is None or not _read(path, key):
                _core.set_thresholds(measured())
                if path is not None:
                    with suppress(OSError):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        write_json(path, {"key": key, "thresholds": _core.thresholds()})
        _settled = True


_settled = False
_settling = threading.Lock()


def _after_fork() -> None:
    global _settling
    _settling = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def _path(folder: str, key: Mapping[str, str]) -> Path | None:
    base, cache = Path(folder), os.environ.get("XDG_CACHE_HOME", "")
    if not folder:
        try:
            home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
        except RuntimeError:
            return None
        base = home / "specdec" / "thresholds"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return base / f"{digest[:32]}.json"


def _read(path: Path, key: Mapping[str, str]) -> bool:
    """Use the thresholds of a file; False where it has none for this key."""
    try:
        if not path.is_file():  # reading a pipe would not end
            return False
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_FILE))
        if content["key"] != key:
            return False
        _core.set_thresholds(content["thresholds"])  # which refuses what is damaged
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        pass_signals_on(error)
        return False
    return True


def measured() -> Thresholds:
    """The thresholds by which products take the least time on this machine; those in use stay as they are."""
    before = _core.thresholds()
    try:
        return _measured(_core.own_thresholds(), _PanelTimer())
    finally:
        _core.set_thresholds(before)


class _Start(NamedTuple):
    """The trial of a threshold that says from how many rows on something is done.

    `near`: Are the panels near? `gain`: The share of time that another value than the table's own must save.
    `rows`: The numbers of rows that are tried; none: those of one block.
    """

    name: str
    dtypes: tuple[str, ...]
    near: bool
    gain: float
    rows: tuple[int, ...] = ()


_STARTS: Final = (
    # First, as prefetching and blocks of bf16 depend on it.
    _Start("floats_from", ("bf16",), near=True, gain=_GAIN),
    # Prefetching from memory loses a tenth of the time or saves a third of it: that differs from second to
    # second.
    _Start("fetch_from", _MEASURED, near=False, gain=_GAIN),
    _Start("fetch_from_near", _MEASURED, near=True, gain=_GAIN),
    # Fewer inputs, or panels from memory, gain less than those of the trial.
    _Start("tiles_from", ("int8", "int4", "q4_k", "q5_k"), near=True, gain=0.1, rows=(*range(1, 13), 24)),
)


def _measured(own: Thresholds, sample: Sample) -> Thresholds:
    best = {name: list(values) for name, values in own.items()}
    for start in _STARTS:
        for dtype in start.dtypes:
            f = FORMATS.index(dtype)
            rows = start.rows or range(1, own["block_rows"][f] + 1)
            seconds = _seconds(_changed(best, start.name, f, (_NEVER, 1)), rows, dtype, start.near, sample)
            best[start.name][f] = best_start(rows, seconds, own[start.name][f], start.gain)
    for dtype in _MEASURED:
        f = FORMATS.index(dtype)
        most = own["block_rows"][f]
        values = range((most + 1) // 2, most + 1)
        seconds = _seconds(_changed(best, "block_rows", f, values), (most, *_MANY_ROWS), dtype, True, sample)
        best["block_rows"][f] = best_value(values, seconds, most, _GAIN)
    return best


def _changed(thresholds: Thresholds, name: str, f: int, values: Iterable[int]) -> list[Thresholds]:
    """Copies in which one threshold of one format has each of some values."""
    own = thresholds[name]
    return [{**thresholds, name: [*own[:f], value, *own[f + 1 :]]} for value in values]


def _seconds(
    variants: Sequence[Thresholds], rows: Sequence[int], dtype: str, near: bool, sample: Sample
) -> NDArray[np.float64]:
    """What products take, [repeats, rows, variants]; the variants take turns."""
    seconds = np.empty((_REPEATS, len(rows), len(variants)))
    for i, n_rows in enumerate(rows):
        for repeat in range(_REPEATS):
            for j, variant in enumerate(variants):
                _core.set_thresholds(variant)
                seconds[repeat, i, j] = sample(dtype, n_rows, near)
    return seconds


def best_start(rows: Sequence[int], seconds: NDArray[np.float64], own: int, gain: float) -> int:
    """From how many rows on something pays: `seconds` [repeats, rows, 2] without it and with it.

    `own` is what is chosen unless another number surely saves the share `gain` of the time of the rows
    between the two.
    """
    counts = np.asarray(rows)
    without, with_it = seconds[:, :, 0], seconds[:, :, 1]
    # what the other choice takes, in times of what that of `own` takes
    ratio = np.where(counts >= own, without / with_it, with_it / without)
    lost = _surely(ratio) - 1.0 + gain

    def loss(start: int) -> float:
        return float(np.sum(lost[(counts >= start) != (counts >= own)]))

    best = min([*rows, _NEVER], key=loss)
    return best if loss(best) < 0.0 else own


def best_value(values: Sequence[int], seconds: NDArray[np.float64], own: int, gain: float) -> int:
    """Which of some values, of which one is `own`, takes the least time: `seconds` [repeats, cases, values].

    `own` is what is chosen unless another one surely saves the share `gain` of the time.
    """
    ratio = np.mean(_surely(seconds / seconds[:, :, [values.index(own)]]), axis=0)
    best = int(np.argmin(ratio))
    return values[best] if ratio[best] < 1.0 - gain else own


def _surely(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upper quartile over the repeats of ratios [repeats, …] of times that follow each other."""
    quartile: NDArray[np.float64] = np.quantile(ratio, 0.75, axis=0)
    return quartile


class _PanelTimer:
    """Times products with panels that are in a shared cache (near), or in no cache."""

    def __init__(self) -> None:
        # a byte that makes no number of any format subnormal; lines of a panel are lines of a cache
        buffer = np.full(_BYTES + 64, 0x3C, np.uint8)
        begin = -buffer.ctypes.data % 64
        self._panels = buffer[begin : begin + _BYTES].view(np.float32)
        self._n_samples = 0
        self._was_near = False

    def __call__(self, dtype: str, n_rows: int, near: bool) -> float:
        if near and not self._was_near:
            self._seconds(0, _BYTES, dtype, 1, near)  # which brings them into the cache
        self._was_near = near
        self._n_samples += 1
        return self._seconds(self._n_samples * _SAMPLE_BYTES % _BYTES, _SAMPLE_BYTES, dtype, n_rows, near)

    def _seconds(self, begin: int, n_bytes: int, dtype: str, n_rows: int, near: bool) -> float:
        panels = self._panels[begin // 4 : (begin + n_bytes) // 4]
        return _core.panel_seconds(panels, dtype=dtype, n_rows=n_rows, n_in=_N_IN, near=near)
