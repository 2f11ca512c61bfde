"""The requests of an engine that have no slot yet: they come from any thread, and wait in their order."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial

from specdec.decoding.engine_metrics import Counters
from specdec.decoding.generation import Generation, Sample
from specdec.decoding.prompt_scorer import PromptScorer
from specdec.errors import BusyError, EngineClosedError, number_of

__all__ = ["RequestQueue"]


class RequestQueue:
    """Texts that wait for a slot.

    A prompt whose log-probabilities are wanted is scored before its texts wait.

    Parameters
    ----------
    scorer : PromptScorer
    n_slots, max_waiting : int
        Of the engine.
    counters : Counters
        Those of requests are written here, with the lock.

    Attributes
    ----------
    lock : threading.Condition
        Guards the queue and the counters of requests. Notified when the engine's thread may have work.
    closing : bool
        No more requests are taken.
    hurries : bool
        All texts that are there are to be cancelled.
    """

    def __init__(self, scorer: PromptScorer, *, n_slots: int, max_waiting: int, counters: Counters) -> None:
        self._scorer, self._n_slots, self._max_waiting = scorer, n_slots, max_waiting
        self._counters = counters
        self.lock = threading.Condition()
        self.closing = self.hurries = False
        self._waiting: deque[Sample] = deque()
        self._n_scored = 0  # samples whose prompt is being scored: they wait too
        self._n_taken = 0  # samples that have a slot

    @property
    def n_waiting(self) -> int:
        """Texts without a slot."""
        return len(self._waiting) + self._n_scored

    @property
    def n_taken(self) -> int:
        """Texts that have a slot."""
        return self._n_taken

    # ----------------------------------------------------------------------------------- any thread

    def check_room(self, n: int) -> None:
        """Refuse n texts more, if the engine takes none or there is no room for them.

        Raises
        ------
        EngineClosedError, BusyError
        """
        with self.lock:
            if self.closing:
                raise EngineClosedError("the engine is closed; expected one that is open")
            n_free = self._n_slots - self._n_taken
            if self.n_waiting + n > self._max_waiting + n_free:
                self._counters.n_refused += 1
                raise BusyError(
                    f"{number_of(self.n_waiting, 'text')} wait; expected at most {self._max_waiting}, with "
                    f"{number_of(n, 'text')} more"
                )

    def put(self, generation: Generation) -> None:
        """Let the samples of a request wait.

        Raises
        ------
        EngineClosedError, BusyError
        """
        with self.lock:
            self.check_room(generation.n)
            self._counters.n_submitted += 1
            if generation.request.options.prompt_logprobs is not None:
                self._n_scored += generation.n
                is_wanted = partial(self._is_any_wanted, generation)
                self._scorer.submit(generation, is_wanted, partial(self._wait_scored, generation))
                return
            self._waiting.extend(generation.samples)
            self.lock.notify_all()

    def _is_any_wanted(self, generation: Generation) -> bool:
        return not all(map(self.is_unwanted, generation.samples))

    def _wait_scored(self, generation: Generation, error: BaseException | None) -> None:
        """Let the samples of a request wait whose prompt is scored, in the scorer's thread."""
        with self.lock:
            self._n_scored -= generation.n
            if error is None:
                self._waiting.extend(generation.samples)
            else:
                self.fail(generation, error)
            self.lock.notify_all()

    def fail(self, generation: Generation, error: BaseException, sample: Sample | None = None) -> None:
        """End a request by an error, of one of its samples or of all; the first one counts."""
        if sample is not None:
            sample.state.finish_reason = "error"
            sample.ended = True
        with self.lock:  # the thread that scores prompts counts too
            self._counters.n_failed += generation.fail(error, sample, self._n_slots)

    def wake(self) -> None:
        """Have the engine's thread look whether there is work."""
        with self.lock:
            self.lock.notify_all()

    def close(self, *, hurries: bool) -> None:
        """Take no more requests; cancel those that are there, if it `hurries`."""
        with self.lock:
            self.closing = True
            self.hurries = self.hurries or hurries
            self.lock.notify_all()

    # --------------------------------------------------------------------------- the engine's thread

    def wait_for_work(self) -> bool:
        """Wait until there are texts to decode. False: the queue is closed, and there are none."""
        with self.lock:
            while not (self._waiting or self._n_taken):
                if self.closing and self._n_scored == 0:
                    return False
                self.lock.wait()
        return True

    def take(self) -> Sample | None:
        """The text that has waited longest, for a free slot; None: none waits."""
        with self.lock:
            if not self._waiting:
                return None
            self._n_taken += 1
            return self._waiting.popleft()

    def give_back_slot(self) -> None:
        """A text that was taken has left its slot."""
        with self.lock:
            self._n_taken -= 1

    def drop_unwanted(self) -> list[Sample]:
        """Drop the texts that nobody wants any more, and return them."""
        with self.lock:
            gone = [sample for sample in self._waiting if self.is_unwanted(sample)]
            if gone:
                self._waiting = deque(sample for sample in self._waiting if not self.is_unwanted(sample))
        return gone

    def is_unwanted(self, sample: Sample) -> bool:
        """Whether a text is to be cancelled."""
        return sample.cancelled or self.hurries

    def drop_all(self) -> list[Sample]:
        """Drop all texts, and return them; first those whose prompts are being scored are waited for."""
        self._scorer.stop(wait=True)
        with self.lock:
            gone = list(self._waiting)
            self._waiting.clear()
        return gone
