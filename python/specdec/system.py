"""Calls of the operating system that Linux, macOS and Windows do not share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags that open a file for reading. O_NONBLOCK: opening a pipe would wait for a writer; files ignore it."""


def read_at(descriptor: int, out: memoryview, start: int) -> int:
    """Read bytes of a file from `start` into `out`; return how many, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [out], start)
    if hasattr(os, "pread"):  # macOS before 11
        data = os.pread(descriptor, len(out), start)
    else:  # Windows, where a mapped file cannot become shorter
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            data = mapped[start : start + len(out)]
    out[: len(data)] = data
    return len(data)


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in every child that this process forks; Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
