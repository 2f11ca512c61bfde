"""The processor time that the masks of a text take: bounded for each mask and for the whole text."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from specdec.errors import ConstraintError

Mask: TypeAlias = bytes | None
_MOST_MASK_S: Final = 0.05  # of one mask
_ANY_TEXT_S: Final = 0.5  # of all masks of a text, in addition to what each may take on average
_EACH_MASK_S: Final = 0.02
_MOST_LATE: Final = 2  # masks past their time that are still being computed, where others are to begin
_CHEAP_S: Final = 0.05  # of all masks of a text that is not refused for the late masks of others,
_EACH_CHEAP_S: Final = 0.002  # and what each of them may add on average

# Processor time of the worker: on a busy machine it may have got none while its caller waited. Elapsed time
# where a thread cannot read the clock of another.
_clock_of: Final[Callable[[int], int] | None] = getattr(time, "pthread_getcpuclockid", None)
_now: Final = time.perf_counter if _clock_of is None else time.thread_time

_idle: Final[list[_Worker]] = []
_late: Final[set[MaskJob]] = set()


class MaskJob:
    """One mask, computed in the calling thread or in a worker that the caller may stop waiting for."""

    __slots__ = ("_compute", "_ended", "_results", "_worker", "begun", "seconds")

    def __init__(self, compute: Callable[[], Mask]) -> None:
        self._compute = compute
        self._results: list[Mask | BaseException] = []
        self._worker: _Worker | None = None
        self._ended = threading.Lock()
        self.begun: float | None = None
        self.seconds = 0.0  # of processor time, of a job that has ended

    @property
    def is_new(self) -> bool:
        """Whether it has not been started."""
        return self.begun is None and self._worker is None

    def run(self, when_done: Callable[[], object] = bool) -> None:
        """Compute the mask in this thread; `when_done` is called before other threads see the result."""
        self.begun = _now()
        try:
            result: Mask | BaseException = self._compute()
        except BaseException as error:
            result = error
        self.seconds = _now() - self.begun
        when_done()
        self._results.append(result)
        _late.discard(self)

    def run_in_thread(self, most: float) -> bool:
        """Compute the mask in a worker, and wait for at most `most` seconds of that thread's time.

        Returns whether it has been computed. If not, the worker continues, and the caller may wait again.
        """
        if self._worker is None:
            self._ended.acquire()
            self._worker = _idle.pop() if _idle else _Worker()
            self._worker.jobs.put((self, self._ended))
        while not self._results:
            left = most - self._worker.seconds_since(self.begun)
            if left > 0:
                self._ended.acquire(timeout=max(left, 0.001))
                continue
            _late.add(self)
            if not self._results:
                return False
        _late.discard(self)
        return True

    def result(self) -> Mask:
        """Return the mask, or raise the exception that computing it raised."""
        (result,) = self._results
        if isinstance(result, BaseException):
            raise result
        return result


class _Worker:
    """A thread that computes one mask after another."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[MaskJob, threading.Lock]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name="specdec masks", daemon=True)
        thread.start()
        assert thread.ident is not None
        self._clock = None if _clock_of is None else _clock_of(thread.ident)

    def _run(self) -> None:
        while True:
            job, ended = self.jobs.get()
            job.run(lambda: _idle.append(self))
            ended.release()
            del job, ended

    def seconds_since(self, begun: float | None) -> float:
        """Processor time of the thread since it began a job; 0 before that."""
        if begun is None:
            return 0.0
        return (_now() if self._clock is None else time.clock_gettime(self._clock)) - begun


class MaskMeter:
    """Computes the masks of one text within bounds on the time of each mask and of all.

    `in_thread`: in threads, so that a caller never waits longer than the bound; otherwise they are only
    measured. `spend` is called with the processor time of each mask that a caller has waited for.
    """

    __slots__ = ("_in_thread", "_n_masks", "_name", "_seconds", "_spend")

    def __init__(self, name: str, in_thread: bool, spend: Callable[[float], object]) -> None:
        self._name, self._in_thread, self._spend = name, in_thread, spend
        self._n_masks = 0
        self._seconds = 0.0

    def mask(self, job: MaskJob) -> Mask:
        """The mask of a job, new or late; a ConstraintError where it, or all so far, takes too long."""
        is_new, in_time = job.is_new, True
        if is_new:
            self._check()
            self._n_masks += 1
        if self._in_thread:
            in_time = job.run_in_thread(_MOST_MASK_S)
        elif is_new:  # else it has raised, and raises again
            job.run()
        seconds = job.seconds if in_time else _MOST_MASK_S
        self._seconds += seconds
        self._spend(seconds)
        if not in_time:
            found = f"longer than {_MOST_MASK_S:g} s to find the tokens that may come next"
            raise ConstraintError.of(self._name, None, "a less ambiguous one", found, "takes")
        return job.result()

    def _check(self) -> None:
        if self._seconds > _ANY_TEXT_S + _EACH_MASK_S * self._n_masks:
            found = f"{self._seconds:.2f} s to find what may come next in {self._n_masks} positions of a text"
            expected = f"at most {_EACH_MASK_S:g} s each on average"
            raise ConstraintError.of(self._name, None, expected, found, "has taken")
        is_cheap = self._seconds <= _CHEAP_S + _EACH_CHEAP_S * self._n_masks
        if self._in_thread and not is_cheap and len(_late) >= _MOST_LATE:
            found = f"while masks of {len(_late)} texts that were given up are still being found"
            raise ConstraintError.of(self._name, None, "none", found, "is refused")


def _forget() -> None:
    """Forget the threads of the parent, which a forked process does not have."""
    _idle.clear()
    _late.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
