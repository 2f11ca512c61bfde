"""How many threads to compute with when the caller does not say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from specdec.checks import check_integer
from specdec.errors import InputError, pass_signals_on

_VARIABLE = "SPECDEC_NUM_THREADS"
MAX_THREADS = 64  # SD_MAX_THREADS of the core's pool


def default_threads() -> int:
    """Threads used where ``n_threads`` is not given, from 1 to 64, the size of the core's pool.

    The environment variable ``SPECDEC_NUM_THREADS`` if it is set and not empty, else the number of CPUs this
    process may run on (its affinity mask), or the CPU quota of its control groups if that is less.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if text:
        # isdecimal alone admits other scripts' digits; isascii keeps "٣" out. Python reads no number of
        # thousands of digits; one of ten is more than there are threads.
        digits = text.lstrip("0")
        if not (text.isascii() and text.isdecimal() and digits):
            raise InputError.of(f"environment variable {_VARIABLE}", text, "a whole number of at least 1")
        return min(int(digits[:10]), MAX_THREADS)
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(n_cpus, cpu_quota(), MAX_THREADS)))


def load_average() -> float:
    """Running and waiting processes of the whole machine, averaged over a minute; NaN where unknown."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return float("nan")


def check_threads(n_threads: int | None) -> int:
    """The argument ``n_threads``; None: :func:`default_threads`."""
    return default_threads() if n_threads is None else check_integer("n_threads", n_threads, 1, MAX_THREADS)


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """CPU time per second that the control groups of this process allow; infinite without a limit.

    A team of more threads than the quota would be stopped by the system in every period. `groups` is where
    control groups are mounted, `membership` the file that lists the groups of this process.
    """
    quotas = [float("inf")]
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if controllers == "":  # version 2: one hierarchy
            for folder in _with_parents(groups, path):
                quotas.append(_ratio(_first_line(folder / "cpu.max").split()))
        elif "cpu" in controllers.split(","):
            # The kernel may list controllers in another order than the folder's name has them; systems then
            # have a link of the name of each controller alone.
            named = groups / controllers
            for folder in _with_parents(named if named.is_dir() else groups / "cpu", path):
                words = [_first_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
                quotas.append(_ratio(words))
    return min(quotas)


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """The group at `path` below `root`, and every group that it is part of.

    In a container the path may be one of the host's, which is not visible; its parents still are.
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
    """Quota over period, both in microseconds; infinite if the words say that there is no limit."""
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
        return float("inf")  # "max", or -1
    quota, period = (int(word[:18]) for word in words)
    return quota / period if quota > 0 and period > 0 else float("inf")
