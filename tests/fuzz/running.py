"""How a case is run: within limits, and so that a process that dies or hangs leaves the case behind."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pprint
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["LEFT", "Case", "Failure", "check", "limited"]

Case = dict[str, Any]
"""Plain values that say everything of a run."""

MEMORY = 4 << 30
"""Bytes of addresses that a run may take: stacks and arenas of threads above all."""

LONGEST_S = float(os.environ.get("FUZZ_SECONDS", "120"))
"""Seconds after which a case hangs: the process says where it is, and ends."""

LEFT = Path(os.environ.get("FUZZ_LEFT") or tempfile.gettempdir())
"""Folder of the scripts that dead processes leave, ``fuzz-PROCESS.py``, with ``.log`` beside."""


class Failure(AssertionError):  # noqa: N818  # it is the finding, not an error of this program
    """A check that did not hold."""


def check(case: Case) -> str:
    """Run a case.

    Returns
    -------
    str
        "passed", or "refused" by a named exception that was to be expected.

    Raises
    ------
    Failure
        The output is wrong.
    BaseException
        Whatever the package raises that it should not.
    """
    from fuzz import damage, decoding, distributions, engines, peft_folders

    checks: dict[str, Callable[[Case], str]] = {
        "decoding": decoding.check_decoding, "distribution": distributions.check_distribution,
        "beams": decoding.check_beams, "engine": engines.check_engine, "peft": peft_folders.check_peft,
        "file": damage.check_file,
    }  # fmt: skip
    with _left_behind(case), limited(MEMORY):
        return checks[case["check"]](case)


@contextlib.contextmanager
def _left_behind(case: Case) -> Iterator[None]:
    """Keep a script of the case while it runs."""
    script, log = (LEFT / f"fuzz-{os.getpid()}.{end}" for end in ("py", "log"))
    text = pprint.pformat(case, width=100, compact=True, sort_dicts=False)
    script.write_text(f"from math import inf\n\nfrom fuzz.running import check\n\nprint(check({text}))\n")
    with open(log, "w") as file:
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            script.unlink()
            log.unlink()


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """Let this process have so many bytes of addresses more than it has now; beyond, allocations fail.

    Only Linux counts them; elsewhere nothing is limited.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
