"""How many threads to compute with when the caller does not say."""

from __future__ import annotations

import os

from specdec.errors import InputError

__all__ = ["MAX_THREADS", "default_threads"]

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
        # isdecimal alone admits other scripts' digits; isascii keeps "٣" out.
        if not (text.isascii() and text.isdecimal() and int(text) >= 1):
            raise InputError(
                f"environment variable {_VARIABLE} is {text!r}; expected a whole number of at least 1"
            )
        return min(int(text), MAX_THREADS)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)
