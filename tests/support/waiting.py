"""Waiting for what another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds: a thread of the lowest priority gets little of a busy machine.
PATIENCE_S = 120.0


def wait_for(condition: Callable[[], object]) -> None:
    """Return when ``condition()`` is true; an `AssertionError` says that it never was."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {PATIENCE_S:g} seconds"
        time.sleep(0.01)
