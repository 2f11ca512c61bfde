"""Kernel thresholds, measured on the first load of a model on a machine and kept in a file."""

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

from specdec import _core, system
from specdec.atomic_file import write_json
from specdec.errors import pass_signals_on
from specdec.models.number_formats import DTYPES

Thresholds: TypeAlias = dict[str, list[int]]
"""Numbers of rows by name, for each number format in `FORMATS` (csrc/kernels/kernels.h)."""

FORMATS: Final = _core.panel_formats()
"""Number formats of packed weights."""
_MEASURED: Final = (*DTYPES, "q4_k", "q5_k", "q6_k")
"""Formats with measured prefetch thresholds; others keep the table's."""

_VARIABLE = "SPECDEC_THRESHOLDS"
_OFF = "off"
_NEVER = 1 << 20
"""A threshold above any number of rows."""

_BYTES = 8 << 20
"""Bytes of all panels, which fit a shared cache but no cache of one core."""
_SAMPLE_BYTES = 512 << 10
"""Bytes of panels per timing, which takes tens of microseconds."""
_N_IN = 2048
"""Inputs of a panel, which then takes at most half a sample in every format."""
_REPEATS = 7
_MANY_ROWS = (17, 64)
"""Numbers of rows with several blocks, as in wide verification and in prompts."""
_GAIN = 0.05
"""Relative time that a value must save to replace the table's."""

_MAX_FILE = 1 << 16

Sample: TypeAlias = Callable[[str, int, bool], float]
"""Returns the seconds of a product, for a number format, a number of rows, and whether panels are cached."""


def settle() -> None:
    """Set this machine's kernel thresholds, once per process.

    Reads them from a file, or measures them in about 0.2 s and writes the file. The environment variable
    ``SPECDEC_THRESHOLDS`` names its folder; "off" disables reading and measuring. An unreadable, damaged or
    mismatched file counts as missing; failure to write is ignored.
    """
    global _settled
    with _settling:
        folder = os.environ.get(_VARIABLE, "")
        if not _settled and folder != _OFF and _core.kernels() != "ref":
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


system.after_fork(_after_fork)


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
    """Set the thresholds of a file; return False if it has none for this key."""
    try:
        if not path.is_file():  # reading a pipe could block
            return False
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_FILE))
        if content["key"] != key:
            return False
        _core.set_thresholds(content["thresholds"])  # refuses damaged values
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        pass_signals_on(error)
        return False
    return True


def measured() -> Thresholds:
    """Return the fastest thresholds for this machine, without setting them."""
    before = _core.thresholds()
    try:
        return _measured(_core.own_thresholds(), _PanelTimer())
    finally:
        _core.set_thresholds(before)


class _Start(NamedTuple):
    """Measurement of a threshold: the number of rows from which a method is used.

    `near`: Whether panels are cached. `gain`: Relative time that a value must save to replace the table's.
    `rows`: Numbers of rows to measure; empty: those of one block.
    """

    name: str
    dtypes: tuple[str, ...]
    near: bool
    gain: float
    rows: tuple[int, ...] = ()


_STARTS: Final = (
    # First, because prefetching and blocks of bf16 depend on it.
    _Start("floats_from", ("bf16",), near=True, gain=_GAIN),
    # Prefetching from memory costs a tenth of the time or saves a third, varying from second to second.
    _Start("fetch_from", _MEASURED, near=False, gain=_GAIN),
    _Start("fetch_from_near", _MEASURED, near=True, gain=_GAIN),
    # Fewer inputs, or panels from memory, gain less than in this measurement.
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
    """Return copies with each of some values for one threshold of one format."""
    own = thresholds[name]
    return [{**thresholds, name: [*own[:f], value, *own[f + 1 :]]} for value in values]


def _seconds(
    variants: Sequence[Thresholds], rows: Sequence[int], dtype: str, near: bool, sample: Sample
) -> NDArray[np.float64]:
    """Time products in interleaved runs of the variants, [repeats, rows, variants]."""
    seconds = np.empty((_REPEATS, len(rows), len(variants)))
    for i, n_rows in enumerate(rows):
        for repeat in range(_REPEATS):
            for j, variant in enumerate(variants):
                _core.set_thresholds(variant)
                seconds[repeat, i, j] = sample(dtype, n_rows, near)
    return seconds


def best_start(rows: Sequence[int], seconds: NDArray[np.float64], own: int, gain: float) -> int:
    """Return the number of rows from which a method pays; `seconds` [repeats, rows, without and with it]."""
    counts = np.asarray(rows)
    without, with_it = seconds[:, :, 0], seconds[:, :, 1]
    # time of the other choice relative to `own`
    ratio = np.where(counts >= own, without / with_it, with_it / without)
    lost = _surely(ratio) - 1.0 + gain

    def loss(start: int) -> float:
        return float(np.sum(lost[(counts >= start) != (counts >= own)]))

    best = min([*rows, _NEVER], key=loss)
    return best if loss(best) < 0.0 else own


def best_value(values: Sequence[int], seconds: NDArray[np.float64], own: int, gain: float) -> int:
    """Return the fastest value, `own` unless it loses a share `gain`; `seconds` [repeats, cases, values]."""
    ratio = np.mean(_surely(seconds / seconds[:, :, [values.index(own)]]), axis=0)
    best = int(np.argmin(ratio))
    return values[best] if ratio[best] < 1.0 - gain else own


def _surely(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper quartile over the repeats of ratios [repeats, …] of adjacent times."""
    quartile: NDArray[np.float64] = np.quantile(ratio, 0.75, axis=0)
    return quartile


class _PanelTimer:
    """Timer of products with panels in a shared cache (near) or in memory."""

    def __init__(self) -> None:
        # a byte that makes no value subnormal in any format; panels are aligned to cache lines
        buffer = np.full(_BYTES + 64, 0x3C, np.uint8)
        begin = -buffer.ctypes.data % 64
        self._panels = buffer[begin : begin + _BYTES].view(np.float32)
        self._n_samples = 0
        self._was_near = False

    def __call__(self, dtype: str, n_rows: int, near: bool) -> float:
        if near and not self._was_near:
            self._seconds(0, _BYTES, dtype, 1, near)  # warms the cache
        self._was_near = near
        self._n_samples += 1
        return self._seconds(self._n_samples * _SAMPLE_BYTES % _BYTES, _SAMPLE_BYTES, dtype, n_rows, near)

    def _seconds(self, begin: int, n_bytes: int, dtype: str, n_rows: int, near: bool) -> float:
        panels = self._panels[begin // 4 : (begin + n_bytes) // 4]
        return _core.panel_seconds(panels, dtype=dtype, n_rows=n_rows, n_in=_N_IN, near=near)
