"""Continuous batching: one thread decodes the texts of many requests, which join and leave between rounds."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specdec import _core
from specdec.checks import check_flag, check_integer, check_timeout
from specdec.decoding.adaptive_gamma import AdaptiveGamma, RunKind
from specdec.decoding.chat import Chat
from specdec.decoding.engine_metrics import Counters, EngineMetrics
from specdec.decoding.generation import Generation, Piece, PredictionUse, Sample, Speculative
from specdec.decoding.kept_texts import KeptTexts, text_key
from specdec.decoding.options import DecodingOptions, Gamma
from specdec.decoding.prompt_cache import PromptCache, check_prompt_cache
from specdec.decoding.request import Request, most_guesses
from specdec.drafts.draft import MAX_GAMMA, Description, Draft, check_source
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.drafts.predictions import OF_DRAFT, OF_PREDICTION, PREDICTION_GAMMA, WithPredictions
from specdec.drafts.texts import Text, check_text, ids_of
from specdec.errors import BusyError, ContextLengthError, EngineClosedError, InputError, kind_of, number_of
from specdec.models.chat_template import Messages
from specdec.models.loading import as_model
from specdec.models.model import ModelLike, Prompt
from specdec.models.score import Score, score_and_keep, score_of_nothing
from specdec.threads import check_threads

if TYPE_CHECKING:
    from specdec._core import RoundRecord

__all__ = ["Engine", "EngineMetrics", "Generation", "Piece", "Speculative"]

LONGEST_TEXT: Final = 4096
"""Tokens that a text may have where the caller does not say, if the context is longer."""
SLICE_S: Final = 0.002
"""Seconds of rounds in a call, while nobody waits for a slot: a model's own round is mostly longer."""
_NOT_TAKEN: Final = ("logits", "progress", "batch_size", "node_budget", "n_threads", "gamma", "prompt_cache")
"""Options of `specdec.generate` that a single request has not."""


class Engine:
    """One thread that decodes many requests at once over one target and one draft.

    Requests join and leave between rounds; each has settings of its own. Prompts are read in slices between
    the rounds of the texts that run, so that no text waits longer than a slice. What a text becomes depends
    on its own request alone: greedy and coupled texts are those of `specdec.generate` to the bit.

    Parameters
    ----------
    target : Model, path or hub name
    draft : Model, path, Draft, object or None
    gamma : int, "auto" or AdaptiveGamma, optional
        Guesses of a text in a round at most; as in `specdec.generate`. "auto" drafts less as the batch fills.
    n_slots : int, default 16
        Texts that are decoded at once.
    n_text : int, optional
        Tokens of the longest text, prompt and new; by default the context, at most 4096. Memory is taken as
        texts grow.
    max_waiting : int, default 256
        Texts that wait for a slot at most; more are refused with a `BusyError`.
    node_budget : int, optional
        Rows of the target in a round at most, as in `specdec.generate`.
    max_top_logprobs : int, default 20
        The most that a request may ask for.
    predictions : bool, default True
        Whether requests may come with a prediction, from which guesses are copied beside those of the draft.
    prompt_cache : PromptCache, optional
    n_threads : int, optional

    Attributes
    ----------
    target : Model
    draft : Draft or None
    n_slots, n_text, max_waiting, max_top_logprobs, n_threads : int
    node_budget : int or None

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError
        As `specdec.generate`.

    Examples
    --------
    >>> with specdec.Engine(target, draft) as engine:
    ...     first, second = engine.submit("Once upon a time"), engine.submit("It was a dark")
    ...     for piece in first:
    ...         print(piece.text, end="")
    ...     print(second.result().text)
    """

    def __init__(
        self,
        target: ModelLike,
        draft: DraftLike | None = None,
        *,
        gamma: Gamma = None,
        n_slots: int = 16,
        n_text: int | None = None,
        max_waiting: int = 256,
        node_budget: int | None = None,
        max_top_logprobs: int = 20,
        predictions: bool = True,
        prompt_cache: PromptCache | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_slots = check_integer("n_slots", n_slots, 1, 4096)
        self.max_waiting = check_integer("max_waiting", max_waiting, 0)
        self.n_threads = check_threads(n_threads)
        check_prompt_cache(prompt_cache)
        options = DecodingOptions(gamma=gamma)
        if options.policy is not None and not isinstance(options.policy, AdaptiveGamma):
            raise InputError(f"gamma is {kind_of(gamma)}; expected an integer, 'auto' or an AdaptiveGamma")
        predicts = check_flag("predictions", predictions)
        self.target = as_model("target", target)
        n_ctx, n_vocab = self.target.config.n_ctx, self.target.config["n_vocab"]
        self.n_text = (
            min(n_ctx, LONGEST_TEXT) if n_text is None else check_integer("n_text", n_text, 2, n_ctx)
        )
        self.max_top_logprobs = min(check_integer("max_top_logprobs", max_top_logprobs, 0), n_vocab)
        if node_budget is not None:
            most = self.n_slots * (MAX_GAMMA + 1)
            node_budget = min(check_integer("node_budget", node_budget, self.n_slots), most)
        self.node_budget = node_budget
        self.draft = None if draft is None else open_draft("draft", draft, target=self.target)
        check_source(self.draft is not None and self.draft.reads_source, self.target)
        self._choose_drafts(options, predicts)
        self._kept = None if prompt_cache is None else KeptTexts(prompt_cache, self.target, self._drafts)
        self._rules: set[tuple[Any, ...]] = set()  # that can judge the trees, as far as was asked
        self._session = self._make_session()

        self._changed = threading.Condition()  # guards what follows, and the engine's thread waits for it
        self._waiting: deque[Sample] = deque()
        self._n_scored = 0  # samples whose prompt is being scored: they wait too
        self._slots: list[Sample | None] = [None] * self.n_slots
        self._closing = False
        self._hurries = False  # all that is there is to be cancelled
        self._ids = itertools.count(1)
        self._counters = Counters()
        self._reading: set[int] = set()  # slots whose prompts are not in
        self._scorer: ThreadPoolExecutor | None = None
        self._thread = threading.Thread(target=self._run, name="specdec-engine", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def _choose_drafts(self, options: DecodingOptions, predicts: bool) -> None:
        """What drafts in the session, for how many guesses, and what of it serves without a prediction."""
        self._gamma, policy = most_guesses(options, self.draft)
        drafted = self.draft is not None and self._gamma > 0
        self._plain_drafters = OF_DRAFT if drafted else 0
        self._prediction_gamma = 0
        self._drafts: Draft | None = self.draft if drafted else None
        self._policy = policy if isinstance(policy, AdaptiveGamma) and drafted else None
        if predicts:
            adaptive = options.policy is not None
            self._drafts = WithPredictions(self._drafts, self._gamma, adaptive=adaptive)
            self._prediction_gamma = PREDICTION_GAMMA
            self._policy = None  # an ensemble that adapts decides by itself
        elif drafted:
            self._plain_drafters = OF_PREDICTION  # the first and only one
        if not drafted:
            self._gamma = 0
        self._description = None if self._drafts is None else self._drafts.describe(self.target)

    def _make_session(self) -> _core.Session:
        gamma = min(self._gamma + self._prediction_gamma, MAX_GAMMA)
        policy, kind = self._policy, self._kind
        return _core.Session(
            self.target.core,
            self._description,
            [],
            seeds=[],
            gamma=gamma,
            n_threads=self.n_threads,
            n_slots=self.n_slots,
            n_text=self.n_text,
            max_top=self.max_top_logprobs,
            mixed=True,
            node_budget=self.node_budget or 0,
            adaptive_gamma=None if policy is None or kind is None else policy.begin(kind),
        )

    @property
    def _kind(self) -> RunKind | None:
        """What estimates of gamma="auto" are of."""
        if self.draft is None:
            return None
        return RunKind(self.target, self.draft, 0.0, "rejection", self.n_threads)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.metrics().n_running} texts run"
        return f"<specdec.Engine of {self.target.path} with {self.draft!r}, {self.n_slots} slots: {state}>"

    # ----------------------------------------------------------------------------------------- requests

    def submit(
        self,
        prompt: Prompt | None = None,
        *,
        decoder_prompt: Prompt | None = None,
        messages: Messages | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        prediction: Text | None = None,
        speculative: Speculative | None = None,
        **options: Any,
    ) -> Generation:
        """Let a prompt, or a conversation, be gone on with; returns at once.

        Parameters
        ----------
        prompt, decoder_prompt, messages, tools, documents, chat_template_kwargs
            One of each, as in `specdec.generate`.
        prediction : str or sequence of int, optional
            What the new text is expected to be like: guesses are copied from it.
        speculative : Speculative, optional
        **options
            Those of `specdec.generate` that are a text's own: `n`, `max_new_tokens`, the sampling settings,
            `draft_sampling`, `transform`, `schema`, `regex`, `grammar`, `constraint`, `verify`, `lenience`,
            `seed`, `stop`, `logprobs`, `logprobs_of`, `prompt_logprobs`, `ignore_eos`.

        Raises
        ------
        InputError
            As `specdec.generate`; `ContextLengthError` where the prompt is too long.
        BusyError
            If too many texts wait.
        EngineClosedError
        """
        for name in _NOT_TAKEN:
            if name in options:
                raise InputError(f"{name} is given; expected it of the Engine, not of a request")
        speculative = Speculative() if speculative is None else speculative
        if not isinstance(speculative, Speculative):
            raise InputError(
                f"speculative is {kind_of(speculative)}; expected a specdec.Speculative, or None"
            )
        if speculative.verify is not None:
            options["verify"] = speculative.verify
        try:
            settings = DecodingOptions(**options)
        except TypeError as error:
            raise InputError(f"submit: {error}") from None
        if settings.logprobs is not None:
            check_integer("logprobs", settings.logprobs, 0, self.max_top_logprobs)
        self._check_open(settings.n)  # before the prompt is encoded
        chat = Chat.of_call(prompt, messages, tools, documents, chat_template_kwargs)
        request = Request.prepare(self.target, None, prompt, settings, chat, decoder_prompt)
        if request.is_batch:
            raise InputError("submit takes one prompt, or one conversation; expected no list of several")
        request = replace(request, n_text=self.n_text)
        n_prompt = len(request.beginnings[0].ids)
        if n_prompt >= self.n_text:
            raise ContextLengthError(
                f"prompt has {number_of(n_prompt, 'token')}; expected fewer than {self.n_text}, the longest "
                "text of the engine"
            )
        copied = None if prediction is None else self._prediction_ids(prediction)
        core = self._settings_of(request, speculative, copied)
        use = None if copied is None else PredictionUse(len(copied))
        generation = Generation(next(self._ids), request, core, use, self._wake)
        self._queue(generation)
        return generation

    def score(self, prompt: Prompt, n_top: int = 0) -> Score:
        """What the target says of the tokens of a prompt; in the calling thread."""
        return self.target.score([prompt], top_logprobs=n_top, n_threads=self.n_threads)[0]

    def _prediction_ids(self, prediction: Text) -> list[int]:
        if not self._prediction_gamma:
            raise InputError("prediction is given to an Engine without predictions; expected None")
        ids: list[int] = ids_of("prediction", check_text("prediction", prediction), self.target).tolist()
        return ids

    def _settings_of(
        self, request: Request, speculative: Speculative, prediction: list[int] | None
    ) -> _core.Settings:
        """How the texts of a request are decoded."""
        drafters, gamma = self._plain_drafters, self._gamma
        if prediction is not None and prediction:
            drafters, gamma = drafters | OF_PREDICTION, gamma + self._prediction_gamma
        if speculative.gamma is not None:
            gamma = min(check_integer("speculative.gamma", speculative.gamma, 0, MAX_GAMMA), gamma)
        if not check_flag("speculative.draft", speculative.draft):
            drafters = gamma = 0
        options = request.options
        if drafters and gamma:
            self._check_rule(request, drafters)
        laws: dict[str, Any] = {}
        if options.logprobs is not None:
            laws = {"law": options.logprobs_of, "n_top": options.logprobs}
        return _core.Settings(
            max_new_tokens=request.limit(0)[0],
            sampling=request.sampling.core(),
            draft_sampling=request.draft_sampling.core(),
            rule=request.rule,
            lenience=options.lenience,
            transform=options.transform,
            constraint=request.constraint,
            stop_ids=sorted(request.stop.ids),
            gamma=min(gamma, MAX_GAMMA),
            drafters=drafters,
            prediction=prediction if drafters else None,
            **laws,
        )

    def _check_rule(self, request: Request, drafters: int) -> None:
        """Refuse a rule that cannot judge what is drafted for a request."""
        greedy = request.draft_sampling.greedy
        key = (request.rule, request.sampling.greedy, greedy, drafters)
        description: Description | None = self._description
        if key in self._rules or description is None:
            return
        if drafters == OF_DRAFT and self.draft is not None:
            description = self.draft.describe(self.target)
        _core.check_draft(
            self.target.core,
            description,
            rule=request.rule,
            temperature=request.sampling.temperature,
            draft_sampling=request.draft_sampling.core(),
        )
        self._rules.add(key)

    def _check_open(self, n: int) -> None:
        """Refuse n texts more, if there is no room for them."""
        with self._changed:
            if self._closing:
                raise EngineClosedError("the engine is closed; expected one that is open")
            if not self._thread.is_alive():  # as after a fork
                raise EngineClosedError(
                    "the engine's thread is of another process; expected an engine that was made in this one"
                )
            n_free = sum(sample is None for sample in self._slots)
            n_waiting = len(self._waiting) + self._n_scored
            if n_waiting + n > self.max_waiting + n_free:
                self._counters.n_refused += 1
                raise BusyError(
                    f"{number_of(n_waiting, 'text')} wait; expected at most {self.max_waiting}, with "
                    f"{number_of(n, 'text')} more"
                )

    def _queue(self, generation: Generation) -> None:
        request = generation.request
        scored = request.options.prompt_logprobs is not None and len(generation.prompt_ids) > 1
        with self._changed:
            self._check_open(generation.n)
            self._counters.n_submitted += 1
            if scored:
                if self._scorer is None:
                    self._scorer = ThreadPoolExecutor(1, "specdec-scores")
                self._scorer.submit(self._score, generation)
                self._n_scored += generation.n
                return
            if request.options.prompt_logprobs is not None:
                generation.of_prompt = score_of_nothing(request.options.prompt_logprobs)
            self._waiting.extend(generation.samples)
            self._changed.notify_all()

    def _score(self, generation: Generation) -> None:
        """Score a prompt, in a thread of its own: running texts go on meanwhile."""
        request, beginning = generation.request, generation.samples[0].beginning
        error: BaseException | None = None
        try:
            if not (self._hurries or all(sample.cancelled for sample in generation.samples)):
                generation.of_prompt, generation.read = score_and_keep(
                    self.target,
                    beginning.ids,
                    beginning.source_of(self.target),
                    n_top=request.options.prompt_logprobs or 0,
                    n_threads=self.n_threads,
                )
        except BaseException as found:
            error = found
        with self._changed:
            self._n_scored -= generation.n
            if error is None:
                self._waiting.extend(generation.samples)
            else:
                self._fail(generation, error, None)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -------------------------------------------------------------------------------------------- state

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closing

    def metrics(self) -> EngineMetrics:
        """What it holds now, and what it has done so far."""
        with self._changed:
            counters = vars(self._counters) | {
                "n_finished": dict(self._counters.n_finished),
                "accepted_at": list(self._counters.accepted_at),
            }
            n_taken = sum(sample is not None for sample in self._slots)
            n_reading = min(len(self._reading), n_taken)
            return EngineMetrics(
                n_slots=self.n_slots,
                n_running=n_taken - n_reading,
                n_reading=n_reading,
                n_waiting=len(self._waiting) + self._n_scored,
                **counters,
            )

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and return when the texts have ended.

        Parameters
        ----------
        drain : bool, default True
            Let the texts that run, and those that wait, come to their ends. False: all are cancelled.
        timeout : float, optional
            Seconds after which those that are still there are cancelled.
        """
        timeout = check_timeout(timeout)
        hurries = not check_flag("drain", drain)
        with self._changed:
            self._closing = True
            self._hurries = self._hurries or hurries
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout if drain else None)
            if self._thread.is_alive():
                self.close(drain=False)
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(drain=False)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close(drain=False)

    # -------------------------------------------------------------------------------- the engine's thread

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self._changed:
                self._closing = self._hurries = True
            if self._scorer is not None:
                self._scorer.shutdown()  # what was to be scored then waits with the others
            self._fail_all(error)
        finally:
            if self._scorer is not None:
                self._scorer.shutdown(wait=False)
            policy, kind = self._policy, self._kind
            learnt = None if policy is None else self._session.adaptive_gamma
            if policy is not None and kind is not None and learnt is not None:
                policy.end(kind, learnt)
            self._session.close()

    def _step(self) -> bool:
        """What is done between two looks at the requests. False: there is nothing left to do."""
        with self._changed:
            while not self._has_work():
                if self._closing and self._n_scored == 0:
                    return False
                self._changed.wait()
        try:
            self._drop_cancelled()
            self._admit()
            self._read_slice()
            self._run_rounds()
        except BaseException as error:  # a draft of the caller's may raise what it likes
            self._begin_again(error)
        return True

    def _has_work(self) -> bool:
        return bool(self._waiting) or any(sample is not None for sample in self._slots)

    def _drop_cancelled(self) -> None:
        """End the texts that nobody wants any more."""
        with self._changed:
            gone = [sample for sample in self._waiting if sample.cancelled or self._hurries]
            if gone:
                kept = [sample for sample in self._waiting if not (sample.cancelled or self._hurries)]
                self._waiting = deque(kept)
        in_slots = [sample for sample in self._slots if sample is not None]
        for sample in gone + [one for one in in_slots if one.cancelled or self._hurries]:
            self._cancel(sample)

    def _cancel(self, sample: Sample) -> None:
        sample.state.finish_reason = "cancelled"
        self._end(sample)

    def _admit(self) -> None:
        """Give free slots to texts that wait, in the order in which they came."""
        for slot in range(self.n_slots):
            if self._slots[slot] is not None:
                continue
            with self._changed:
                if not self._waiting:
                    return
                sample = self._waiting.popleft()
                self._slots[slot] = sample
            try:
                self._join(sample, slot)
            except Exception as error:
                self._leave(sample, sound=False)
                self._slots[slot] = None
                self._fail(sample.generation, error, sample)

    def _join(self, sample: Sample, slot: int) -> None:
        generation, beginning = sample.generation, sample.beginning
        key = text_key(sample.seed, self._drafts, generation.request.rule)
        self._session.replace(slot, beginning.ids, key, source=beginning.source, settings=generation.settings)
        sample.slot = slot
        if self._kept is not None:
            sample.state.n_cached = self._kept.begin(self._session, slot, beginning)
        if generation.read is not None:
            self._session.begin_with(slot, generation.read)
        self._reading.add(slot)
        counters, now = self._counters, time.perf_counter()
        if generation.times.started is None:
            generation.times.started = now
            generation.n_cached_tokens = sample.state.n_cached
            n, sum_s = counters.queue_s
            counters.queue_s = (n + 1, sum_s + now - generation.times.submitted)
        counters.n_prompt_tokens += len(beginning.ids)
        counters.n_cached_tokens += sample.state.n_cached

    def _read_slice(self) -> None:
        """Read one slice of the prompts that are not in."""
        if self._drafts is not None and self._description is not None:
            description = self._drafts.take_update(self._session, self._description)
            if description is not self._description:
                self._description = description
                self._reading |= {slot for slot, sample in enumerate(self._slots) if sample is not None}
        if not self._reading:
            return
        begun = time.perf_counter()
        try:
            unread = set(self._session.prefill_slice())
        except Exception as error:  # of the prompts that are being read: the others go on
            for slot in sorted(self._reading):
                sample = self._slots[slot]
                if sample is not None:
                    self._session.finish(slot)
                    self._slots[slot] = None
                    self._fail(sample.generation, error, sample)
            self._reading.clear()
            return
        seconds = time.perf_counter() - begun
        self._counters.prefill_s += seconds
        for slot in self._reading:
            sample = self._slots[slot]
            if sample is not None:
                sample.state.prefill_s += seconds
        self._reading &= unread

    def _run_rounds(self) -> None:
        running = [
            sample
            for slot, sample in enumerate(self._slots)
            if sample is not None and slot not in self._reading
        ]
        if not running:
            return
        waits = bool(self._reading or self._waiting) or any(
            sample.generation.request.stop.strings for sample in running
        )
        records = self._session.round(0.0 if waits else SLICE_S, until_end=True)
        self._counters.count_times(records)
        touched: dict[int, Sample] = {}
        for record in records:
            sample = self._slots[record["sequence"]]
            if sample is not None:  # else its text has ended in this call
                touched[record["sequence"]] = sample
                self._take(sample, record)
        for slot, sample in touched.items():
            if self._slots[slot] is sample:
                self._publish(sample)

    def _take(self, sample: Sample, record: RoundRecord) -> None:
        """A round of a text."""
        if record["error"] is not None:
            self._leave(sample, sound=False)
            self._fail(sample.generation, record["error"], sample)
            return
        round_ = sample.state.take(record)
        self._counters.count_round(round_)
        if record["origins"] is not None and sample.generation.prediction is not None:
            n_right, n_wrong = _copied(record)
            sample.generation.prediction.n_accepted += n_right
            sample.generation.prediction.n_rejected += n_wrong
            self._counters.n_prediction_accepted += n_right
            self._counters.n_prediction_rejected += n_wrong
        if sample.state.finish_reason is not None:
            self._end(sample)

    def _publish(self, sample: Sample) -> None:
        times = sample.generation.times
        first = times.first_token is None
        sample.generation.publish(sample)
        if first and times.first_token is not None:
            n, sum_s = self._counters.first_token_s
            self._counters.first_token_s = (n + 1, sum_s + times.first_token - times.submitted)

    def _end(self, sample: Sample) -> None:
        """A text has ended: keep what outlives it, leave its slot, and tell its readers."""
        if sample.ended:
            return
        if self._drafts is not None and sample.state.tokens:
            self._drafts.remember(sample.beginning.ids, sample.state.tokens)
        self._publish(sample)  # both may raise: the text is still in its slot, so its readers are told
        self._leave(sample, sound=True)
        reason = str(sample.state.finish_reason)
        finished = self._counters.n_finished
        finished[reason] = finished.get(reason, 0) + 1
        sample.generation.end(sample, self.n_slots)

    def _leave(self, sample: Sample, *, sound: bool) -> None:
        slot = sample.slot
        if slot is None:
            return
        self._session.finish(slot)
        if self._kept is not None and sound:
            self._kept.keep(self._session, slot, sample.beginning, sample.state.tokens)
        sample.slot = None
        self._reading.discard(slot)
        self._slots[slot] = None

    def _fail(self, generation: Generation, error: BaseException, sample: Sample | None) -> None:
        """A request has failed; its other samples are dropped with the next look at them."""
        with self._changed:  # the thread that scores prompts counts too
            self._counters.n_failed += 1
        if sample is not None:
            sample.state.finish_reason = "error"
            sample.ended = True
        generation.fail(error, sample, self.n_slots)

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            there = [sample for sample in self._slots if sample is not None] + list(self._waiting)
            self._slots = [None] * self.n_slots
            self._waiting.clear()
        self._reading.clear()
        for generation in {sample.generation.id: sample.generation for sample in there}.values():
            self._fail(generation, error, None)

    def _begin_again(self, error: BaseException) -> None:
        """The session has failed, and with it the texts in its slots; those that wait get another one."""
        there = [sample for sample in self._slots if sample is not None]
        self._slots = [None] * self.n_slots
        self._reading.clear()
        for generation in {sample.generation.id: sample.generation for sample in there}.values():
            self._fail(generation, error, None)
        self._session.close()
        self._session = self._make_session()


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
