"""Default number of compute threads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from specdec.checks import check_integer
from specdec.errors import InputError, pass_signals_on

_VARIABLE = "SPECDEC_NUM_THREADS"
MAX_THREADS = 64  # SD_MAX_THREADS of the core's pool
_QUOTA_S = 60.0  # seconds that a quota is believed: reading it takes as long as a short request


def default_threads() -> int:
    """Return the default of ``n_threads``, from 1 to 64, the size of the core's pool.

    The environment variable ``SPECDEC_NUM_THREADS`` if set and not empty. Otherwise the number of CPUs in
    this process's affinity mask, limited by the CPU quota of its control groups, which is read once a minute.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if text:
        # isdecimal alone admits digits of other scripts; isascii excludes "٣". Python refuses numbers with
        # thousands of digits; ten digits exceed any number of threads.
        digits = text.lstrip("0")
        if not (text.isascii() and text.isdecimal() and digits):
            raise InputError.of(f"environment variable {_VARIABLE}", text, "an integer, at least 1")
        return min(int(digits[:10]), MAX_THREADS)
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(n_cpus, _quota_in(time.monotonic() // _QUOTA_S), MAX_THREADS)))


@lru_cache(maxsize=1)
def _quota_in(period: float) -> float:
    """Return the quota of this process as first read in a period of `_QUOTA_S`."""
    return cpu_quota()


def load_average() -> float:
    """Return the machine's one-minute load average; NaN if unknown."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return float("nan")


def check_threads(n_threads: int | None) -> int:
    """Check ``n_threads``; None: :func:`default_threads`."""
    return default_threads() if n_threads is None else check_integer("n_threads", n_threads, 1, MAX_THREADS)


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU time per second that this process's control groups allow; infinite without a limit.

    The system would suspend more threads than the quota in every period. `groups` is the mount point of
    control groups, `membership` the file that lists this process's groups.
    """
    quotas = [float("inf")]
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if controllers == "":  # version 2: one hierarchy
            for folder in _with_parents(groups, path):
                quotas.append(_ratio(_first_line(folder / "cpu.max").split()))
        elif "cpu" in controllers.split(","):
            # The kernel may list controllers in another order than the folder's name; systems then have a
            # link named after each controller.
            named = groups / controllers
            for folder in _with_parents(named if named.is_dir() else groups / "cpu", path):
                words = [_first_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
                quotas.append(_ratio(words))
    return min(quotas)


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """Yield the group at `path` below `root`, and its parent groups.

    In a container the path may be the host's and not visible; its parents still are.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for n in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:n])


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeError) as error:
        pass_signals_on(error)
        return ""  # no such group, or a kernel without quotas


def _first_line(file: Path) -> str:
    return _text(file).partition("\n")[0].strip()


def _ratio(words: list[str]) -> float:
    """Return quota over period, both in microseconds; infinite if unlimited."""
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
        return float("inf")  # "max", or -1
    quota, period = (int(word[:18]) for word in words)
    return quota / period if quota > 0 and period > 0 else float("inf")
