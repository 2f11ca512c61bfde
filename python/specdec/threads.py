"""How many threads to compute with when the caller does not say."""

from __future__ import annotations

import os

from specdec.checks import as_integer
from specdec.errors import InputError, shown

__all__ = ["MAX_THREADS", "check_threads", "default_threads"]

_VARIABLE = "SPECDEC_NUM_THREADS"
MAX_THREADS = 64  # SD_MAX_THREADS of the core's pool


def default_threads() -> int:
    """Threads used where ``n_threads`` is not given.

    Returns
    -------
    int
        The environment variable ``SPECDEC_NUM_THREADS`` if it is set and not empty; otherwise the number of
        CPUs this process may run on (its affinity mask, which containers and job schedulers narrow). At
        most 64, the size of the core's pool.

    Raises
    ------
    InputError
        ``SPECDEC_NUM_THREADS`` is not a whole number of at least 1.
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
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)


def check_threads(n_threads: int | None) -> int:
    """The argument ``n_threads``; None: :func:`default_threads`.

    Raises
    ------
    InputError
    """
    if n_threads is None:
        return default_threads()
    number = as_integer(n_threads)
    if number is None or not 1 <= number <= MAX_THREADS:
        raise InputError(f"n_threads is {shown(n_threads)}; expected a whole number from 1 to {MAX_THREADS}")
    return number
