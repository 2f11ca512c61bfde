"""The requests of an engine that wait for slots: they come from any thread, and share the slots fairly."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

from specdec.decoding.engine_metrics import Counters
from specdec.decoding.generation import Generation, Sample
from specdec.decoding.sequence import score_prompts
from specdec.errors import BusyError, EngineClosedError, number_of


class RequestQueue:
    """Texts that wait for a slot.

    A free slot goes to the request that holds the fewest slots, and among equals to the one that has waited
    longest since it arrived or got its last slot. A prompt whose log-probabilities are wanted is scored, in a
    thread of its own, before its texts wait.

    The `lock` guards the queue and the `counters` of requests; it is notified when the engine's thread may
    have work. `closing`: no more requests are taken; `hurries`: all texts that are there are to be cancelled.
    """

    def __init__(self, *, n_slots: int, max_waiting: int, counters: Counters) -> None:
        self._n_slots, self._max_waiting, self._counters = n_slots, max_waiting, counters
        self._scorer: ThreadPoolExecutor | None = None
        self.lock = threading.Condition()
        self.closing = self.hurries = False
        # Samples without a slot, by request; the request that has waited longest is first.
        self._waiting: dict[Generation, deque[Sample]] = {}
        self._n_waiting = 0  # samples in it
        self._n_scored = 0  # samples whose prompt is being scored: they wait too
        self._n_held: Counter[Generation] = Counter()  # slots of each request that has some

    @property
    def n_waiting(self) -> int:
        """Texts without a slot."""
        return self._n_waiting + self._n_scored

    @property
    def n_taken(self) -> int:
        """Texts that have a slot."""
        return self._n_held.total()

    # ----------------------------------------------------------------------------------- any thread

    def check_room(self, n: int) -> None:
        """Refuse n texts more, by an EngineClosedError, or a BusyError where there is no room for them."""
        with self.lock:
            if self.closing:
                raise EngineClosedError("the engine is closed; expected one that is open")
            n_free = self._n_slots - self.n_taken
            if self.n_waiting + n > self._max_waiting + n_free:
                self._counters.n_refused += 1
                waiting, more = number_of(self.n_waiting, "text"), number_of(n, "text")
                raise BusyError(f"{waiting} wait; expected at most {self._max_waiting}, with {more} more")

    def put(self, generation: Generation) -> None:
        """Let the samples of a request wait; raises as `check_room`."""
        with self.lock:
            self.check_room(generation.n)
            self._counters.n_submitted += 1
            if generation.request.options.prompt_logprobs is None:
                self._append(generation)
                self.lock.notify_all()
                return
            if self._scorer is None:
                self._scorer = ThreadPoolExecutor(1, "specdec-scores")
            self._scorer.submit(self._score, generation)  # it waits for the lock
            self._n_scored += generation.n

    def _append(self, generation: Generation) -> None:
        self._waiting[generation] = deque(generation.samples)
        self._n_waiting += generation.n

    def _score(self, generation: Generation) -> None:
        """Score the prompt of a request, if any of its samples is wanted, and let them wait."""
        error: BaseException | None = None
        try:
            if not all(map(self.is_unwanted, generation.samples)):
                score_prompts(generation.samples)
        except BaseException as found:
            error = found
        with self.lock:
            self._n_scored -= generation.n
            if error is None:
                self._append(generation)
            else:
                self.fail(generation, error)
            self.lock.notify_all()

    def stop_scoring(self, *, wait: bool = False) -> None:
        """End the thread that scores prompts."""
        if self._scorer is not None:
            self._scorer.shutdown(wait=wait)

    def fail(self, generation: Generation, error: BaseException, sample: Sample | None = None) -> None:
        """End a request by an error, of one of its samples or of all; the first one counts."""
        with self.lock:  # the thread that scores prompts counts too
            self._counters.n_failed += generation.fail(error, sample)

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
            while not (self._waiting or self._n_held):
                if self.closing and self._n_scored == 0:
                    return False
                self.lock.wait()
        return True

    def take(self) -> Sample | None:
        """The next text for a free slot; None: none waits."""
        with self.lock:
            chosen = None
            for generation in self._waiting:
                if chosen is None or self._n_held[generation] < self._n_held[chosen]:
                    chosen = generation
                if not self._n_held[chosen]:  # none holds fewer, and those before it hold some
                    break
            if chosen is None:
                return None
            self._n_held[chosen] += 1
            samples = self._waiting.pop(chosen)
            sample = samples.popleft()
            self._n_waiting -= 1
            if samples:
                self._waiting[chosen] = samples  # last in the order again
            return sample

    def give_back_slot(self, sample: Sample) -> None:
        """Free the slot of a text that was taken."""
        with self.lock:
            self._n_held[sample.generation] -= 1
            if not self._n_held[sample.generation]:
                del self._n_held[sample.generation]

    def drop_unwanted(self) -> list[Sample]:
        """Drop the texts that nobody wants any more, and return them."""
        gone: list[Sample] = []
        with self.lock:
            for generation, samples in tuple(self._waiting.items()):
                unwanted = dict.fromkeys(filter(self.is_unwanted, samples))
                gone += unwanted
                if len(unwanted) == len(samples):
                    del self._waiting[generation]
                elif unwanted:
                    self._waiting[generation] = deque(one for one in samples if one not in unwanted)
            self._n_waiting -= len(gone)
        return gone

    def is_unwanted(self, sample: Sample) -> bool:
        """Whether a text is to be cancelled."""
        return sample.cancelled or self.hurries

    def drop_all(self) -> list[Sample]:
        """Drop all texts, and return them; first those whose prompts are being scored are waited for."""
        self.stop_scoring(wait=True)
        with self.lock:
            gone = list(itertools.chain.from_iterable(self._waiting.values()))
            self._waiting.clear()
            self._n_waiting = 0
        return gone
