"""Continuous batching: one thread decodes the texts of many requests, which join and leave between rounds."""

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
"""Tokens that a text may have where the caller does not say, if the context is longer."""
_SLICE_S: Final = 0.002
"""Seconds of rounds in a step, while nobody waits for a slot: a model's own round is mostly longer."""
_MOST_DRAFTS: Final = 60
"""That requests may choose from: each has a bit of 64, and predictions too."""


class Engine:
    """One thread that decodes many requests at once over one target and one draft.

    Requests join and leave between rounds; each has settings of its own. Prompts are read in slices between
    the rounds of the texts that run, so that no text waits longer than a slice. What a text becomes depends
    on its own request alone: greedy and coupled texts are those of `specdec.generate` to the bit.

    Parameters
    ----------
    target : Model, path or hub name
        The model whose texts are wanted.
    draft : Model, path, Draft, object, mapping or None
        What drafts, as in `specdec.generate`; None: plain decoding. Several by their names: each request
        chooses one (`Speculative`); the first drafts for those that name none.
    gamma : int, "auto" or AdaptiveGamma, optional
        Draft tokens of a text in a round at most; "auto" drafts less as the batch fills.
    n_slots : int, default 16
        Texts that are decoded at once.
    n_text : int, optional
        Tokens of the longest text, prompt and new; by default the context, at most 4096. Memory is taken as
        texts grow.
    max_waiting : int, default 256
        Texts that wait for a slot at most; more are refused with a `BusyError`.
    node_budget, n_threads : int, optional
        As in `specdec.generate`.
    max_top_logprobs : int, default 20
        The most that a request may ask for.
    predictions : bool, default True
        Whether requests may come with a prediction, from which draft tokens are copied.
    prompt_cache : PromptCache, optional
        Where texts are kept that were read, for prompts that begin like them; None: nowhere.

    Attributes
    ----------
    target, n_slots, n_text, max_waiting, max_top_logprobs, n_threads, node_budget
        As given, or their defaults; the target loaded.
    draft : Draft or None
        The one that drafts for requests that name none.
    drafts : dict of str to Draft
        Those that requests may name.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.generate`; also where gamma is a function of the caller's.

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
        # A draft without a name cannot be chosen: then there are no names.
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
        state = "closed" if self.closed else f"{self.metrics().n_running} texts run"
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
                except BaseException as error:  # a draft of the caller's may raise what it likes
                    self._begin_again(error)
        except BaseException as error:
            self._queue.close(hurries=True)
            self._queue.stop_scoring(wait=True)
            self._fail([*self._scheduler.running, *self._queue.drop_unwanted()], error)
        finally:
            self._queue.stop_scoring()
            self._scheduler.close(keep=not self._scheduler.running)

    def _step(self) -> None:
        """Cancel, admit, decode and publish: what is done between two looks at the requests."""
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
        except BaseException as error:  # a draft of the caller's may raise what it likes
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
        """Hand what is new of a text to its readers."""
        times = sample.generation.times
        first = times.first_token is None
        sample.generation.publish(sample)
        if first and times.first_token is not None:
            self._counters.count_wait("first_token_s", times.first_token - times.submitted)

    def _end(self, sample: Sample, *, had_slot: bool = True) -> None:
        """Tell the readers of a text that it has ended, and free its share of the slots."""
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
        """The session has failed, and with it the texts in its slots; those that wait get another one."""
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
        logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, no_repeat_ngram_size: int = 0,
        bad_words: Sequence[str | Sequence[int]] | None = None,
        draft_sampling: Sampling | None = None, transform: Transform | None = None,
        schema: Schema | None = None, regex: str | None = None, grammar: str | None = None,
        constraint: Constraint | None = None,
        verify: DecodingRule = "rejection", lenience: float = 1.0, seed: Seed = None, stop: Stop = None,
        logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
        prompt_logprobs: int | None = None, ignore_eos: bool = False,
        adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
        n: int = 1,
    ) -> Generation:  # fmt: skip
        """Let a prompt, or a conversation, be continued; returns at once.

        Parameters
        ----------
        prompt, decoder_prompt, messages, tools, documents, chat_template_kwargs
            As in `specdec.generate`: one prompt or conversation.
        prediction : str or sequence of int, optional
            What the new text is expected to be like: draft tokens are copied from it.
        speculative : Speculative, optional
            How the request is drafted for; None: as the engine drafts.
        max_new_tokens, temperature, ...
            The settings of `specdec.generate` that are a text's own. The folder of an `adapter` is read for
            the request: give models of :meth:`Model.with_adapter` to many requests.

        Returns
        -------
        Generation
            Where the pieces of the texts come, and their results.

        Raises
        ------
        InputError
            As `specdec.generate`; also for several prompts, for a prediction that the engine does not take,
            and where the rule cannot judge what would be drafted.
        ContextLengthError
            The prompt is too long: an `InputError` too.
        BusyError
            Too many texts wait.
        EngineClosedError
            The engine is closed, or its thread is of another process.
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
        self._check_open(options.n)  # before the prompt is encoded
        chat = Chat.of_call(prompt, messages, tools, documents, chat_template_kwargs)
        request = Request(
            self.target, None, prompt, options, chat, decoder_prompt, n_slots=self.n_slots, n_text=self.n_text
        )
        if request.is_batch:
            expected = "one prompt, or one conversation"
            raise InputError.of("prompt", prompt, expected, "a list of several")
        n_prompt = len(request.prompts[0].ids)
        if n_prompt >= self.n_text:
            expected = f"fewer than {self.n_text}, the longest text of the engine"
            raise ContextLengthError.of("prompt", prompt, expected, number_of(n_prompt, "token"), "has")
        copied: list[int] | None = None
        if prediction is not None:
            if not self._drafts.takes_predictions:
                raise InputError.of("prediction", prediction, "None, as the engine takes no predictions")
            copied = ids_of("prediction", check_text("prediction", prediction), self.target).tolist()
        core = self._drafts.settings_of(request, speculative, copied)
        self._scheduler.check(core)
        use = None if copied is None else PredictionUse(len(copied))
        generation = Generation(next(self._ids), request, core, use, self._queue.notify)
        self._queue.put(generation)
        return generation

    def score(self, prompt: Prompt, n_top: int = 0, adapter: Model | None = None) -> Score:
        """Score a prompt by the target, or a model of it with an adapter, in the calling thread."""
        return (adapter or self.target).score([prompt], top_logprobs=n_top, n_threads=self.n_threads)[0]

    def _check_open(self, n: int) -> None:
        """Refuse n texts more, if there is no room for them."""
        if not self._thread.is_alive() and not self.closed:  # as after a fork
            found = "the engine's thread is of another process"
            raise EngineClosedError(f"{found}; expected an engine that was made in this one")
        self._queue.check_capacity(n)

    # -------------------------------------------------------------------------------------------- state

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._queue.closing

    def metrics(self) -> EngineMetrics:
        """What it holds now, and what it has done so far."""
        with self._queue.lock:
            n_reading = min(self._scheduler.n_reading, self._queue.n_taken)
            return self._counters.metrics(
                n_slots=self.n_slots,
                n_running=self._queue.n_taken - n_reading,
                n_reading=n_reading,
                n_waiting=self._queue.n_waiting,
            )

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and return when the texts have ended.

        `drain` lets all texts come to their ends, if they do within `timeout` seconds; others are cancelled.
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
    """The drafts of an engine, with copies of predictions; each request uses one of them, or none.

    `drafts`, the first of which drafts for requests that name none, have `names` where they are given by
    name. `of_session` is what drafts in the session.
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
            adaptive = options.policy is not None  # an ensemble that adapts decides by itself
            together = {"predictions": predictions, "adaptive": adaptive}
            self._choice = DraftSelection(self.drafts, self._gammas, **together)
            self.of_session = Drafting(self._choice, self._choice.describe(target), self._choice.most)
        elif self.drafts and self._gammas[0] > 0:
            (draft,), policy = self.drafts, gammas[0][1]
            run_type = RunType(target, draft, 0.0, "rejection", n_threads)
            adapted = (policy, run_type) if isinstance(policy, AdaptiveGamma) else None
            self.of_session = Drafting(draft, draft.describe(target), self._gammas[0], adapted)

    @property
    def takes_predictions(self) -> bool:
        """Whether requests may come with a prediction."""
        return self._prediction_gamma > 0

    def settings_of(
        self, request: Request, speculative: Speculative, prediction: list[int] | None
    ) -> _core.Settings:
        """How the texts of a request are decoded; an InputError where no draft has the name that it chooses.

        Raises a CheckpointError where another program has changed the packed file of a draft.
        """
        for draft in self.drafts:
            for model in draft.readers:
                _ = model.core  # compares its packed file, if it is mapped from one
        plain, index = self._chosen(speculative.draft)
        predicted = bool(prediction) and not plain
        gamma = self._gammas[index] if index is not None else 0
        if predicted and request.rule in ONE_DRAFT_RULES and not request.sampling.greedy:
            index, gamma = None, 0  # copies alone, as two drafts side by side cannot be judged
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
        """(whether a request is decoded plainly, which draft it uses, if any)."""
        if isinstance(draft, str):
            if draft not in self.names:
                expected = " or ".join(map(repr, self.names)) or "True or False: the draft has no name"
                raise InputError.of("speculative.draft", draft, expected)
            return False, self.names.index(draft)
        if not check_flag("speculative.draft", draft):
            return True, None
        return False, 0 if self.drafts else None


def _opened(
    draft: DraftLike | Mapping[str, DraftLike] | None, target: Model
) -> tuple[list[str], list[Draft]]:
    """(the names of the drafts, if they have any, the drafts)."""
    if not isinstance(draft, Mapping):
        return [], [] if draft is None else [_one("draft", draft, target)]
    if not 1 <= len(draft) <= _MOST_DRAFTS:
        raise InputError(f"draft has {len(draft)} drafts; expected 1 to {_MOST_DRAFTS}")
    for name in draft:
        if not isinstance(name, str) or not name:
            raise InputError(f"draft has the name {shown(name)}; expected a str of a character at least")
    return list(draft), [_one(f"draft[{name!r}]", one, target) for name, one in draft.items()]


def _one(name: str, draft: DraftLike, target: Model) -> Draft:
    opened = open_draft(name, draft, target=target)
    check_source(opened.reads_source, target)
    return opened
