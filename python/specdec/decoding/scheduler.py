"""Batched decoding: admits sequences to slots, steps them, and finishes them."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import as_integer
from specdec.decoding.adaptive_gamma import AUTO_GAMMA, AdaptiveGamma
from specdec.decoding.prompt_cache import PrefixCacheAdapter, PromptCache
from specdec.decoding.prompts import PromptIds
from specdec.decoding.request import Drafting, Request
from specdec.decoding.result import Result
from specdec.decoding.stopping import NewText
from specdec.errors import InputError, NotFiniteError
from specdec.models.model import Model
from specdec.models.score import Score, joined, scored, top_pairs
from specdec.models.tokenizer import StreamDecoder
from specdec.trace import Round, Trace

_MANY = 2**31 - 1
SLICE_S = 0.02
"""Seconds of rounds between two checks. A model's weights evict the interpreter from the caches, so the
first round after a check costs about 50 microseconds, later ones a few."""


class Sequence(NewText):
    """One sequence of a request, in a slot of a `Scheduler` or waiting for one."""

    def __init__(self, request: Request, index: int, settings: _core.Settings) -> None:
        self.request, self.index, self.settings = request, index, settings
        self.prompt = request.prompts[index]
        self.model = request.model(index)
        super().__init__(self._new_decoder(), request.stop, *request.limit(index))
        self.slot: int | None = None
        self.rounds: list[Round] = []
        self.prefill_s = 0.0  # of all prompts processed together with this one
        self.n_cached = 0  # prompt tokens found in the prompt cache
        self.rule: str | None = None  # that judges its draft tokens, once it has a slot
        self.n_sequences = request.n_slots
        self.score: Score | None = None  # log-probabilities of the prompt, if requested
        self.read: _core.CachedText | None = None  # prompt cached while scoring it
        self.error: BaseException | None = None
        self.logprobs: list[tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]] = []
        self._logits: list[NDArray[np.float32]] = []

    def take(self, done: _core.SlotRound) -> Round:
        """Append a round's tokens up to where the text ends; of a failed round keep only the error."""
        if done.error is not None:
            self.fail(done.error)
            return done.round
        kept = self.extend(done.round.tokens, complete=done.complete)
        round_ = done.round if kept == done.round.kept else replace(done.round, kept=kept)
        if done.logits is not None:
            self._logits.append(done.logits[:kept])
        if done.logprobs is not None:
            log_probs, top, of_top = done.logprobs
            self.logprobs.append((log_probs[:kept], top[:kept], of_top[:kept]))
        self.rounds.append(round_)
        return round_

    def fail(self, error: BaseException) -> None:
        """End the text with an error; earlier output stays."""
        self.error, self.finish_reason = error, "error"

    def result(self) -> Result:
        """Return the result so far; its finish reason is "error" if the text has not ended."""
        request, target, score = self.request, self.request.target, self.score
        answer, n_reasoning = self._answer()
        logits = log_probs = top = None
        if request.options.logits:
            logits = np.concatenate([np.empty((0, target.config.n_vocab), np.float32), *self._logits])
        if request.options.logprobs is not None:
            log_probs = np.concatenate([np.empty(0), *(of_round for of_round, _, _ in self.logprobs)])
        if request.options.logprobs:
            top = [pairs for _, ids, of_ids in self.logprobs for pairs in top_pairs(ids, of_ids)]
        return Result(
            text=self.text, answer=answer, n_reasoning_tokens=n_reasoning, tokens=self.tokens,
            finish_reason=self.finish_reason or "error", stop=self.stop,
            trace=Trace(
                self.rounds, prefill_s=self.prefill_s, n_sequences=self.n_sequences, rule=self.rule
            ),
            prompt_ids=self.prompt.ids, source_ids=self.prompt.source,
            source_text=self.prompt.source_text(target), seed=request.seeds[self.index],
            logits=logits, logprobs=log_probs, top_logprobs=top,
            prompt_logprobs=None if score is None else score.log_probs,
            prompt_top_logprobs=None if score is None else score.top_logprobs,
            tokenizer=target.tokenizer, n_cached_tokens=self.n_cached,
        )  # fmt: skip

    def _new_decoder(self) -> StreamDecoder | None:
        """Return a decoder of the new tokens."""
        names = not self.request.options.skip_special_tokens
        return self.prompt.stream_decoder(self.request.target, names=names)

    def _answer(self) -> tuple[str | None, int]:
        """Return the text after the reasoning, and the number of tokens of reasoning."""
        request, text = self.request, self.text
        position = request.reasoning.get(tuple(self.prompt.ids)) if request.reasoning else None
        if position is None or (decoder := self._new_decoder()) is None or text is None:
            return text, 0
        n_before = 0
        for token in self.tokens:
            if position.phase == "ended":
                break
            position = position.after(token)
            n_before += len(decoder.feed([token]))
        if position.is_plain or position.phase == "undecided":
            return text, 0
        return text[n_before:].lstrip() if position.phase == "ended" else "", position.n_tokens


AnySequence = TypeVar("AnySequence", bound=Sequence)
Plan = Callable[[list[AnySequence]], list[int] | None]
"""Maps the running sequences to the maximum of draft tokens per slot (negative: skip the round), or None."""


class Scheduler(Generic[AnySequence]):
    """Slots of one session and the sequences in them. It has no thread: the caller's loop steps it.

    Sequences join and leave between steps. The output of a sequence depends on its own request only.

    `plan` returns the maximum of draft tokens per slot for the next round. `in_slices`: prompts are processed
    in slices between the rounds of other sequences, not whole before the next round. `session` are arguments
    of `_core.Session`; with `keep_logits` each step is one round.
    """

    def __init__(
        self, target: Model, drafting: Drafting, *, plan: Plan[AnySequence] | None = None,
        prompt_cache: PromptCache | None = None, in_slices: bool = False, **session: Any,
    ) -> None:  # fmt: skip
        self.n_slots: int = session["n_slots"]
        self.prefill_s = 0.0
        self._draft, self._description, gamma, self._adaptive = drafting
        self._plan, self._in_slices = plan, in_slices
        self._cached = None if prompt_cache is None else PrefixCacheAdapter(prompt_cache, target, self._draft)
        self._slots: list[AnySequence | None] = [None] * self.n_slots
        self._unread: set[int] = set()  # slots with unfinished prompts
        self._closed = False
        self._sound = True  # the last call of the core succeeded
        estimates = None if self._adaptive is None else self._adaptive[0].begin(self._adaptive[1])
        self._session = _core.Session(
            target.core, self._description, gamma=gamma, adaptive_gamma=estimates, **session
        )
        if prompt_cache is not None and self._cached is not None:
            self._cached.open(self._session)
            # a quarter of the cache for the text of one slot, no more than all of it for 16 slots
            self._session.keep_snapshots(_MANY, prompt_cache.max_bytes // min(4 * self.n_slots, 16))

    @classmethod
    def of(cls, request: Request, sequences: list[Sequence]) -> Scheduler[Sequence]:
        """Create slots for the sequences of one request."""
        is_callers = request.policy is not None and not isinstance(request.policy, AdaptiveGamma)
        scheduler: Scheduler[Sequence] = Scheduler(
            request.target, request.drafting, plan=partial(_asked, request) if is_callers else None,
            prompt_cache=request.options.prompt_cache, n_slots=request.n_slots, n_text=request.longest,
            n_threads=request.options.threads, settings=sequences[0].settings,
            keep_logits=request.options.logits, node_budget=request.node_budget,
        )  # fmt: skip
        if request.options.prompt_cache is None and len(sequences) > request.n_slots:
            scheduler._session.keep_snapshots(1, _MANY)  # later sequences may be samples of the same prompt
        return scheduler

    @property
    def running(self) -> list[AnySequence]:
        """Sequences that have slots, in slot order."""
        return [sequence for sequence in self._slots if sequence is not None]

    @property
    def n_free(self) -> int:
        """Number of empty slots."""
        return self._slots.count(None)

    @property
    def n_reading(self) -> int:
        """Number of sequences whose prompts are unfinished; callable from any thread."""
        return len(self._unread)

    def check(self, settings: _core.Settings) -> None:
        """Raise `InputError` if the rule cannot judge the draft's output; callable from any thread."""
        self._session.check(settings)

    def admit(self, sequence: AnySequence) -> None:
        """Give an empty slot to a sequence, with the part of its prompt that the prompt cache has."""
        slot = self._slots.index(None)
        prompt = sequence.prompt
        key = self._rng_key(sequence)
        sequence.rule = self._session.admit(slot, prompt.ids, key, sequence.settings, prompt.source)
        self._slots[slot], sequence.slot, sequence.n_sequences = sequence, slot, self.n_slots
        self._unread.add(slot)
        if self._cached is not None:
            sequence.n_cached = self._cached.begin(self._session, slot, prompt, sequence.model)
        if sequence.read is not None:
            self._session.begin_with(slot, sequence.read)

    def fetch(self, prompt: PromptIds, model: Model) -> None:
        """Read files of the prompt cache for a prompt of a model; callable from any thread."""
        if self._cached is not None:
            self._cached.fetch(prompt, model)

    def _rng_key(self, sequence: AnySequence) -> tuple[int, int]:
        """Return the RNG stream key (seed, sequence) for a new sequence.

        With a draft that remembers earlier texts, the key differs from theirs (`Draft.rng_key`). The coupled
        rule keeps the key of plain decoding, because the text is a function of its numbers alone.
        """
        request = sequence.request
        seed, number = request.seeds[sequence.index]
        if self._draft is None or request.rule == "coupled" or not (key := self._draft.rng_key()):
            return seed, number
        digest = blake2b(struct.pack(f"<{len(key) + 1}Q", seed, *key), digest_size=8).digest()
        return int.from_bytes(digest, "little"), number

    def step(self, seconds: float = 0.0) -> Iterator[tuple[AnySequence, Round | None]]:
        """Process prompts, then decode one round, or rounds for `seconds` or until a sequence ends.

        A yielded sequence that has ended or failed has already left its slot; one whose prompt failed has no
        round. An exception means that the whole session failed.
        """
        self._sound = False
        self._update_draft()
        yield from self._read()
        running = [sequence for sequence in self.running if sequence.slot not in self._unread]
        gammas = self._plan(running) if self._plan and running else None
        # The core ends a text at its length and at stop ids; stop strings need a check each round.
        if gammas or self._unread or any(sequence.request.stop.strings for sequence in running):
            seconds = 0.0
        rounds = self._session.round(seconds, until_end=True, gammas=gammas) if running else ()
        self._sound = True
        for done in rounds:
            sequence = self._slots[done.slot]
            if sequence is None:  # it ended in this call
                continue
            round_ = sequence.take(done)
            if sequence.finish_reason is not None:
                self.finish(sequence)
            yield sequence, round_

    def finish(self, sequence: AnySequence) -> None:
        """Empty a sequence's slot; the draft gets its text, and so does the prompt cache unless it failed."""
        slot = sequence.slot
        assert slot is not None
        self._remember(sequence)
        self._session.finish(slot)
        if sequence.error is None and self._cached is not None:
            self._cached.keep(self._session, slot, sequence.model)
        self._unread.discard(slot)
        self._slots[slot] = sequence.slot = None

    def close(self, *, keep: bool = True) -> None:
        """Keep what was computed and learned, even of unfinished texts, and free the session; idempotent."""
        occupied = [(slot, one) for slot, one in enumerate(self._slots) if keep and one is not None]
        self._slots = [None] * self.n_slots
        try:
            for _, sequence in occupied:
                self._remember(sequence)
            if self._sound and self._cached is not None:
                for slot, sequence in occupied:
                    self._cached.keep(self._session, slot, sequence.model)
            if keep and self._adaptive is not None and (learned := self._session.adaptive_gamma) is not None:
                policy, run_type = self._adaptive
                policy.end(run_type, learned)
                self._adaptive = None
        finally:
            if not self._closed:
                self._closed = True
                self._session.close()

    def _remember(self, sequence: AnySequence) -> None:
        if self._draft is not None and sequence.tokens:
            self._draft.remember(sequence.prompt.ids, sequence.tokens)

    def _update_draft(self) -> None:
        """Update a draft that has learned; it must then process the running texts again."""
        if self._draft is None or self._description is None:
            return
        description = self._draft.take_update(self._session, self._description)
        if description is not self._description:
            self._description = description
            self._unread |= {slot for slot, sequence in enumerate(self._slots) if sequence is not None}

    def _read(self) -> Iterator[tuple[AnySequence, None]]:
        """Process unfinished prompts; yield those that fail."""
        while self._unread:
            begun = time.perf_counter()
            try:
                unread = set(self._session.prefill_slice())
            except Exception as error:  # only these prompts fail
                for sequence in self.running:
                    if sequence.slot in self._unread:
                        sequence.fail(error)
                        self.finish(sequence)
                        yield sequence, None
                return
            seconds = time.perf_counter() - begun
            self.prefill_s += seconds
            for sequence in self.running:
                if sequence.slot in self._unread and not sequence.rounds:  # else it is processed again
                    sequence.prefill_s += seconds
            self._unread &= unread
            if self._in_slices:
                return


def _asked(request: Request, running: list[Sequence]) -> list[int]:
    """Ask the caller's gamma about the next round of each sequence, by slot."""
    policy: Any = request.policy
    gammas = [0] * request.n_slots
    for sequence in running:
        assert sequence.slot is not None
        wanted = policy(tuple(sequence.rounds))
        most = request.drafting.gamma
        if (number := as_integer(wanted)) is None or not 0 <= number <= most:
            expected = f"an integer from 0 to {most}, the function's attribute max_gamma"
            raise InputError.of("gamma(rounds)", wanted, f"{expected} ({AUTO_GAMMA} if unset)")
        gammas[sequence.slot] = number
    return gammas


def decode(
    scheduler: Scheduler[Sequence], sequences: list[Sequence], seconds: float = SLICE_S
) -> Generator[tuple[Sequence, Round], None, None]:
    """Decode all sequences of one request, in order as slots become free, and close the scheduler.

    At most `seconds` pass between two checks of the rounds; with 0 each round is yielded when it is done. A
    NotFiniteError has the output so far in its attribute `result`.
    """
    request, waiting = sequences[0].request, deque(sequences)
    try:
        if request.options.prompt_logprobs is not None:
            score_prompts(sequences)
        while waiting or scheduler.running:
            while waiting and scheduler.n_free:
                scheduler.admit(waiting.popleft())
            for sequence, round_ in scheduler.step(seconds):
                if sequence.error is not None:
                    raise sequence.error
                assert round_ is not None
                yield sequence, round_
    except NotFiniteError as error:
        error.result = request.arranged([sequence.result() for sequence in sequences])
        raise
    finally:
        scheduler.close()


def sequences_of(request: Request, **drafting: Any) -> list[Sequence]:
    """Create the sequences of a request, in order; `drafting` as in `Request.settings`."""
    settings: dict[_core.Model, _core.Settings] = {}
    found = []
    for index in range(len(request.prompts)):
        model = request.model(index).core
        if model not in settings:
            settings[model] = request.settings(index, **drafting)
        found.append(Sequence(request, index, settings[model]))
    return found


def score_prompts(sequences: list[Any]) -> None:
    """Score the prompts of all sequences of a request; a single prompt's cache is kept."""
    options, begun = sequences[0].request.options, time.perf_counter()
    n_top, n, n_threads = options.prompt_logprobs or 0, options.n, options.threads
    given = sequences[::n]
    scores = [joined([], n_top) for _ in given]
    read: _core.CachedText | None = None
    long = [i for i, sequence in enumerate(given) if len(sequence.prompt.ids) > 1]
    for model in {given[i].model.core: given[i].model for i in long}.values():
        together = [i for i in long if given[i].model.core is model.core]
        texts = [(given[i].prompt.ids, 1) for i in together]
        sources = [given[i].prompt.source or () for i in together] if model.config.encoder else None
        keep = len(given) == 1
        found, read = scored(model, texts, sources, n_top=n_top, n_threads=n_threads, keep=keep)
        for i, score in zip(together, found, strict=True):
            scores[i] = score
    seconds = time.perf_counter() - begun
    for sequence in sequences:
        sequence.score, sequence.read = scores[sequence.index // n], read
        sequence.prefill_s += seconds
