"""How many threads to compute with when the caller does not say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from specdec.checks import check_integer
from specdec.errors import InputError, pass_signals_on, shown

_VARIABLE = "SPECDEC_NUM_THREADS"
MAX_THREADS = 64  # SD_MAX_THREADS of the core's pool


def default_threads() -> int:
    """Threads used where ``n_threads`` is not given.

    Returns int: the environment variable ``SPECDEC_NUM_THREADS`` if it is set and not empty. Otherwise the
    number of CPUs this process may run on (its affinity mask), or the CPU quota of its control groups if that
    is less: on Linux, ``cpu.max`` or ``cpu.cfs_quota_us``, rounded down. At least 1 and at most 64, the size
    of the core's pool.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if text:
        # isdecimal alone admits other scripts' digits; isascii keeps "٣" out. Python reads no number of
        # thousands of digits; one of ten is more than there are threads.
        digits = text.lstrip("0")
        if not (text.isascii() and text.isdecimal() and digits):
            raise InputError(
                f"environment variable {_VARIABLE} is {shown(text)}; expected a whole number of at least 1"
            )
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
    if n_threads is None:
        return default_threads()
    return check_integer("n_threads", n_threads, 1, MAX_THREADS)


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """CPU time per second of time that the control groups of this process allow; infinite without a limit.

    A team of more threads than the quota would be stopped by the system in every period.

    `groups`: Where control groups are mounted. `membership`: The file that lists the groups of this process.
    """
    try:
        lines = membership.read_text().splitlines()
    except (OSError, UnicodeError) as error:
        pass_signals_on(error)
        return float("inf")
    quotas = [float("inf")]
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if controllers == "":  # version 2: one hierarchy
            folders, read = _with_parents(groups, path), _quota_v2
        elif "cpu" in controllers.split(","):
            folders, read = _with_parents(_mount_v1(groups, controllers), path), _quota_v1
        else:
            continue
        quotas += [read(folder) for folder in folders]
    return min(quotas)


def _mount_v1(groups: Path, controllers: str) -> Path:
    """The folder of a hierarchy of version 1.

    The kernel may list its controllers in another order than the name of the folder has them; systems then
    have a link of the name of each controller alone.
    """
    named = groups / controllers
    return named if named.is_dir() else groups / "cpu"


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """The group at `path` below `root`, and every group that it is part of.

    In a container the path may be one of the host's, which is not visible; then its parents, up to the root,
    still are.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for n in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:n])


def _quota_v2(folder: Path) -> float:
    return _ratio(_first_line(folder / "cpu.max").split())


def _quota_v1(folder: Path) -> float:
    return _ratio([_first_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")])


def _first_line(file: Path) -> str:
    try:
        return file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeError) as error:
        pass_signals_on(error)
        return ""  # no such group, or a kernel without quotas


def _ratio(words: list[str]) -> float:
    """Quota over period, both in microseconds; infinite if the words say that there is no limit."""
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
        return float("inf")  # "max", or -1
    quota, period = (int(word[:18]) for word in words)
    return quota / period if quota > 0 and period > 0 else float("inf")
