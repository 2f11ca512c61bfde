"""Memory of the core in tests: failing allocations, rounds that must not allocate, leaks."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import missing
from specdec import _core
from worlds.canonical import HAS_HOOKS

needs_hooks = pytest.mark.skipif(not HAS_HOOKS, reason=missing.HOOKS)


def bytes_held() -> int:
    """Return the bytes that the core has allocated and not freed."""
    return _core._alloc_bytes()


@contextmanager
def allowing(n: int) -> Iterator[None]:
    """Let the core's next n allocations succeed and all later ones fail."""
    _core._alloc_fail_after(n)
    try:
        yield
    finally:
        _core._alloc_fail_after(-1)


@contextmanager
def nothing_leaks() -> Iterator[None]:
    """Check that every block of the core allocated inside is freed inside."""
    gc.collect()
    live = _core._alloc_live()
    yield
    gc.collect()
    assert _core._alloc_live() == live


def fail_each_allocation(work: Callable[[], object]) -> int:
    """Repeat the work with n = 0, 1, … allocations allowed until it succeeds; return the number of failures.

    Each failure raises MemoryError, and nothing leaks.
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
