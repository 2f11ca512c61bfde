"""The thread in which a draft learns: of low priority, and ended in time."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable

__all__ = ["LearningThread"]


class LearningThread:
    """Calls a method every so often, until it is stopped, its object is gone, or it returns False.

    It ends with the object and before the interpreter does. A forked child has no such thread.

    Parameters
    ----------
    step : method
        Its object is not kept alive.
    interval_s : float
        Between the end of a call and the next.
    name : str
        Of the thread.
    """

    def __init__(self, step: Callable[[], bool], interval_s: float, name: str) -> None:
        self._stopping = threading.Event()
        # A daemon, since the interpreter waits for other threads before it calls what ends this one.
        self._thread = threading.Thread(
            target=_run, args=(weakref.WeakMethod(step), interval_s, self._stopping), name=name, daemon=True
        )
        self._end = weakref.finalize(getattr(step, "__self__"), _end, self._stopping, self._thread)  # noqa: B009
        self._thread.start()

    @property
    def goes_on(self) -> bool:
        """Whether it is there and has not been told to stop."""
        return not self._stopping.is_set() and self._thread.is_alive()

    def stop(self) -> None:
        """Let it end, and wait for that; idempotent."""
        _end(self._stopping, self._thread)
        self._end.detach()


def _run(step: weakref.WeakMethod[Callable[[], bool]], interval_s: float, stopping: threading.Event) -> None:
    _lower_priority()
    while not stopping.wait(interval_s):
        method = step()
        if method is None or not method():
            return
        del method  # while it waits the object may go


def _end(stopping: threading.Event, thread: threading.Thread) -> None:
    stopping.set()
    if thread is not threading.current_thread():  # which may be the last that knew the object
        thread.join()


def _lower_priority() -> None:
    """Give way to all others, where a thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
