"""`Engine`, continuous batching: one thread decodes many requests, which join and leave between rounds."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdec import _core
from specdec.checks import check_flag, check_integer, check_timeout
from specdec.decoding.adaptive_gamma import AdaptiveGamma, RunType
from specdec.decoding.generation import Generation, Piece, PredictionUse, Sample, Speculative
from specdec.decoding.options import (
    AdapterLike,
    Constraint,
    DecodingOptions,
    DecodingRule,
    Gamma,
    LogprobsOf,
    PromptCache,
    Sampling,
    Schema,
    Seed,
    Stop,
    Transform,
    door,
)
from specdec.decoding.prompt_cache import check_prompt_cache
from specdec.decoding.prompts import Chat
from specdec.decoding.request import Drafting, Request, max_draft_tokens
from specdec.decoding.request_queue import ConstraintTurns, Counters, EngineMetrics, RequestQueue
from specdec.decoding.scheduler import Scheduler
from specdec.drafts.copies import PREDICTION_GAMMA
from specdec.drafts.draft import MAX_GAMMA, Draft, check_source
from specdec.drafts.ensemble import EVERY_DRAFT, DraftSelection
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.drafts.texts import Text, check_text, ids_of
from specdec.errors import ContextLengthError, EngineClosedError, InputError, number_of, shown, type_of
from specdec.models.chat_template import Messages
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.score import Score
from specdec.threads import check_threads
from specdec.trace import Round
from specdec.verification.rules import ONE_DRAFT_RULES

__all__ = ["Engine", "EngineMetrics", "Generation", "Piece", "Speculative"]

LONGEST_TEXT: Final = 4096
"""Default of the longest sequence, in tokens, if the context is longer."""
_SLICE_S: Final = 0.002
"""Seconds of rounds per step while no request waits for a slot; one round of a model mostly takes longer."""
_MOST_DRAFTS: Final = 60
"""Maximum number of named drafts: each takes a bit of 64, and so do predictions."""


class Engine:
    """Serves many requests at once over one target, in one thread (continuous batching).

    Requests join and leave between rounds, each with its own settings. Prompts are processed in slices
    between the rounds of running sequences, which never wait longer than a slice. The output of a request
    depends on that request only: greedy and coupled texts equal those of `specdec.generate` bit for bit.

    Parameters
    ----------
    target : Model, path or hub name
        The model to sample from.
    draft : Model, path, Draft, object, mapping or None
        The draft, as in `specdec.generate`; None: plain decoding. A mapping holds several drafts by name:
        each request selects one (`Speculative`), by default the first.
    gamma : int, "auto" or AdaptiveGamma, optional
        Maximum number of draft tokens per sequence and round; "auto" drafts less as the batch fills.
    n_slots : int, default 16
        Number of sequences decoded together.
    n_text : int, optional
        Longest sequence in tokens, prompt included; by default the context, at most 4096. Memory grows with
        the sequences.
    max_waiting : int, default 256
        Maximum number of sequences waiting for a slot; more raise a `BusyError`.
    node_budget, n_threads : int, optional
        As in `specdec.generate`.
    max_top_logprobs : int, default 20
        Largest `logprobs` of a request.
    predictions : bool, default True
        Whether requests may include a prediction, from which draft tokens are copied.
    prompt_cache : PromptCache, optional
        Cache of earlier texts for prompts with a common prefix; None: no cache.

    Attributes
    ----------
    target, n_slots, n_text, max_waiting, max_top_logprobs, n_threads, node_budget
        As given, or their defaults; the target is loaded.
    draft : Draft or None
        The default draft.
    drafts : dict of str to Draft
        Named drafts.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.generate`; also if gamma is a callable.

    Examples
    --------
    >>> with specdec.Engine(target, draft) as engine:
    ...     first, second = engine.submit("Once upon a time"), engine.submit("It was a dark")
    ...     for piece in first:
    ...         print(piece.text, end="")
    ...     print(second.result().text)
    """

    def __init__(
        self, target: ModelLike, draft: DraftLike | Mapping[str, DraftLike] | None = None, *,
        gamma: Gamma = None, n_slots: int = 16, n_text: int | None = None, max_waiting: int = 256,
        node_budget: int | None = None, max_top_logprobs: int = 20, predictions: bool = True,
        prompt_cache: PromptCache | None = None, n_threads: int | None = None,
    ) -> None:  # fmt: skip
        self.n_slots = check_integer("n_slots", n_slots, 1, 4096)
        self.max_waiting = check_integer("max_waiting", max_waiting, 0)
        self.n_threads = check_threads(n_threads)
        check_prompt_cache(prompt_cache)
        options = DecodingOptions(gamma=gamma)
        if options.policy is not None and not isinstance(options.policy, AdaptiveGamma):
            expected = "an integer, 'auto' or an AdaptiveGamma"
            raise InputError.of("gamma", gamma, expected, type_of(gamma))
        predicts = check_flag("predictions", predictions)
        self.target = as_model("target", target)
        n_ctx, n_vocab = self.target.config.n_ctx, self.target.config["n_vocab"]
        given = min(n_ctx, LONGEST_TEXT) if n_text is None else n_text
        self.n_text = check_integer("n_text", given, min(2, n_ctx), n_ctx)
        self.max_top_logprobs = min(check_integer("max_top_logprobs", max_top_logprobs, 0), n_vocab)
        if node_budget is not None:
            most = self.n_slots * (MAX_GAMMA + 1)
            node_budget = min(check_integer("node_budget", node_budget, self.n_slots), most)
        self.node_budget = node_budget
        threads = self.n_threads
        self._drafts = EngineDrafts(self.target, draft, options, predictions=predicts, n_threads=threads)
        self.draft = self._drafts.drafts[0] if self._drafts.drafts else None
        # A draft without a name cannot be selected: then there are no names.
        self.drafts = dict(zip(self._drafts.names, self._drafts.drafts, strict=False))
        self._counters = Counters()
        self._queue = RequestQueue(self.n_slots, self.max_waiting, self._counters)
        self._turns = ConstraintTurns(self.n_slots)
        self._prompt_cache = prompt_cache
        self._scheduler = self._new_scheduler()
        self._ids = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="specdec-engine", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.metrics().n_running} running"
        return f"<specdec.Engine of {self.target.path} with {self.draft!r}, {self.n_slots} slots: {state}>"

    # ---------------------------------------------------------------------------------------- the thread

    def _new_scheduler(self) -> Scheduler[Sample]:
        return Scheduler(
            self.target, self._drafts.of_session, plan=self._turns.plan, prompt_cache=self._prompt_cache,
            in_slices=True, n_slots=self.n_slots, n_text=self.n_text, n_threads=self.n_threads,
            max_top=self.max_top_logprobs, node_budget=self.node_budget or 0,
        )  # fmt: skip

    def _run(self) -> None:
        try:
            while self._queue.wait_for_work():
                try:
                    self._step()
                except BaseException as error:  # a user-defined draft may raise anything
                    self._begin_again(error)
        except BaseException as error:
            self._queue.close(hurries=True)
            self._queue.stop_scoring(wait=True)
            self._fail([*self._scheduler.running, *self._queue.drop_unwanted()], error)
        finally:
            self._queue.stop_scoring()
            self._scheduler.close(keep=not self._scheduler.running)

    def _step(self) -> None:
        """Cancel, admit, decode and publish once."""
        for sample in self._queue.drop_unwanted():
            sample.finish_reason = "cancelled"
            self._end(sample, had_slot=False)
        for sample in filter(self._queue.is_unwanted, self._scheduler.running):
            sample.finish_reason = "cancelled"
            self._scheduler.finish(sample)
            self._end(sample)
        while self._scheduler.n_free and (taken := self._queue.take()) is not None:
            self._admit(taken)
        before = self._scheduler.prefill_s
        done: list[tuple[Sample, Round]] = []
        for sample, round_ in self._scheduler.step(0.0 if self._queue.n_waiting else _SLICE_S):
            if round_ is not None:
                done.append((sample, round_))
                if sample.error is None:
                    self._counters.count_round(round_, sample.copied)
            if sample.slot is None:
                self._end(sample)
        self._turns.end_round()
        self._counters.prefill_s += self._scheduler.prefill_s - before
        self._counters.count_times(done)
        for sample in {sample: None for sample, _ in done if sample.slot is not None}:
            self._publish(sample)

    def _admit(self, sample: Sample) -> None:
        generation, now = sample.generation, time.perf_counter()
        try:
            self._scheduler.admit(sample)
        except BaseException as error:  # a user-defined draft may raise anything
            sample.fail(error)
            if sample.slot is not None:
                self._scheduler.finish(sample)
            self._end(sample)
            return
        if generation.times.started is None:
            generation.times.started = now
            generation.n_cached_tokens = sample.n_cached
            self._counters.count_wait("queue_s", now - generation.times.submitted)
        self._counters.n_prompt_tokens += len(sample.prompt.ids)
        self._counters.n_cached_tokens += sample.n_cached

    def _publish(self, sample: Sample) -> None:
        """Give a sequence's new output to its readers."""
        times = sample.generation.times
        first = times.first_token is None
        sample.generation.publish(sample)
        if first and times.first_token is not None:
            self._counters.count_wait("first_token_s", times.first_token - times.submitted)

    def _end(self, sample: Sample, *, had_slot: bool = True) -> None:
        """Notify the readers that a sequence has ended, and free its slot."""
        if had_slot:
            self._queue.give_back_slot(sample)
        error: BaseException | None = sample.error
        try:
            if error is None:
                self._publish(sample)
                finished, reason = self._counters.n_finished, str(sample.finish_reason)
                finished[reason] = finished.get(reason, 0) + 1
                sample.generation.end(sample)
        except BaseException as found:
            error = found
        if error is not None:
            self._queue.fail(sample.generation, error, sample)

    def _begin_again(self, error: BaseException) -> None:
        """Replace a failed session: its running sequences fail, the waiting ones continue."""
        failed = self._scheduler
        self._fail(failed.running, error)
        failed.close(keep=False)
        self._scheduler = self._new_scheduler()

    def _fail(self, samples: list[Sample], error: BaseException) -> None:
        for sample in samples:
            if sample.slot is not None:
                self._queue.give_back_slot(sample)
        for generation in {sample.generation.id: sample.generation for sample in samples}.values():
            self._queue.fail(generation, error)

    # ----------------------------------------------------------------------------------------- requests

    @door
    def submit(
        self, prompt: Prompt | None = None, *,
        decoder_prompt: Prompt | None = None, messages: Messages | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        prediction: Text | None = None, speculative: Speculative | None = None,
        max_new_tokens: int | None = 200,
        temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
        min_p: float | None = None, repetition_penalty: float | None = None,
        presence_penalty: float | None = None, frequency_penalty: float | None = None,
        dry_multiplier: float = 0.0, dry_base: float = 1.75, dry_allowed_length: int = 2,
        dry_penalty_last_n: int | None = None,
        dry_sequence_breakers: Sequence[str | Sequence[int]] | None = None,
        logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, no_repeat_ngram_size: int = 0,
        bad_words: Sequence[str | Sequence[int]] | None = None,
        draft_sampling: Sampling | None = None, transform: Transform | None = None,
        schema: Schema | None = None, regex: str | None = None, grammar: str | None = None,
        constraint: Constraint | None = None, max_reasoning_tokens: int | None = None,
        verify: DecodingRule = "auto", lenience: float = 1.0, seed: Seed = None, stop: Stop = None,
        include_stop_str_in_output: bool = False, skip_special_tokens: bool = True,
        logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
        prompt_logprobs: int | None = None, ignore_eos: bool = False,
        adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
        n: int = 1,
    ) -> Generation:  # fmt: skip
        """Enqueue a prompt or a conversation; returns without waiting for its text.

        With a prompt cache on disk, the calling thread reads the files that the prompt begins with.

        Parameters
        ----------
        prompt, decoder_prompt, messages, tools, documents, chat_template_kwargs
            As in `specdec.generate`: one prompt or conversation.
        prediction : str or sequence of int, optional
            The expected output, such as the original of an edited text: draft tokens are copied from it.
        speculative : Speculative, optional
            Drafting options of this request; None: the engine's.
        max_new_tokens, temperature, ...
            Per-request settings of `specdec.generate`. An `adapter` folder is read for each request: pass a
            model of :meth:`Model.with_adapter` to reuse it.

        Returns
        -------
        Generation
            Yields the pieces of the texts and their results.

        Raises
        ------
        InputError
            As `specdec.generate`; also for several prompts, for a prediction if the engine has none, or if
            the rule cannot judge the draft's output.
        ContextLengthError
            The prompt is too long (a subclass of `InputError`).
        BusyError
            Too many sequences are waiting.
        EngineClosedError
            The engine is closed, or the process was forked after its creation.
        """
        options = DecodingOptions.of_call(locals())
        speculative = Speculative() if speculative is None else speculative
        if not isinstance(speculative, Speculative):
            expected = "a specdec.Speculative, or None"
            raise InputError.of("speculative", speculative, expected, type_of(speculative))
        if speculative.verify is not None:
            options = options.replace(verify=speculative.verify)
        if options.logprobs is not None:
            check_integer("logprobs", options.logprobs, 0, self.max_top_logprobs)
        self._check_open(options.n)  # before encoding the prompt
        chat = Chat.of_call(prompt, messages, tools, documents, chat_template_kwargs)
        request = Request(
            self.target, None, prompt, options, chat, decoder_prompt, n_slots=self.n_slots, n_text=self.n_text
        )
        if request.is_batch:
            expected = "one prompt, or one conversation"
            raise InputError.of("prompt", prompt, expected, "a list of several")
        n_prompt = len(request.prompts[0].ids)
        if n_prompt >= self.n_text:
            expected = f"fewer than n_text ({self.n_text}) of the engine"
            raise ContextLengthError.of("prompt", prompt, expected, number_of(n_prompt, "token"), "has")
        copied: list[int] | None = None
        if prediction is not None:
            if not self._drafts.takes_predictions:
                raise InputError.of("prediction", prediction, "None: the engine has predictions=False")
            copied = ids_of("prediction", check_text("prediction", prediction), self.target).tolist()
        core = self._drafts.settings_of(request, speculative, copied)
        self._scheduler.check(core)
        self._scheduler.fetch(request.prompts[0], request.model(0))
        use = None if copied is None else PredictionUse(len(copied))
        generation = Generation(next(self._ids), request, core, use, self._queue.notify)
        self._queue.put(generation)
        return generation

    def score(self, prompt: Prompt, n_top: int = 0, adapter: Model | None = None) -> Score:
        """Score a prompt by the target or an adapted target, in the calling thread."""
        return (adapter or self.target).score([prompt], top_logprobs=n_top, n_threads=self.n_threads)[0]

    def _check_open(self, n: int) -> None:
        """Raise if the engine is closed or cannot take n more sequences."""
        if not self._thread.is_alive() and not self.closed:  # as after a fork
            found = "the engine was created in another process"
            raise EngineClosedError(f"{found}; create an engine in this one")
        self._queue.check_capacity(n)

    # -------------------------------------------------------------------------------------------- state

    @property
    def closed(self) -> bool:
        """Whether new requests are refused."""
        return self._queue.closing

    def metrics(self) -> EngineMetrics:
        """Return the present state and the counters."""
        with self._queue.lock:
            n_reading = min(self._scheduler.n_reading, self._queue.n_taken)
            return self._counters.metrics(
                n_slots=self.n_slots,
                n_running=self._queue.n_taken - n_reading,
                n_reading=n_reading,
                n_waiting=self._queue.n_waiting,
            )

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Refuse new requests and wait for the running ones to end.

        `drain` lets them finish within `timeout` seconds; the rest are cancelled.
        """
        timeout = check_timeout(timeout)
        hurries = not check_flag("drain", drain)
        self._queue.close(hurries=hurries)
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


class EngineDrafts:
    """Drafts of an engine, and copying from predictions; each request uses one of them, or none.

    `names` are those of `drafts` if given by name; the first draft is the default. `of_session` is the draft
    that the session runs.
    """

    def __init__(
        self, target: Model, draft: DraftLike | Mapping[str, DraftLike] | None, options: DecodingOptions, *,
        predictions: bool, n_threads: int,
    ) -> None:  # fmt: skip
        self.names, self.drafts = _opened(draft, target)
        gammas = [max_draft_tokens(options, one) for one in self.drafts]
        self._gammas = [most for most, _ in gammas]
        self._prediction_gamma = PREDICTION_GAMMA if predictions else 0
        self._choice: DraftSelection | None = None
        self.of_session = Drafting()
        if predictions or len(self.drafts) > 1:
            adaptive = options.policy is not None  # an adaptive ensemble decides by itself
            together = {"predictions": predictions, "adaptive": adaptive}
            self._choice = DraftSelection(self.drafts, self._gammas, **together)
            self.of_session = Drafting(self._choice, self._choice.describe(target), self._choice.most)
        elif self.drafts and self._gammas[0] > 0:
            (draft,), policy = self.drafts, gammas[0][1]
            run_type = RunType(target, draft, 0.0, "auto", n_threads)
            adapted = (policy, run_type) if isinstance(policy, AdaptiveGamma) else None
            self.of_session = Drafting(draft, draft.describe(target), self._gammas[0], adapted)

    @property
    def takes_predictions(self) -> bool:
        """Whether requests may include a prediction."""
        return self._prediction_gamma > 0

    def settings_of(
        self, request: Request, speculative: Speculative, prediction: list[int] | None
    ) -> _core.Settings:
        """Return a request's settings for the core.

        Raises an InputError for an unknown draft name, a CheckpointError if a draft's packed file has
        changed.
        """
        for draft in self.drafts:
            for model in draft.readers:
                _ = model.core  # checks its packed file, if mapped from one
        plain, index = self._chosen(speculative.draft)
        predicted = bool(prediction) and not plain
        gamma = self._gammas[index] if index is not None else 0
        if predicted and request.rule in ONE_DRAFT_RULES and not request.sampling.greedy:
            index, gamma = None, 0  # the prediction only: this rule cannot judge two drafts
        if gamma == 0:
            index = None
        if self._choice is not None:
            drafters = self._choice.bits(index, predicted=predicted)
        else:
            drafters = 0 if index is None else EVERY_DRAFT
        if predicted:
            gamma += self._prediction_gamma
        if speculative.gamma is not None:
            gamma = min(check_integer("speculative.gamma", speculative.gamma, 0, MAX_GAMMA), gamma)
        copied = prediction if predicted else None
        return request.settings(0, gamma=min(gamma, MAX_GAMMA), drafters=drafters, prediction=copied)

    def _chosen(self, draft: bool | str) -> tuple[bool, int | None]:
        """Return (whether the request is decoded without drafts, index of its draft or None)."""
        if isinstance(draft, str):
            if draft not in self.names:
                expected = " or ".join(map(repr, self.names)) or "True or False (the draft has no name)"
                raise InputError.of("speculative.draft", draft, expected)
            return False, self.names.index(draft)
        if not check_flag("speculative.draft", draft):
            return True, None
        return False, 0 if self.drafts else None


def _opened(
    draft: DraftLike | Mapping[str, DraftLike] | None, target: Model
) -> tuple[list[str], list[Draft]]:
    """Return (names of the drafts if named, drafts)."""
    if not isinstance(draft, Mapping):
        return [], [] if draft is None else [_one("draft", draft, target)]
    if not 1 <= len(draft) <= _MOST_DRAFTS:
        raise InputError(f"draft has {len(draft)} drafts; expected 1 to {_MOST_DRAFTS}")
    for name in draft:
        if not isinstance(name, str) or not name:
            raise InputError(f"draft has the name {shown(name)}; expected a non-empty str")
    return list(draft), [_one(f"draft[{name!r}]", one, target) for name, one in draft.items()]


def _one(name: str, draft: DraftLike, target: Model) -> Draft:
    opened = open_draft(name, draft, target=target)
    check_source(opened.reads_source, target)
    return opened
