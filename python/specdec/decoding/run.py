"""A request being carried out, round by round."""

from __future__ import annotations

import struct
import time
from collections.abc import Generator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_integer
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.stopping import FinishReason, StopRules, StopScanner
from specdec.errors import NotFiniteError
from specdec.models.model import Model
from specdec.models.score import Score, score_and_keep, score_ids, score_of_nothing, top_pairs
from specdec.models.tokenizer import StreamDecoder
from specdec.trace import Round, Trace

if TYPE_CHECKING:
    from specdec._core import RoundRecord

__all__ = ["Run", "SequenceState"]

SLICE_S = 0.02
"""Seconds of rounds between two looks at their records. A model's weights push the interpreter out of the
caches, so the first record looked at takes some 50 microseconds, and those after it a few."""


class SequenceState:
    """The new text of one sequence so far, and where it ends.

    That is decided token by token, in the order of the tokens, and never by the rounds they came in; so
    speculative and plain decoding end alike.

    Parameters
    ----------
    decoder : StreamDecoder or None
        Turns the tokens into text; None where there is no tokenizer.
    stop : StopRules
    limit : int
        New tokens at most.
    limit_reason : str
        The finish reason when there are that many.
    """

    def __init__(
        self, decoder: StreamDecoder | None, stop: StopRules, limit: int, limit_reason: FinishReason
    ) -> None:
        self.tokens: list[int] = []
        self.prefill_s = 0.0  # of the prompts that were read together with this one
        self.n_cached = 0  # tokens of the prompt that a prompt cache had
        self.rounds: list[Round] = []
        self.logits: list[NDArray[np.float32]] = []
        self.laws: list[tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]] = []
        self.finish_reason: FinishReason | None = None
        self.stop: str | int | None = None
        self._decoder = decoder
        self._stop_ids = stop.ids
        self._scanner = StopScanner(stop.strings)
        self._n_read = 0  # tokens that have become text
        self._whole = False  # and the end of the text has
        self._limit = limit
        self._limit_reason = limit_reason

    def take(self, record: RoundRecord) -> Round:
        """Add a round's tokens up to where the text ends."""
        if self.finish_reason is not None:
            raise ValueError("the text has already ended")
        kept = 0
        for token in record["tokens"]:
            self._append(token)
            kept += 1
            if self.finish_reason is not None:
                break
        if record["logits"] is not None:
            self.logits.append(record["logits"][:kept])
        if record["laws"] is not None:
            log_probs, top, of_top = record["laws"]
            self.laws.append((log_probs[:kept], top[:kept], of_top[:kept]))
        round_ = Round(
            index=len(self.rounds),
            drafted=tuple(record["drafted"]),
            parents=tuple(record["parents"]),
            path=tuple(record["accepted"]),
            tokens=tuple(record["tokens"]),
            kept=kept,
            betas=tuple(record["betas"]),
            draft_s=record["draft_s"],
            verify_s=record["verify_s"],
            other_s=record["other_s"],
            experts=record["experts"],
        )
        self.rounds.append(round_)
        return round_

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        if token in self._stop_ids:
            self.finish_reason, self.stop = "stop", token
        elif self._scanner.strings:
            self._read()
        if self.finish_reason is None and len(self.tokens) >= self._limit:
            self.finish_reason = self._limit_reason
        if self.finish_reason is not None and self._scanner.strings:
            self._read()

    def _read(self) -> None:
        """Turn new tokens into text and look for stop strings; without such, when the text is wanted."""
        if self._decoder is None or self._whole or self._scanner.match is not None:
            return
        end = len(self.tokens) - isinstance(self.stop, int)  # a stop id is no text
        piece = self._decoder.feed(self.tokens[self._n_read : end]) if end > self._n_read else ""
        self._n_read = end
        if self.finish_reason is not None:
            # What is left of an incomplete character is text too, so it may complete a stop string.
            piece += self._decoder.finish()
            self._whole = True
        if self._scanner.feed(piece) is not None:
            self.finish_reason, self.stop = "stop", self._scanner.match

    def take_text(self, *, final: bool = False) -> str:
        """Text that is new since the last call and cannot be taken back; `final`: no more text comes."""
        self._read()
        return self._scanner.take(final=final or self.finish_reason is not None)

    @property
    def text(self) -> str | None:
        """The text so far, None without a tokenizer."""
        if self._decoder is None:
            return None
        self._read()
        return self._scanner.text


class Run:
    """The core's session for a request, and what comes of each sequence.

    The session is a batch of slots. When a text ends, the next prompt that waits takes its slot.

    Parameters
    ----------
    request : Request
    streaming : bool, default False
        Give every round when it is through, not several at a time.
    """

    def __init__(self, request: Request, *, streaming: bool = False) -> None:
        self.request = request
        self.sequences = [
            SequenceState(beginning.stream_decoder(request.target), request.stop, *request.limit(i))
            for i, beginning in enumerate(request.beginnings)
        ]
        # The core ends a text at its length and at stop ids; a stop string must be looked for each round.
        # And a caller's policy is asked before each.
        asked = request.policy is not None and not isinstance(request.policy, AdaptiveGamma)
        at_once = streaming or asked or bool(request.stop.strings)
        self._slice_s = 0.0 if at_once else SLICE_S
        self._session: _core.Session | None = None
        self._slots = list(range(request.n_slots))  # the sequence in each slot
        self._prompt_scores: list[Score] = []  # of each prompt, where they are asked for
        self._scored_s = 0.0  # seconds that they took
        self._read: _core.CachedText | None = None  # a single prompt, when it has been scored
        self._sound = False  # the core has done what it was asked for last

    def rounds(self) -> Generator[tuple[int, Round], None, None]:
        """The rounds of `_rounds`; a NotFiniteError of theirs carries what there was before it."""
        try:
            yield from self._rounds()
        except NotFiniteError as error:
            results = [self.result(i, unfinished=True) for i in range(len(self.sequences))]
            error.result = self.request.arranged(results)
            raise

    def _rounds(self) -> Generator[tuple[int, Round], None, None]:
        """Prefill, then every round as (index of its sequence, the round), until all sequences have ended.

        Signals are handled between the core's calls and in them, at most every 50 ms, before every forward
        and between the steps of each other loop that can run long. So Ctrl-C raises KeyboardInterrupt within
        50 ms and a forward.
        """
        request = self.request
        beginnings, n_slots = request.beginnings, request.n_slots
        limits = [request.limit(i)[0] for i in range(len(beginnings))]
        slots = self._slots
        if request.options.prompt_logprobs is not None:
            started = time.perf_counter()
            self._score_prompts(request.options.prompt_logprobs)
            self._scored_s = time.perf_counter() - started
        waiting = iter(range(n_slots, len(beginnings)))
        following = next(waiting, None)
        laws: dict[str, Any] = {}
        if request.options.logprobs is not None:
            laws = {"law": request.options.logprobs_of, "n_top": request.options.logprobs}
        self._session = _core.Session(
            request.target.core,
            request.description,
            [beginning.ids for beginning in beginnings[:n_slots]],
            sources=[beginning.source for beginning in beginnings[:n_slots]],
            gamma=request.gamma,
            max_new_tokens=max(limits),
            n_text=max(len(one.ids) + limit for one, limit in zip(beginnings, limits, strict=True)),
            node_budget=request.node_budget or 0,
            sampling=request.sampling.core(),
            draft_sampling=request.draft_sampling.core(),
            transform=request.options.transform,
            rule=request.rule,
            lenience=request.options.lenience,
            seeds=[self._seed(index) for index in slots],
            n_threads=request.n_threads,
            keep_logits=request.options.logits,
            stop_ids=sorted(request.stop.ids),
            adaptive_gamma=(
                request.policy.begin(request.kind) if isinstance(request.policy, AdaptiveGamma) else None
            ),
            **laws,
        )
        for slot in slots:
            self._begin(self._session, slot)
        begun = slots.copy()
        draft, description = request.draft, request.description
        while True:
            self._sound = False
            held = description
            if draft is not None and description is not None:
                description = draft.take_update(self._session, description)
            if begun or description is not held:
                prefill_s = self._session.prefill()
                for index in begun:
                    self.sequences[index].prefill_s = self._scored_s + prefill_s
            asked = {} if (gammas := self._gammas(slots)) is None else {"gammas": gammas}
            records = self._session.round(self._slice_s, until_end=following is not None, **asked)
            self._sound = True
            if not records:
                return
            ended, begun = [], []
            for record in records:
                slot = record["sequence"]
                index = slots[slot]
                if record["error"] is not None:
                    raise record["error"]
                round_ = self.sequences[index].take(record)
                if self.sequences[index].finish_reason is not None:
                    self._session.finish(slot)
                    self._remember(index)
                    ended.append(slot)
                yield index, round_
            for slot in ended:
                if following is not None:
                    self._keep(self._session, slot)
                    beginning = beginnings[following]
                    self._session.replace(slot, beginning.ids, self._seed(following), source=beginning.source)
                    slots[slot] = following
                    self._begin(self._session, slot)
                    begun.append(following)
                    following = next(waiting, None)

    def _score_prompts(self, n_top: int) -> None:
        """What the target says of the tokens of the prompts."""
        request = self.request
        given = request.beginnings[:: request.options.n]
        if len(given) == 1 and len(given[0].ids) > 1:
            score, self._read = score_and_keep(
                request.target,
                given[0].ids,
                given[0].source_of(request.target),
                n_top=n_top,
                n_threads=request.n_threads,
            )
            self._prompt_scores = [score]
            return
        long = [i for i, beginning in enumerate(given) if len(beginning.ids) > 1]
        found = score_ids(
            request.target,
            [(given[i].ids, 1) for i in long],
            [np.asarray(given[i].source_of(request.target), np.int32) for i in long]
            if request.target.config.encoder is not None
            else None,
            n_top=n_top,
            n_threads=request.n_threads,
        )
        self._prompt_scores = [score_of_nothing(n_top) for _ in given]
        for i, score in zip(long, found, strict=True):
            self._prompt_scores[i] = score

    def _seed(self, index: int) -> tuple[int, int]:
        """The key (seed, sequence) of the random numbers of a text that begins.

        With a draft that remembers earlier texts it is one that none of them had (`Draft.text_key`). Under
        the coupled rule the numbers are those of plain decoding: there the text is a function of them alone.
        """
        seed, sequence = self.request.seeds[index]
        draft = self.request.draft
        if draft is None or self.request.rule == "coupled" or not (key := draft.text_key()):
            return seed, sequence
        digest = blake2b(struct.pack(f"<{len(key) + 1}Q", seed, *key), digest_size=8).digest()
        return int.from_bytes(digest, "little"), sequence

    def _remember(self, index: int) -> None:
        """Tell the draft of a text that has ended."""
        sequence = self.sequences[index]
        if self.request.draft is not None and sequence.tokens:
            self.request.draft.remember(self.request.beginnings[index].ids, sequence.tokens)

    def _readers(self) -> list[Model]:
        """The models that read the texts into caches of their own, each once."""
        draft = self.request.draft
        of_draft = () if draft is None else draft.readers
        return list({model.core: model for model in [*of_draft, self.request.target]}.values())

    def _as_read(self, model: Model, ids: Sequence[int]) -> Sequence[int]:
        """A text as one of these models reads it."""
        draft, target = self.request.draft, self.request.target
        return ids if draft is None or model.core is target.core else draft.as_read(model, target, ids)

    def _begin(self, session: _core.Session, slot: int) -> None:
        """Begin the prompt in a slot with what has been read of it: for its score, or in the prompt cache."""
        self._begin_from_cache(session, slot)
        if self._read is not None:
            session.begin_with(slot, self._read)

    def _begin_from_cache(self, session: _core.Session, slot: int) -> None:
        cache, index = self.request.options.prompt_cache, self._slots[slot]
        if cache is None:
            return
        beginning = self.request.beginnings[index]
        for model in self._readers():
            taps = session.taps(slot, model.core)
            ids = self._as_read(model, beginning.ids)
            text = cache.find(model.core, ids, beginning.source_of(model), taps)
            n_cached = 0 if text is None else session.begin_with(slot, text)
            if model.core is self.request.target.core:
                self.sequences[index].n_cached = n_cached

    def _keep(self, session: _core.Session, slot: int) -> None:
        """Keep the text in a slot in the prompt cache, but for what is not read yet."""
        cache, index = self.request.options.prompt_cache, self._slots[slot]
        if cache is None:
            return
        beginning = self.request.beginnings[index]
        tokens = [*beginning.ids, *self.sequences[index].tokens]
        for model in self._readers():
            n_tokens, n_bytes, n_low = session.cached_size(slot, model.core)
            copy = partial(session.cached_text, slot, model.core)
            taps, source = session.taps(slot, model.core), beginning.source_of(model)
            read = self._as_read(model, tokens)[:n_tokens]
            cache.keep(model.core, read, n_bytes, n_low, copy, source=source, taps=taps)

    def _gammas(self, slots: Sequence[int]) -> list[int] | None:
        """What the caller's policy says of the next round of the sequence in each slot."""
        policy, limit = self.request.policy, self.request.gamma
        if policy is None or isinstance(policy, AdaptiveGamma):
            return None
        sequences = [self.sequences[index] for index in slots]
        return [
            check_integer("gamma(rounds)", policy(tuple(sequence.rounds)), 0, limit)
            if sequence.finish_reason is None
            else 0
            for sequence in sequences
        ]

    def result(self, index: int, *, unfinished: bool = False) -> Result:
        """What has come of a sequence: one that has ended, or, if it may be `unfinished`, of any."""
        request, sequence = self.request, self.sequences[index]
        if sequence.finish_reason is None and not unfinished:
            raise RuntimeError(f"sequence {index} has not ended")
        beginning = request.beginnings[index]
        n_vocab = request.target.config["n_vocab"]
        n_top, laws = request.options.logprobs, sequence.laws
        scores = self._prompt_scores
        of_prompt = scores[index // request.options.n] if scores else None
        return Result(
            text=sequence.text,
            tokens=sequence.tokens,
            finish_reason=sequence.finish_reason or "error",
            stop=sequence.stop,
            trace=Trace(sequence.rounds, prefill_s=sequence.prefill_s, n_sequences=request.n_slots),
            prompt_ids=beginning.ids,
            source_ids=beginning.source,
            source_text=beginning.source_text(request.target),
            seed=request.seeds[index],
            logits=(
                np.concatenate([np.empty((0, n_vocab), np.float32), *sequence.logits])
                if request.options.logits
                else None
            ),
            logprobs=None if n_top is None else np.concatenate([np.empty(0), *(law[0] for law in laws)]),
            top_logprobs=[pair for _, top, of in laws for pair in top_pairs(top, of)] if n_top else None,
            prompt_logprobs=None if of_prompt is None else of_prompt.log_probs,
            prompt_top_logprobs=None if of_prompt is None else of_prompt.top_logprobs,
            tokenizer=request.target.tokenizer,
            n_cached_tokens=sequence.n_cached,
        )

    def close(self) -> None:
        """Keep what was read in the prompt cache and in the draft, free the session's memory; idempotent."""
        if self._session is not None:
            session, self._session = self._session, None
            try:
                for index in self._slots:  # of a text that was cut short there is what was committed
                    if self.sequences[index].finish_reason is None:
                        self._remember(index)
                for slot in range(len(self._slots)) if self._sound else ():
                    self._keep(session, slot)
                policy = self.request.policy
                if isinstance(policy, AdaptiveGamma) and session.adaptive_gamma is not None:
                    policy.end(self.request.kind, session.adaptive_gamma)
            finally:
                session.close()
