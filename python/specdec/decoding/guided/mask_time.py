"""Limits on the processor time of masks: for each mask and for a whole text."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from specdec import system
from specdec.errors import ConstraintError

Mask: TypeAlias = bytes | None
_MOST_MASK_S: Final = 0.05  # limit for one mask
_ANY_TEXT_S: Final = 0.5  # limit for all masks of a text, plus the following average per mask
_EACH_MASK_S: Final = 0.02
_MOST_LATE: Final = 2  # masks past their limit that may still run while others begin
_CHEAP_S: Final = 0.05  # a text below this is not refused for the late masks of others; plus, per mask,
_EACH_CHEAP_S: Final = 0.002  # this average

# Processor time of the worker: on a busy machine it may not have run while its caller waited. Elapsed time
# if a thread cannot read another's clock.
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
        self.seconds = 0.0  # processor time of a finished job

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
    """A thread that computes masks one after another."""

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
        """Return the processor seconds of the thread since it began a job; 0 before that."""
        if begun is None:
            return 0.0
        return (_now() if self._clock is None else time.clock_gettime(self._clock)) - begun


class MaskMeter:
    """Computes the masks of one text, with limits on the time of each mask and of all.

    `in_thread`: compute in threads, so that a caller never waits longer than the limit; otherwise only
    measure. `spend` receives the processor time of each mask that a caller has waited for.
    """

    __slots__ = ("_in_thread", "_n_masks", "_name", "_seconds", "_spend")

    def __init__(self, name: str, in_thread: bool, spend: Callable[[float], object]) -> None:
        self._name, self._in_thread, self._spend = name, in_thread, spend
        self._n_masks = 0
        self._seconds = 0.0

    def mask(self, job: MaskJob) -> Mask:
        """Return the mask of a job, new or late; raises ConstraintError past a time limit."""
        is_new, in_time = job.is_new, True
        if is_new:
            self._check()
            self._n_masks += 1
        if self._in_thread:
            in_time = job.run_in_thread(_MOST_MASK_S)
        elif is_new:  # otherwise it has raised, and raises again
            job.run()
        seconds = job.seconds if in_time else _MOST_MASK_S
        self._seconds += seconds
        self._spend(seconds)
        if not in_time:
            found = f"longer than {_MOST_MASK_S:g} s to find the allowed tokens"
            raise ConstraintError.of(self._name, None, "a less ambiguous one", found, "takes")
        return job.result()

    def _check(self) -> None:
        if self._seconds > _ANY_TEXT_S + _EACH_MASK_S * self._n_masks:
            found = f"{self._seconds:.2f} s to find the allowed tokens at {self._n_masks} positions of a text"
            expected = f"at most {_EACH_MASK_S:g} s each on average"
            raise ConstraintError.of(self._name, None, expected, found, "has taken")
        is_cheap = self._seconds <= _CHEAP_S + _EACH_CHEAP_S * self._n_masks
        if self._in_thread and not is_cheap and len(_late) >= _MOST_LATE:
            found = f"while abandoned masks of {len(_late)} texts are still being computed"
            raise ConstraintError.of(self._name, None, "none", found, "is refused")


def _forget() -> None:
    """Forget the parent's threads, which a forked process does not have."""
    _idle.clear()
    _late.clear()


system.after_fork(_forget)
