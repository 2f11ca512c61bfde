"""The requests of an engine: those that wait share the slots fairly, expensive constraints take turns."""

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
"""Seconds that the masks of a text may take in a round without its constraint being expensive."""
_SITS_OUT: Final = -1
"""In place of the number of draft tokens, for a text that takes no part in a round."""


@dataclass(kw_only=True)
class EngineMetrics:
    """A look at an `Engine`: what it holds now, and counters since it was made.

    Attributes
    ----------
    n_slots, n_running, n_reading, n_waiting : int
        Slots; texts that take rounds, prompts that are being read, texts that wait for a slot.
    n_submitted, n_refused, n_failed : int
        Requests that were taken, that were refused as too many (`BusyError`), and that ended with an error.
    n_finished : dict of str to int
        Texts by their `finish_reason`.
    n_prompt_tokens, n_cached_tokens, n_new_tokens : int
        Tokens of prompts that got a slot, those of them that a prompt cache had, and new tokens.
    n_rounds, n_drafts : int
        Rounds of the batch, and rounds of single texts that had draft tokens.
    n_draft_tokens, n_accepted_tokens, n_prediction_accepted, n_prediction_rejected : int
        Draft tokens, those that were accepted, and what became of those copied from predictions.
    accepted_at : list of int
        Rounds of single texts in which draft token 1, 2, … in a row was accepted.
    prefill_s, draft_s, verify_s, other_s : float
        Seconds of the engine's thread.
    first_token_s, queue_s : tuple of (int, float)
        How many, and the sum of seconds from submitting to a request's first token, and to its first slot.
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
    """What an engine counts; counters of requests are written under the engine's lock."""

    def metrics(self, **now: int) -> EngineMetrics:
        """A copy, with what the engine holds now."""
        return EngineMetrics(**deepcopy(vars(self)) | now)

    def count_wait(self, name: Literal["first_token_s", "queue_s"], seconds: float) -> None:
        """The first token, or the first slot, of a request, so long after it came."""
        n, sum_s = getattr(self, name)
        setattr(self, name, (n + 1, sum_s + seconds))

    def count_round(self, round_: Round, copied: tuple[int, int]) -> None:
        """A round of one text, and what became of draft tokens that were copied from a prediction."""
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
        """The times of a step's rounds, by sequence: each of a round has those of the whole batch."""
        seen: set[object] = set()  # sequences of the round
        for sequence, round_ in rounds:
            if not seen or sequence in seen:
                seen.clear()
                self.n_rounds += 1
                self.draft_s += round_.draft_s
                self.verify_s += round_.verify_s
                self.other_s += round_.other_s
            seen.add(sequence)


class RequestQueue:
    """Texts that wait for a slot.

    A free slot goes to the request that holds the fewest slots, and among equals to the one that has waited
    longest since it arrived or got its last slot. A prompt whose log-probabilities are wanted is scored, in a
    thread of its own, before its texts wait.

    The `lock` guards the queue and the `counters` of requests; it is notified when the engine's thread may
    have work. `closing`: no more requests are taken; `hurries`: all texts that are there are to be cancelled.
    """

    def __init__(self, n_slots: int, max_waiting: int, counters: Counters) -> None:
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

    def check_capacity(self, n: int) -> None:
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
        """Let the samples of a request wait; raises as `check_capacity`."""
        with self.lock:
            self.check_capacity(generation.n)
            self._counters.n_submitted += 1
            if generation.request.options.prompt_logprobs is None:
                self._admit(generation)
                return
            if self._scorer is None:
                self._scorer = ThreadPoolExecutor(1, "specdec-scores")
            self._scorer.submit(self._score, generation)  # it waits for the lock
            self._n_scored += generation.n

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
                self._admit(generation)
            else:
                self.fail(generation, error)
                self.lock.notify_all()

    def _admit(self, generation: Generation) -> None:
        """Let the samples of a request wait for a slot; the lock is held."""
        self._waiting[generation] = deque(generation.samples)
        self._n_waiting += generation.n
        self.lock.notify_all()

    def stop_scoring(self, *, wait: bool = False) -> None:
        """End the thread that scores prompts; `wait` for those that it has."""
        if self._scorer is not None:
            self._scorer.shutdown(wait=wait)

    def fail(self, generation: Generation, error: BaseException, sample: Sample | None = None) -> None:
        """End a request by an error, of one of its samples or of all; the first one counts."""
        with self.lock:  # the thread that scores prompts counts too
            self._counters.n_failed += generation.fail(error, sample)

    def notify(self) -> None:
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
            self._n_held -= Counter([sample.generation])  # which keeps no zeros

    def drop_unwanted(self) -> list[Sample]:
        """Drop the texts that nobody wants any more, all if it `hurries`, and return them."""
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


class ConstraintTurns:
    """Keeps texts whose constraints are expensive from delaying the others.

    Only one such text takes part in a round, without draft tokens, so that a round waits for about one of its
    masks. Such masks take at most half of the engine's time, as long as there are other texts.
    """

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._expensive: set[Generation] = set()
        self._spent: dict[Generation, float] = {}  # what the masks had taken before the round
        self._n_texts: Counter[Generation] = Counter()  # that took part in it
        self._n_turns = 0
        self._next_s = 0.0  # when the next expensive mask may be computed, by time.perf_counter

    def plan(self, running: list[Sample]) -> list[int] | None:
        """Return the most draft tokens of each slot in the next round of these texts; None: no limit."""
        constraints = {
            sample.generation: constraint.mask_s
            for sample in running
            if isinstance(constraint := sample.generation.request.constraint, Guidance)
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
        """Record how long the masks of the round that was planned last took."""
        expensive_s = 0.0
        for generation, before in self._spent.items():
            constraint = generation.request.constraint
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
