"""`agenerate` and `astream`, for programs with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from specdec.containers import Container, prompts_of
from specdec.decoding.engine import Engine
from specdec.decoding.generation import Generation, Speculative
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
)
from specdec.decoding.prompts import Chat, decoder_prompts_of
from specdec.decoding.request import seeds_of
from specdec.decoding.result import Result
from specdec.drafts.model_draft import DraftLike, open_draft
from specdec.drafts.texts import Text
from specdec.errors import InputError
from specdec.models.chat_template import Messages
from specdec.models.loading import as_model
from specdec.models.model import ModelLike, Prompt
from specdec.settings_table import table_of

_Made = TypeVar("_Made")

_OF_TEXTS = table_of(DecodingOptions, "submit")
"""Settings that may differ between calls that share an engine."""

_lock = threading.Lock()
_shared: dict[tuple[Any, ...], tuple[Engine, int]] = {}
"""Engines in use by calls, with the number of calls of each."""


class _EngineOfCall:
    """The given engine, or one that simultaneous calls with the same models share.

    This is a class, not an `asynccontextmanager`: an ending event loop closes generators in any order,
    possibly before the call inside.
    """

    def __init__(
        self, engine: Engine | None, target: ModelLike | None, draft: DraftLike | None,
        options: DecodingOptions,
    ) -> None:  # fmt: skip
        own = {name: x for name, x in options.arguments().items() if name not in _OF_TEXTS}
        if engine is not None and (target is not None or draft is not None or own):
            given = ["target or draft"] * (target is not None or draft is not None) + sorted(own)
            found = f"{', '.join(given)} cannot be combined with an engine"
            raise InputError.about("engine", f"{found}; expected None, as the engine has its own")
        if engine is None and target is None:
            raise InputError.of("target", target, "a model, or an engine")
        self._engine, self._target, self._draft = engine, target, draft
        self._settings = DecodingOptions(**own)
        self._key: tuple[Any, ...] | None = None

    async def __aenter__(self) -> Engine:
        if self._engine is not None:
            return self._engine
        taken = await _in_thread(self._take, lambda taken: _give_back(taken[0]))
        self._key, made = taken
        return made

    async def __aexit__(self, *exc_info: object) -> None:
        if self._key is not None:
            await asyncio.to_thread(_give_back, self._key)

    def _take(self) -> tuple[tuple[Any, ...], Engine]:
        own, model = self._settings, as_model("target", self._target)
        draft = None if self._draft is None else open_draft("draft", self._draft, target=model)
        shared = {name: getattr(own, name) for name in ("gamma", "n_threads", "prompt_cache", "node_budget")}
        # The key holds objects that the engine does not, so that their ids are not reused.
        drafts = None if draft is None else id(draft.identity)
        key = (id(model.core), drafts, own.slots, *shared.values())
        with _lock:
            engine, n = _shared.get(key, (None, 0))
            if engine is None:
                engine = Engine(
                    model, draft, n_slots=own.slots, n_text=model.config.n_ctx, max_waiting=2**31 - 1,
                    max_top_logprobs=model.config["n_vocab"], **shared,
                )  # fmt: skip
            _shared[key] = (engine, n + 1)
        return key, engine


def _give_back(key: tuple[Any, ...]) -> None:
    with _lock:
        engine, n = _shared.pop(key)
        if n > 1:
            _shared[key] = (engine, n - 1)
            return
    engine.close()


async def _in_thread(work: Callable[[], _Made], undo: Callable[[_Made], object]) -> _Made:
    """Return a function's result from another thread; if the task is cancelled meanwhile, undo it."""
    made: list[_Made] = []
    lock, left = threading.Lock(), False

    def run() -> _Made:
        found = work()
        with lock:
            if not left:
                made.append(found)
                return found
        undo(found)
        return found

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        with lock:
            left = True
        for found in made:
            await asyncio.to_thread(undo, found)
        raise


async def agenerate(
    target: ModelLike | None = None, draft: DraftLike | None = None,
    prompt: Prompt | Sequence[Prompt] | Container | None = None, *,
    engine: Engine | None = None,
    decoder_prompt: Prompt | Sequence[Prompt] | Container | None = None,
    messages: Messages | Sequence[Messages] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None, documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    prediction: Text | None = None, speculative: Speculative | None = None,
    gamma: Gamma = None, max_new_tokens: int | None = 200,
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
    n_threads: int | None = None, prompt_cache: PromptCache | None = None,
    logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
    prompt_logprobs: int | None = None, ignore_eos: bool = False,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
    n: int = 1, batch_size: int | None = None, node_budget: int | None = None,
) -> Result | list[Result] | list[list[Result]]:  # fmt: skip
    """Asynchronous `specdec.generate`.

    Simultaneous calls with the same target and draft share an `Engine`, which batches them. Cancelling the
    task stops its sequences.

    Parameters
    ----------
    target, draft, prompt, gamma, temperature, ...
        Those of `specdec.generate`, except `logits`, `progress` and a callable `gamma`.
    engine : Engine, optional
        An open engine, in place of target and draft.
    prediction, speculative
        As in `Engine.submit`; one prediction for all prompts.

    Returns
    -------
    Result, or list of Result
        As in `specdec.generate`, errors included.

    Examples
    --------
    >>> texts = await asyncio.gather(*(specdec.agenerate(target, draft, prompt) for prompt in prompts))
    """
    arguments = locals()
    options = DecodingOptions.of_call(arguments)
    more = _of_text(options, arguments)
    chat = Chat.of_call(prompt, messages, tools, documents, chat_template_kwargs)
    if chat is not None:
        name, given, is_batch = "messages", list(chat.conversations), chat.is_batch
    elif prompt is None:
        raise InputError("prompt is missing; expected a text, token ids, or a list of prompts")
    else:
        name, (given, is_batch) = "prompt", prompts_of("prompt", prompt)
    async with _EngineOfCall(engine, target, draft, options) as shared:
        starts = decoder_prompts_of(shared.target, decoder_prompt, len(given), is_batch)
        seeds = seeds_of(seed, len(given) * n)
        begun: list[Generation] = []
        try:
            for i, (item, start) in enumerate(zip(given, starts, strict=True)):
                submitted = {**more, name: item, "decoder_prompt": start, "seed": seeds[i * n : (i + 1) * n]}
                begun.append(await _in_thread(partial(shared.submit, **submitted), Generation.cancel))
            found = [await generation.aresults() for generation in begun]
        finally:
            for generation in begun:
                generation.cancel()
    if n == 1:
        results = [of_prompt[0] for of_prompt in found]
        return results if is_batch else results[0]
    return found if is_batch else found[0]


async def astream(
    target: ModelLike | None = None, draft: DraftLike | None = None,
    prompt: Prompt | None = None, *,
    engine: Engine | None = None,
    decoder_prompt: Prompt | None = None, messages: Messages | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None, documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    prediction: Text | None = None, speculative: Speculative | None = None,
    gamma: Gamma = None, max_new_tokens: int | None = 200,
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
    n_threads: int | None = None, prompt_cache: PromptCache | None = None,
    logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
    prompt_logprobs: int | None = None, ignore_eos: bool = False,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
    batch_size: int | None = None, node_budget: int | None = None,
) -> AsyncIterator[str]:  # fmt: skip
    """Asynchronous `specdec.stream`: yields the pieces of a text as they come.

    Takes the parameters of `agenerate`, with one prompt and one sample. Leaving the iterator stops decoding.

    Yields
    ------
    str

    Examples
    --------
    >>> async for piece in specdec.astream(target, draft, "It was a dark and stormy night"):
    ...     print(piece, end="", flush=True)
    """
    arguments = locals()
    options = DecodingOptions.of_call(arguments)
    async with _EngineOfCall(engine, target, draft, options) as shared:
        if shared.target.tokenizer is None:
            raise InputError("stream yields text, but the target has no tokenizer; use agenerate")
        begun: dict[str, Any] = {"prompt": prompt, "decoder_prompt": decoder_prompt, "messages": messages}
        submit = partial(shared.submit, **begun, **_of_text(options, arguments))
        generation = await _in_thread(submit, Generation.cancel)
        try:
            async for piece in generation:
                if piece.text:
                    yield piece.text
        finally:
            generation.cancel()


def _of_text(options: DecodingOptions, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the per-sequence settings and other arguments of the call for `Engine.submit`."""
    others = ("tools", "documents", "chat_template_kwargs", "prediction", "speculative")
    own = {name: x for name, x in options.arguments().items() if name in _OF_TEXTS}
    return own | {name: arguments[name] for name in others}
