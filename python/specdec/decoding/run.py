"""A request being carried out, round by round."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import numpy as np

from specdec import _core
from specdec.checks import check_integer
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.kept_texts import KeptTexts
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.sequence_state import SequenceState
from specdec.decoding.text_keys import text_key
from specdec.errors import NotFiniteError
from specdec.models.score import Score, score_and_keep, score_ids, score_of_nothing
from specdec.trace import Round

__all__ = ["SLICE_S", "Run"]

SLICE_S = 0.02
"""Seconds of rounds between two looks at their records. A model's weights push the interpreter out of the
caches, so the first record looked at takes some 50 microseconds, and those after it a few."""


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
        self._settings_of: dict[_core.Model, _core.Settings] = {}
        self._sound = False  # the core has done what it was asked for last
        cache = request.options.prompt_cache
        self._kept = None if cache is None else KeptTexts(cache, request.target, request.draft)

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
        self._session = _core.Session(
            request.target.core,
            request.description,
            [beginning.ids for beginning in beginnings[:n_slots]],
            sources=[beginning.source for beginning in beginnings[:n_slots]],
            gamma=request.gamma,
            settings=[self._settings(index) for index in slots],
            n_text=max(len(one.ids) + limit for one, limit in zip(beginnings, limits, strict=True)),
            node_budget=request.node_budget or 0,
            seeds=[self._key(index) for index in slots],
            n_threads=request.n_threads,
            keep_logits=request.options.logits,
            adaptive_gamma=(
                request.policy.begin(request.kind) if isinstance(request.policy, AdaptiveGamma) else None
            ),
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
                    self._sound = False
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
                    self._session.replace(
                        slot,
                        beginning.ids,
                        self._key(following),
                        source=beginning.source,
                        settings=self._settings(following),
                    )
                    slots[slot] = following
                    self._begin(self._session, slot)
                    begun.append(following)
                    following = next(waiting, None)

    def _settings(self, index: int) -> _core.Settings:
        """How a text is decoded: all texts of one model alike."""
        request = self.request
        model = request.model(index).core
        if model not in self._settings_of:
            most = max(request.limit(i)[0] for i in range(len(request.beginnings)))
            self._settings_of[model] = request.settings(index, max_new_tokens=most)
        return self._settings_of[model]

    def _score_prompts(self, n_top: int) -> None:
        """What the model of each text says of the tokens of its prompt."""
        request = self.request
        given = request.beginnings[:: request.options.n]
        if len(given) == 1 and len(given[0].ids) > 1:
            score, self._read = score_and_keep(
                request.model(0),
                given[0].ids,
                given[0].source_of(request.target),
                n_top=n_top,
                n_threads=request.n_threads,
            )
            self._prompt_scores = [score]
            return
        self._prompt_scores = [score_of_nothing(n_top) for _ in given]
        of_model: dict[_core.Model, list[int]] = {}
        for i, beginning in enumerate(given):
            if len(beginning.ids) > 1:
                of_model.setdefault(request.model(i * request.options.n).core, []).append(i)
        for together in of_model.values():
            model = request.model(together[0] * request.options.n)
            found = score_ids(
                model,
                [(given[i].ids, 1) for i in together],
                [np.asarray(given[i].source_of(model), np.int32) for i in together]
                if model.config.encoder is not None
                else None,
                n_top=n_top,
                n_threads=request.n_threads,
            )
            for i, score in zip(together, found, strict=True):
                self._prompt_scores[i] = score

    def _key(self, index: int) -> tuple[int, int]:
        """The key of the random numbers of a text that begins."""
        request = self.request
        return text_key(request.seeds[index], request.draft, request.rule)

    def _remember(self, index: int) -> None:
        """Tell the draft of a text that has ended."""
        sequence = self.sequences[index]
        if self.request.draft is not None and sequence.tokens:
            self.request.draft.remember(self.request.beginnings[index].ids, sequence.tokens)

    def _begin(self, session: _core.Session, slot: int) -> None:
        """Begin the prompt in a slot with what has been read of it: for its score, or in the prompt cache."""
        self._begin_from_cache(session, slot)
        if self._read is not None:
            session.begin_with(slot, self._read)

    def _begin_from_cache(self, session: _core.Session, slot: int) -> None:
        index = self._slots[slot]
        if self._kept is not None:
            self.sequences[index].n_cached = self._kept.begin(
                session, slot, self.request.beginnings[index], self.request.model(index)
            )

    def _keep(self, session: _core.Session, slot: int) -> None:
        """Keep the text in a slot in the prompt cache, but for what is not read yet."""
        index = self._slots[slot]
        if self._kept is not None:
            self._kept.keep(session, slot, self.request.model(index))

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
        scores = self._prompt_scores
        return sequence.result(
            request.target,
            request.beginnings[index],
            request.seeds[index],
            n_sequences=request.n_slots,
            n_top=request.options.logprobs,
            logits=request.options.logits,
            of_prompt=scores[index // request.options.n] if scores else None,
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
