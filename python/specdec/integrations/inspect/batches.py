"""Requests that come one by one from coroutines, carried out together in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import anyio
from anyio.from_thread import run_sync
from anyio.lowlevel import EventLoopToken, current_token

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Waiting(Generic[Request]):
    """A request, and how its coroutine is woken."""

    request: Request
    token: EventLoopToken
    event: anyio.Event = field(default_factory=anyio.Event)
    is_wanted: bool = True  # false when its coroutine was cancelled
    answer: Any = None
    error: Exception | None = None

    def wake(self) -> None:
        try:
            run_sync(self.event.set, token=self.token)
        except RuntimeError:  # the event loop has ended, and nobody waits
            self.is_wanted = False


class Batches(Generic[Request, Answer]):
    """A queue of requests and the thread that carries them out, as many at once as wait and have equal keys.

    `work` returns the answers to requests with equal keys, in order; what it raises goes to all of them. A
    batch has at most `size` requests; one that is not full waits `wait_s` for another.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Request]], Sequence[Answer]],
        key: Callable[[Request], Hashable],
        size: int,
        wait_s: float = 0.02,
    ) -> None:
        self._work, self._key, self._size, self._wait_s = work, key, size, wait_s
        self._queue: SimpleQueue[_Waiting[Request] | None] = SimpleQueue()
        self._lock = threading.Lock()  # of who starts and ends the thread
        self._thread: threading.Thread | None = None

    async def submit(self, request: Request) -> Answer:
        """The answer to a request; what `work` raises comes through."""
        waiting = _Waiting(request, current_token())
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="specdec batches", daemon=True)
                self._thread.start()
            self._queue.put(waiting)
        try:
            await waiting.event.wait()
        except BaseException:
            waiting.is_wanted = False
            raise
        if waiting.error is not None:
            raise waiting.error
        answer: Answer = waiting.answer
        return answer

    def close(self) -> None:
        """End the thread when what waits is done. A later request starts another."""
        with self._lock:
            if self._thread is not None:
                self._queue.put(None)
                self._thread = None

    def _run(self) -> None:
        waiting: list[_Waiting[Request]] = []
        is_open = True
        while is_open or waiting:
            if is_open:
                is_open = self._collect(waiting)
            waiting = [one for one in waiting if one.is_wanted]
            if not waiting:
                continue
            key = self._key(waiting[0].request)
            batch = [one for one in waiting if self._key(one.request) == key][: self._size]
            waiting = [one for one in waiting if one not in batch]
            self._carry_out(batch)

    def _collect(self, waiting: list[_Waiting[Request]]) -> bool:
        """Add what has come; without anything to do wait for it. False when the queue was closed."""
        while True:
            try:
                if not waiting:
                    found = self._queue.get()
                else:
                    found = self._queue.get(timeout=self._wait_s if len(waiting) < self._size else 0.0)
            except Empty:
                return True
            if found is None:
                return False
            waiting.append(found)

    def _carry_out(self, batch: Sequence[_Waiting[Request]]) -> None:
        try:
            answers = self._work([one.request for one in batch])
            for one, answer in zip(batch, answers, strict=True):
                one.answer = answer
        except Exception as error:
            for one in batch:
                one.error = error
        for one in batch:
            one.wake()
