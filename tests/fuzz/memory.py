"""A limit of memory for a part of the program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["limited"]


@contextmanager
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
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
