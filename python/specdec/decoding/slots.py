"""The texts that an engine decodes, each in a slot of one session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from specdec import _core
from specdec.decoding.engine_drafts import EngineDrafts
from specdec.decoding.engine_metrics import Counters
from specdec.decoding.form_turns import FormTurns
from specdec.decoding.generation import Sample
from specdec.decoding.kept_texts import KeptTexts
from specdec.decoding.prompt_cache import PromptCache
from specdec.decoding.request_queue import RequestQueue
from specdec.decoding.text_keys import text_key
from specdec.models.model import Model

if TYPE_CHECKING:
    from specdec._core import RoundRecord

__all__ = ["Slots"]

SLICE_S: Final = 0.002
"""Seconds of rounds in a call, while nobody waits for a slot: a model's own round is mostly longer."""


class Slots:
    """The session of an engine and the texts in its slots; after it is made for the engine's thread alone.

    Parameters
    ----------
    target : Model
    drafts : EngineDrafts
    queue : RequestQueue
        Where texts come from.
    counters : Counters
        Those of texts and rounds are written here.
    n_slots, n_text, max_top_logprobs, n_threads : int
    node_budget : int or None
        Of the engine.
    prompt_cache : PromptCache or None
    """

    def __init__(
        self,
        target: Model,
        drafts: EngineDrafts,
        queue: RequestQueue,
        counters: Counters,
        *,
        n_slots: int,
        n_text: int,
        max_top_logprobs: int,
        node_budget: int | None,
        n_threads: int,
        prompt_cache: PromptCache | None,
    ) -> None:
        self._target, self._drafts = target, drafts
        self._queue, self._counters = queue, counters
        self._n_slots, self._n_text, self._n_threads = n_slots, n_text, n_threads
        self._max_top, self._node_budget = max_top_logprobs, node_budget
        self._kept = None if prompt_cache is None else KeptTexts(prompt_cache, target, drafts.of_session)
        self._samples: list[Sample | None] = [None] * n_slots
        self._reading: set[int] = set()  # slots whose prompts are not in
        self._turns = FormTurns(n_slots)
        self._begin_session()

    def _begin_session(self) -> None:
        self._description = self._drafts.description
        self._session = _core.Session(
            self._target.core,
            self._description,
            [],
            seeds=[],
            gamma=self._drafts.gamma,
            n_threads=self._n_threads,
            n_slots=self._n_slots,
            n_text=self._n_text,
            max_top=self._max_top,
            mixed=True,
            node_budget=self._node_budget or 0,
            adaptive_gamma=self._drafts.begin_adapting(),
        )

    @property
    def n_reading(self) -> int:
        """Texts whose prompts are not in; any thread may ask."""
        return len(self._reading)

    def _running(self) -> list[Sample]:
        return [sample for sample in self._samples if sample is not None]

    # ------------------------------------------------------------------------------------- the loop

    def step(self) -> None:
        """What is done between two looks at the requests.

        Raises
        ------
        Exception
            The session has failed, for instance by a draft of the caller's: `begin_again`.
        """
        self._drop_unwanted()
        self._admit()
        self._update_draft()
        self._read_slice()
        self._run_rounds()

    def begin_again(self, error: BaseException) -> None:
        """The session has failed, and with it the texts in its slots; those that wait get another one."""
        self._fail(self._empty(), error)
        self._session.close()
        self._begin_session()

    def fail_all(self, error: BaseException) -> None:
        """The engine has failed, and with it all texts, those that wait too."""
        self._fail([*self._empty(), *self._queue.drop_all()], error)

    def _empty(self) -> list[Sample]:
        there = self._running()
        self._reading.clear()
        for sample in there:
            self._vacate(sample)
        return there

    def _fail(self, samples: list[Sample], error: BaseException) -> None:
        for generation in {sample.generation.id: sample.generation for sample in samples}.values():
            self._queue.fail(generation, error)

    def close(self) -> None:
        """Keep what gamma="auto" has learnt, and free the session."""
        self._drafts.end_adapting(self._session)
        self._session.close()

    # ------------------------------------------------------------------------------ coming and going

    def _drop_unwanted(self) -> None:
        """End the texts that nobody wants any more."""
        gone = self._queue.drop_unwanted()
        gone += [sample for sample in self._running() if self._queue.is_unwanted(sample)]
        for sample in gone:
            sample.state.finish_reason = "cancelled"
            self._end(sample)

    def _admit(self) -> None:
        """Give free slots to texts that wait, in the order of the queue."""
        for slot in range(self._n_slots):
            if self._samples[slot] is not None:
                continue
            sample = self._queue.take()
            if sample is None:
                return
            self._samples[slot], sample.slot = sample, slot
            try:
                self._join(sample, slot)
            except Exception as error:
                self._leave(sample, sound=False)
                self._queue.fail(sample.generation, error, sample)

    def _join(self, sample: Sample, slot: int) -> None:
        generation, beginning = sample.generation, sample.beginning
        key = text_key(sample.seed, self._drafts.of_session, generation.request.rule)
        self._session.replace(slot, beginning.ids, key, source=beginning.source, settings=generation.settings)
        if self._kept is not None:
            sample.state.n_cached = self._kept.begin(
                self._session, slot, beginning, generation.request.model(0)
            )
        if generation.read is not None:
            self._session.begin_with(slot, generation.read)
        self._reading.add(slot)
        counters, now = self._counters, time.perf_counter()
        if generation.times.started is None:
            generation.times.started = now
            generation.n_cached_tokens = sample.state.n_cached
            counters.count_start(now - generation.times.submitted)
        counters.n_prompt_tokens += len(beginning.ids)
        counters.n_cached_tokens += sample.state.n_cached

    def _end(self, sample: Sample) -> None:
        """A text has ended: keep what outlives it, leave its slot, and tell its readers."""
        if sample.ended:
            return
        draft = self._drafts.of_session
        if draft is not None and sample.state.tokens:
            draft.remember(sample.beginning.ids, sample.state.tokens)
        self._publish(sample)  # both may raise: the text is still in its slot, so its readers are told
        self._leave(sample, sound=True)
        reason = str(sample.state.finish_reason)
        finished = self._counters.n_finished
        finished[reason] = finished.get(reason, 0) + 1
        sample.generation.end(sample, self._n_slots)

    def _leave(self, sample: Sample, *, sound: bool) -> None:
        slot = sample.slot
        if slot is None:
            return
        self._session.finish(slot)
        if self._kept is not None and sound:
            self._kept.keep(self._session, slot, sample.generation.request.model(0))
        self._vacate(sample)

    def _vacate(self, sample: Sample) -> None:
        assert sample.slot is not None
        self._reading.discard(sample.slot)
        self._samples[sample.slot] = None
        sample.slot = None
        self._queue.give_back_slot(sample)

    # ---------------------------------------------------------------------------- prompts and rounds

    def _update_draft(self) -> None:
        """Let a draft that has learnt take its own place; it has then to read the texts that are there."""
        draft = self._drafts.of_session
        if draft is None or self._description is None:
            return
        description = draft.take_update(self._session, self._description)
        if description is not self._description:
            self._description = description
            self._reading |= {slot for slot, sample in enumerate(self._samples) if sample is not None}

    def _read_slice(self) -> None:
        """Read one slice of the prompts that are not in."""
        if not self._reading:
            return
        begun = time.perf_counter()
        try:
            unread = set(self._session.prefill_slice())
        except Exception as error:  # of the prompts that are being read: the others go on
            for sample in self._running():
                if sample.slot in self._reading:
                    self._leave(sample, sound=False)
                    self._queue.fail(sample.generation, error, sample)
            self._reading.clear()
            return
        seconds = time.perf_counter() - begun
        self._counters.prefill_s += seconds
        for sample in self._running():
            if sample.slot in self._reading:
                sample.state.prefill_s += seconds
        self._reading &= unread

    def _run_rounds(self) -> None:
        running = [sample for sample in self._running() if sample.slot not in self._reading]
        if not running:
            return
        gammas = self._turns.plan(running)
        waits = bool(self._reading or self._queue.n_waiting or gammas) or any(
            sample.generation.request.stop.strings for sample in running
        )
        records = self._session.round(0.0 if waits else SLICE_S, until_end=True, gammas=gammas)
        self._turns.end_round(running)
        self._counters.count_times(records)
        touched: dict[int, Sample] = {}
        for record in records:
            sample = self._samples[record["sequence"]]
            if sample is not None:  # else its text has ended in this call
                touched[record["sequence"]] = sample
                self._take(sample, record)
        for slot, sample in touched.items():
            if self._samples[slot] is sample:
                self._publish(sample)

    def _take(self, sample: Sample, record: RoundRecord) -> None:
        """A round of a text."""
        if record["error"] is not None:
            self._leave(sample, sound=False)
            self._queue.fail(sample.generation, record["error"], sample)
            return
        round_ = sample.state.take(record)
        self._counters.count_round(round_)
        use = sample.generation.prediction
        if record["origins"] is not None and use is not None:
            n_right, n_wrong = _copied(record)
            use.n_accepted += n_right
            use.n_rejected += n_wrong
            self._counters.n_prediction_accepted += n_right
            self._counters.n_prediction_rejected += n_wrong
        if sample.state.finish_reason is not None:
            self._end(sample)

    def _publish(self, sample: Sample) -> None:
        """Hand what is new of a text to its readers."""
        times = sample.generation.times
        first = times.first_token is None
        sample.generation.publish(sample)
        if first and times.first_token is not None:
            self._counters.count_first_token(times.first_token - times.submitted)


def _copied(record: RoundRecord) -> tuple[int, int]:
    """Of the guesses that were copied from a prediction: how many became text, and how many did not."""
    origins, tokens = record["origins"] or [], record["tokens"]
    right, depths = [True], [0]
    n_right = n_wrong = 0
    for token, parent, origin in zip(record["drafted"], record["parents"], origins, strict=True):
        depth = depths[parent] + 1
        depths.append(depth)
        right.append(right[parent] and depth <= len(tokens) and tokens[depth - 1] == token)
        if origin == 0:
            n_right += right[-1]
            n_wrong += not right[-1]
    return n_right, n_wrong
