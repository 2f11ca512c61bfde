"""Memory of the core in tests: an allocation that fails, a round that must not allocate, blocks that leak."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from specdec import _core
from worlds.canonical import HAS_HOOKS, NO_HOOKS

needs_hooks = pytest.mark.skipif(not HAS_HOOKS, reason=NO_HOOKS)


def bytes_held() -> int:
    """Bytes that the core has allocated and not freed."""
    return _core._alloc_bytes()


@contextmanager
def allowing(n: int) -> Iterator[None]:
    """The core's next n allocations succeed, and those after them fail."""
    _core._alloc_fail_after(n)
    try:
        yield
    finally:
        _core._alloc_fail_after(-1)


@contextmanager
def nothing_leaks() -> Iterator[None]:
    """Every block of the core that is made here is freed here."""
    gc.collect()
    live = _core._alloc_live()
    yield
    gc.collect()
    assert _core._alloc_live() == live


def fail_each_allocation(work: Callable[[], object]) -> int:
    """Do the work with n allocations allowed, for n = 0, 1, … until it is done; how often it failed.

    Each time there is a MemoryError, and nothing leaks.
    """
    for n in itertools.count():
        failed = False
        with nothing_leaks():
            try:
                with allowing(n):
                    work()
            except MemoryError:
                failed = True
        if not failed:
            return n
    raise AssertionError("not reached")
