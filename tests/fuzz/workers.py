"""Worker processes that run cases, each with limits of time and memory; a dead one is replaced.

A worker's main thread may be deaf to signals, in C, and it may be killed by the system. So it only answers
over a pipe, and its parent watches it: seconds of its processor for a case that computes without end, seconds
of the clock for one that waits without end. On a busy machine the former do not grow.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz.failures import Failure, Outcome

__all__ = ["Limits", "Pool", "Task", "case_of"]

Task = tuple[Any, ...]
"""("case", the case), ("configuration", seed, index, alarm) or ("file", seed, index)."""


@dataclass(frozen=True)
class Limits:
    """What a case may take.

    Attributes
    ----------
    processor_s : float
        Seconds of the worker's processors, for each thread of the case.
    clock_s : float
        Seconds of the clock.
    """

    processor_s: float = 10.0
    clock_s: float = 120.0


def case_of(task: Task) -> dict[str, Any]:
    """The case that a task names."""
    if task[0] == "case":
        return task[1]
    if task[0] == "configuration":
        from fuzz.worlds import case

        return case(*task[1:])
    from fuzz.damage import file_case

    return file_case(*task[1:])


class Pool:
    """Runs tasks on several workers.

    Parameters
    ----------
    n_workers : int
    limits : Limits
    """

    def __init__(self, n_workers: int, limits: Limits) -> None:
        self.limits = limits
        self._context = multiprocessing.get_context("spawn")
        self._workers = [_Worker(self._context, limits) for _ in range(n_workers)]

    def run(
        self, stretches: Iterable[list[Task]], until: float = float("inf")
    ) -> Iterator[tuple[Task, Outcome]]:
        """Each task and what came of it, as they end; a stretch of tasks stays with one worker.

        `until` is a reading of `time.monotonic`, after which nothing new begins.
        """
        waiting = iter(stretches)
        queues: dict[_Worker, deque[Task]] = {worker: deque() for worker in self._workers}
        while True:
            for worker, queue in queues.items():
                if worker.task is None and time.monotonic() < until:
                    if not queue:
                        queue.extend(next(waiting, []))
                    if queue:
                        worker.begin(queue.popleft())
            busy = [worker for worker in queues if worker.task is not None]
            if not busy:
                return
            wait([worker.connection for worker in busy], timeout=0.25)
            for worker in busy:
                task = worker.task
                outcome = worker.outcome()
                if outcome is not None:
                    yield task, outcome

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Worker:
    """A process, and the task that it has."""

    def __init__(self, context: Any, limits: Limits) -> None:
        self._context, self._limits = context, limits
        self.task: Task | None = None
        self._start()

    def _start(self) -> None:
        handle, name = tempfile.mkstemp(prefix="fuzz-", suffix=".log")
        os.close(handle)
        self._log = Path(name)
        self.connection, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, name), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def begin(self, task: Task) -> None:
        self.task = task
        self._begun, self._used = time.monotonic(), _processor_s(self._process.pid)
        with contextlib.suppress(OSError):  # a dead worker is noticed where it is waited for
            self.connection.send(task)

    def outcome(self) -> Outcome | None:
        """What came of the task, if it has ended or is ended now."""
        try:
            if self.connection.poll():
                found = self.connection.recv()
                if found == "ready":  # imports are done: time counts from here
                    self._begun, self._used = time.monotonic(), _processor_s(self._process.pid)
                    return None
                self.task = None
                return found
        except (EOFError, OSError):
            self._process.join(5)
            return self._replace("crash", f"the process ended with {_ending(self._process.exitcode)}")
        elapsed = time.monotonic() - self._begun
        if elapsed < 1.0:
            return None
        used = _processor_s(self._process.pid) - self._used
        if used > self._limits.processor_s * _n_threads(self.task):
            return self._replace("hang", f"{used:.0f} s of the processor", stop=True)
        if elapsed > self._limits.clock_s:
            return self._replace("hang", f"{elapsed:.0f} s, of the processor {used:.1f} s", stop=True)
        return None

    def _replace(self, status: str, message: str, *, stop: bool = False) -> Outcome:
        if stop:  # it says where it is, if it can
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(0.3)
            self._process.kill()
            self._process.join()
        written = self._log.read_text(errors="replace")[-2000:].strip()
        task, self.task = self.task, None
        self.close()
        self._start()
        return Outcome(status, f"{message}\n{written}".strip(), case_of(task))

    def close(self) -> None:
        self.connection.close()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._log.unlink(missing_ok=True)


def _n_threads(task: Task) -> int:
    if task[0] == "file":
        return 1
    return case_of(task).get("settings", {}).get("n_threads", 1)


def _processor_s(process: int | None) -> float:
    """Seconds of processors that a process has taken; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit status {code}"


# ------------------------------------------------------------------------------------------ in a worker


def _serve(connection: Connection, log: str) -> None:
    """Answer tasks until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    file = open(log, "wb", buffering=0)  # open as long as the process
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    faulthandler.enable(file)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file)
    import fuzz.checks  # noqa: F401  # before the time of the first case begins

    connection.send("ready")
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        file.truncate(0)
        file.seek(0)
        connection.send(_run(task))


def _run(task: Task) -> Outcome:
    """Run one task in this process; a `Failure` or any other exception becomes an outcome."""
    from fuzz.checks import check
    from specdec.errors import SpecdecError

    case = case_of(task)
    try:
        return Outcome(check(case))
    except Failure as failure:
        return Outcome(failure.kind, failure.message, case)
    except MemoryError:
        return Outcome("memory", _shown(), case)
    except SpecdecError:
        return Outcome("exception", "named, but there was no reason for it\n" + _shown(), case)
    except BaseException:
        return Outcome("exception", _shown(), case)


def _shown() -> str:
    """The exception, and where it was raised."""
    kind, error, trace = sys.exc_info()
    lines = traceback.format_exception_only(kind, error)
    places = traceback.format_list(traceback.extract_tb(trace, limit=-4))
    return "\n".join([lines[-1].strip()[:500], *(place.splitlines()[0][:200] for place in places)])
