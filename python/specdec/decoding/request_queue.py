"""Request queue of an engine: fair slots, and turns for expensive constraints."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, Literal

from specdec.decoding.generation import Generation, Sample
from specdec.decoding.guided.guidance import Guidance
from specdec.decoding.scheduler import score_prompts
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import BusyError, EngineClosedError, number_of
from specdec.trace import Round

_CHEAP_S: Final = 0.005
"""A sequence whose masks take longer than this per round, in seconds, has an expensive constraint."""
_SITS_OUT: Final = -1
"""Placeholder for the number of draft tokens of a sequence that skips a round."""


@dataclass(kw_only=True)
class EngineMetrics:
    """Snapshot of an `Engine`: its present state, and counters since its creation.

    Attributes
    ----------
    n_slots, n_running, n_reading, n_waiting : int
        Slots; running sequences; prompts being processed; sequences waiting for a slot.
    n_submitted, n_refused, n_failed : int
        Accepted requests, requests refused because of load (`BusyError`), requests that ended with an error.
    n_finished : dict of str to int
        Ended sequences by `finish_reason`.
    n_prompt_tokens, n_cached_tokens, n_new_tokens : int
        Prompt tokens of admitted sequences, those found in a prompt cache, and new tokens.
    n_rounds, n_drafts : int
        Rounds of the batch; rounds of single sequences with draft tokens.
    n_draft_tokens, n_accepted_tokens, n_prediction_accepted, n_prediction_rejected : int
        Draft tokens; accepted ones; draft tokens copied from predictions that were accepted or rejected.
    accepted_at : list of int
        Rounds of single sequences that accepted their draft token 1, 2, …
    prefill_s, draft_s, verify_s, other_s : float
        Seconds of the engine's thread by activity.
    first_token_s, queue_s : tuple of (int, float)
        (count, sum of seconds) from submission to a request's first token, and to its first slot.
    """

    n_slots: int = 0
    n_running: int = 0
    n_reading: int = 0
    n_waiting: int = 0
    n_submitted: int = 0
    n_refused: int = 0
    n_failed: int = 0
    n_finished: dict[str, int] = field(default_factory=dict)
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_new_tokens: int = 0
    n_rounds: int = 0
    n_drafts: int = 0
    n_draft_tokens: int = 0
    n_accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    n_prediction_accepted: int = 0
    n_prediction_rejected: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    first_token_s: tuple[int, float] = (0, 0.0)
    queue_s: tuple[int, float] = (0, 0.0)


class Counters(EngineMetrics):
    """Counters of an engine; those of requests are written under the engine's lock."""

    def metrics(self, **now: int) -> EngineMetrics:
        """Return a copy with the present state."""
        return EngineMetrics(**deepcopy(vars(self)) | now)

    def count_wait(self, name: Literal["first_token_s", "queue_s"], seconds: float) -> None:
        """Count a request's wait for its first token or first slot."""
        n, sum_s = getattr(self, name)
        setattr(self, name, (n + 1, sum_s + seconds))

    def count_round(self, round_: Round, copied: tuple[int, int]) -> None:
        """Count one sequence's round and its draft tokens copied from a prediction."""
        self.n_new_tokens += round_.kept
        self.n_prediction_accepted += copied[0]
        self.n_prediction_rejected += copied[1]
        if not round_.drafted:
            return
        self.n_drafts += 1
        self.n_draft_tokens += round_.n_drafted
        self.n_accepted_tokens += round_.n_accepted
        self.accepted_at += [0] * (round_.n_accepted - len(self.accepted_at))
        for i in range(round_.n_accepted):
            self.accepted_at[i] += 1

    def count_times(self, rounds: Iterable[tuple[object, Round]]) -> None:
        """Add the times of a step's rounds; each sequence reports those of the whole batch."""
        seen: set[object] = set()  # sequences seen in this round
        for sequence, round_ in rounds:
            if not seen or sequence in seen:
                seen.clear()
                self.n_rounds += 1
                self.draft_s += round_.draft_s
                self.verify_s += round_.verify_s
                self.other_s += round_.other_s
            seen.add(sequence)


class RequestQueue:
    """Queue of samples that wait for a slot.

    A free slot goes to the request that holds the fewest slots; ties go to the request that has waited
    longest since it arrived or got its last slot. Prompts with requested log-probabilities are first scored
    in a separate thread.

    `lock` guards the queue and the request `counters`; it notifies the engine's thread of work. `closing`:
    new requests are refused; `hurries`: all present samples will be cancelled.
    """

    def __init__(self, n_slots: int, max_waiting: int, counters: Counters) -> None:
        self._n_slots, self._max_waiting, self._counters = n_slots, max_waiting, counters
        self._scorer: ThreadPoolExecutor | None = None
        self.lock = threading.Condition()
        self.closing = self.hurries = False
        # Samples without a slot, by request; the one that has waited longest is first.
        self._waiting: dict[Generation, deque[Sample]] = {}
        self._n_waiting = 0  # samples in `_waiting`
        self._n_scored = 0  # samples whose prompt is being scored
        self._n_held: Counter[Generation] = Counter()  # slots held by each request

    @property
    def n_waiting(self) -> int:
        """Number of samples without a slot."""
        return self._n_waiting + self._n_scored

    @property
    def n_taken(self) -> int:
        """Number of samples with a slot."""
        return self._n_held.total()

    # ----------------------------------------------------------------------------------- any thread

    def check_capacity(self, n: int) -> None:
        """Raise EngineClosedError if closed, or BusyError if n more samples exceed the limit."""
        with self.lock:
            if self.closing:
                raise EngineClosedError("the engine is closed; submit to an open one")
            n_free = self._n_slots - self.n_taken
            if self.n_waiting + n > self._max_waiting + n_free:
                self._counters.n_refused += 1
                waiting, more = number_of(self.n_waiting, "text"), number_of(n, "text")
                raise BusyError(f"{waiting} waiting; expected at most {self._max_waiting} with {more} more")

    def put(self, generation: Generation) -> None:
        """Enqueue the samples of a request; raises as `check_capacity`."""
        with self.lock:
            self.check_capacity(generation.n)
            self._counters.n_submitted += 1
            if generation.request.options.prompt_logprobs is None:
                self._admit(generation)
                return
            if self._scorer is None:
                self._scorer = ThreadPoolExecutor(1, "specdec-scores")
            self._scorer.submit(self._score, generation)  # the scorer waits for the lock
            self._n_scored += generation.n

    def _score(self, generation: Generation) -> None:
        """Score a request's prompt unless all its samples are cancelled, then enqueue them."""
        error: BaseException | None = None
        try:
            if not all(map(self.is_unwanted, generation.samples)):
                score_prompts(generation.samples)
        except BaseException as found:
            error = found
        with self.lock:
            self._n_scored -= generation.n
            if error is None:
                self._admit(generation)
            else:
                self.fail(generation, error)
                self.lock.notify_all()

    def _admit(self, generation: Generation) -> None:
        """Enqueue the samples of a request; the caller holds the lock."""
        self._waiting[generation] = deque(generation.samples)
        self._n_waiting += generation.n
        self.lock.notify_all()

    def stop_scoring(self, *, wait: bool = False) -> None:
        """Stop the scoring thread; `wait` for the prompts it has."""
        if self._scorer is not None:
            self._scorer.shutdown(wait=wait)

    def fail(self, generation: Generation, error: BaseException, sample: Sample | None = None) -> None:
        """Fail a request because of an error in one or all samples; only the first error counts."""
        with self.lock:  # the scoring thread counts too
            self._counters.n_failed += generation.fail(error, sample)

    def notify(self) -> None:
        """Tell the engine's thread to check for work."""
        with self.lock:
            self.lock.notify_all()

    def close(self, *, hurries: bool) -> None:
        """Refuse new requests; cancel the present ones if it `hurries`."""
        with self.lock:
            self.closing = True
            self.hurries = self.hurries or hurries
            self.lock.notify_all()

    # --------------------------------------------------------------------------- the engine's thread

    def wait_for_work(self) -> bool:
        """Wait for samples to decode. False: the queue is closed and empty."""
        with self.lock:
            while not (self._waiting or self._n_held):
                if self.closing and self._n_scored == 0:
                    return False
                self.lock.wait()
        return True

    def take(self) -> Sample | None:
        """Return the next sample for a free slot, or None."""
        with self.lock:
            chosen = None
            for generation in self._waiting:
                if chosen is None or self._n_held[generation] < self._n_held[chosen]:
                    chosen = generation
                if not self._n_held[chosen]:  # no request holds fewer slots
                    break
            if chosen is None:
                return None
            self._n_held[chosen] += 1
            samples = self._waiting.pop(chosen)
            sample = samples.popleft()
            self._n_waiting -= 1
            if samples:
                self._waiting[chosen] = samples  # it moves to the end
            return sample

    def give_back_slot(self, sample: Sample) -> None:
        """Free the slot of a sample."""
        with self.lock:
            self._n_held -= Counter([sample.generation])  # drops zero counts

    def drop_unwanted(self) -> list[Sample]:
        """Remove and return cancelled samples; all if it `hurries`."""
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
        """Whether a sample is cancelled."""
        return sample.cancelled or self.hurries


class ConstraintTurns:
    """Limits the delay that sequences with expensive constraints cause to others.

    At most one such sequence joins each round, without draft tokens, so a round waits for about one expensive
    mask. These masks take at most half of the engine's time while other sequences run.
    """

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._expensive: set[Generation] = set()
        self._spent: dict[Generation, float] = {}  # mask seconds before the round
        self._n_texts: Counter[Generation] = Counter()  # sequences of each request in the round
        self._n_turns = 0
        self._next_s = 0.0  # when the next expensive mask may be computed, by time.perf_counter

    def plan(self, running: list[Sample]) -> list[int] | None:
        """Return the maximum of draft tokens per slot for the next round; None: no limit."""
        constraints = {
            sample.generation: constraint.mask_s
            for sample in running
            if isinstance(constraint := sample.generation.request.guidance, Guidance)
        }
        self._n_texts = Counter(sample.generation for sample in running)
        self._expensive &= constraints.keys()
        self._spent = {one: seconds for one, seconds in constraints.items() if one not in self._expensive}
        if not self._expensive:
            return None
        gammas = [MAX_GAMMA] * self._n_slots
        expensive = [sample for sample in running if sample.generation in self._expensive]
        for sample in expensive:
            assert sample.slot is not None
            gammas[sample.slot] = _SITS_OUT
        if len(expensive) == len(running) or time.perf_counter() >= self._next_s:
            chosen = min(expensive, key=lambda sample: sample.last_turn)
            assert chosen.slot is not None
            gammas[chosen.slot] = 0
            self._n_turns += 1
            chosen.last_turn = self._n_turns
            self._spent[chosen.generation] = constraints[chosen.generation]
        return gammas

    def end_round(self) -> None:
        """Record how long the masks of the last planned round took."""
        expensive_s = 0.0
        for generation, before in self._spent.items():
            constraint = generation.request.guidance
            assert isinstance(constraint, Guidance)
            seconds = constraint.mask_s - before
            shares = 1 if generation in self._expensive else self._n_texts[generation]
            if seconds > _CHEAP_S * shares:
                self._expensive.add(generation)
                expensive_s += seconds
            else:
                self._expensive.discard(generation)
        self._spent = {}
        self._next_s = max(self._next_s, time.perf_counter() + expensive_s)
