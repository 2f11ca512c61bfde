"""An engine that writes texts which a test names, so that what a server makes of them can be compared."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np

import specdec
from specdec import EngineMetrics, Piece, Trace
from specdec.errors import BusyError, EngineClosedError
from specdec.serve import Server, ServerLimits, Service
from specdec.tokenizer import StreamDecoder

Script = Callable[[dict[str, Any]], list[Any]]


def log_prob(i: int) -> float:
    """ln p of token i of every text."""
    return -0.25 * (i + 1)


class ScriptedGeneration:
    """The texts of one request, in pieces of so many tokens; a list of ids stands for a text of these."""

    def __init__(self, engine: ScriptedEngine, options: dict[str, Any], texts: list[Any]) -> None:
        self._engine, self._options = engine, options
        self.n = len(texts)
        tokenizer = engine.target.tokenizer
        assert tokenizer is not None
        if options.get("messages") is not None:
            variables = options.get("chat_template_kwargs") or {}
            self.prompt_ids = engine.target.chat_ids(
                options["messages"], tools=options.get("tools"), **variables
            )
        else:
            prompt = options["prompt"]
            self.prompt_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.n_cached_tokens = 3
        now = time.perf_counter()
        self.times = SimpleNamespace(submitted=now, started=now, first_token=now, ended=now)
        self.prediction = None
        if options.get("prediction") is not None:
            self.prediction = SimpleNamespace(n_tokens=9, n_accepted=5, n_rejected=4)
        self.done = False
        self.cancelled = threading.Event()
        self._tokens = [
            one if isinstance(one, list) else tokenizer.encode(one, add_bos=False) for one in texts
        ]
        self._texts = [tokenizer.decode(tokens) for tokens in self._tokens]
        self._log_probs = [[log_prob(i) for i in range(len(tokens))] for tokens in self._tokens]

    def _top(self, sample: int) -> list[list[tuple[int, float]]] | None:
        n_top = self._options.get("logprobs")
        if not n_top:
            return None
        return [
            [(token, log_prob(i)), *((k, -9.0 - k) for k in range(1, n_top))]
            for i, token in enumerate(self._tokens[sample])
        ]

    def _pieces(self) -> Iterator[Piece]:
        tokenizer, step = self._engine.target.tokenizer, self._engine.step
        assert tokenizer is not None
        scored = self._options.get("logprobs") is not None
        for sample, tokens in enumerate(self._tokens):
            decoder, scores = StreamDecoder(tokenizer), self._top(sample)
            for begin in range(0, max(len(tokens), 1), step):
                end = min(begin + step, len(tokens))
                text = decoder.feed(tokens[begin:end]) + (decoder.finish() if end == len(tokens) else "")
                yield Piece(
                    index=sample,
                    text=text,
                    tokens=tokens[begin:end],
                    logprobs=self._log_probs[sample][begin:end] if scored else None,
                    top_logprobs=scores[begin:end] if scores else None,
                    finish_reason=self._engine.reason if end == len(tokens) else None,
                    stop=None,
                )

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            for i, piece in enumerate(self._pieces()):
                while self._engine.held.is_set() and not self.cancelled.is_set():
                    await asyncio.sleep(0.001)
                if self.cancelled.is_set():
                    yield Piece(piece.index, "", [], None, None, "cancelled", None)
                    break
                if self._engine.error is not None and i >= self._engine.n_before_error:
                    raise self._engine.error
                yield piece
        finally:
            self._end()

    def _end(self) -> None:
        if not self.done:
            self.done = True
            self._engine.n_open -= self.n

    async def aresults(self) -> list[specdec.Result]:
        async for _ in self:
            pass
        reason: Any = "cancelled" if self.cancelled.is_set() else self._engine.reason
        scored = self._options.get("logprobs") is not None
        return [
            specdec.Result(
                text=text,
                tokens=tokens,
                finish_reason=reason,
                stop=None,
                trace=Trace([], prefill_s=0.0, n_sequences=1),
                prompt_ids=self.prompt_ids,
                seed=(0, sample),
                logprobs=np.array(self._log_probs[sample]) if scored else None,
                top_logprobs=self._top(sample),
            )
            for sample, (text, tokens) in enumerate(zip(self._texts, self._tokens, strict=True))
        ]

    def cancel(self, index: int | None = None) -> None:
        if not self.done:
            self.cancelled.set()
            self._end()


class ScriptedEngine:
    """Stands in for `Engine`.

    Parameters
    ----------
    target : Model
        Its tokenizer and chat template; nothing is computed.
    script : callable
        The texts of a request, from the keyword arguments of `submit`.
    step : int
        Tokens of a piece.
    """

    def __init__(self, target: specdec.Model, script: Script, *, step: int = 2, max_open: int = 1000) -> None:
        self.target, self.draft = target, None
        self.drafts: dict[str, Any] = {}
        self._script = script
        self.step = step
        self.n_slots, self.n_text, self.max_waiting = 4, target.config.n_ctx, max_open
        self.closed = False
        self.reason: Any = "stop"
        self.held = threading.Event()  # while it is set no text goes on
        self.error: Exception | None = None
        self.n_before_error = 0  # pieces of a text that come before the error
        self.asked: list[dict[str, Any]] = []
        self.generations: list[ScriptedGeneration] = []
        self.n_open = 0

    def submit(self, **options: Any) -> ScriptedGeneration:
        if self.closed:
            raise EngineClosedError("the engine is closed")
        texts = self._script(options)
        if self.n_open + len(texts) > self.max_waiting:
            raise BusyError(f"{self.n_open} texts are waiting; expected at most {self.max_waiting}")
        generation = ScriptedGeneration(self, options, texts)
        self.n_open += len(texts)
        self.generations.append(generation)
        self.asked.append(options)  # last: tests wait for it
        return generation

    def score(self, prompt: list[int], n_top: int, adapter: Any) -> SimpleNamespace:
        """What of a `Score` a server reads; waits while texts are held."""
        while self.held.is_set():
            time.sleep(0.001)
        return SimpleNamespace(
            log_probs=np.array([log_prob(i) for i in range(len(prompt) - 1)]), top_logprobs=None
        )

    def metrics(self) -> EngineMetrics:
        empty: dict[str, Any] = {"n_finished": {"stop": 2}, "accepted_at": [3, 1]}
        empty |= dict.fromkeys(("first_token_s", "queue_s"), (0, 0.0))
        return EngineMetrics(**{field.name: empty.get(field.name, 7) for field in fields(EngineMetrics)})

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        self.closed = True
        if not drain:
            for generation in self.generations:
                generation.cancel()


@contextmanager
def serving(
    target: specdec.Model, text: Any = "", *, limits: ServerLimits | None = None, **options: Any
) -> Iterator[tuple[ScriptedEngine, Server]]:
    """A server whose engine writes one text; options as of `Server`."""
    engine: Any = ScriptedEngine(target, lambda asked: [text])
    with Server(Service(engine, ["mine"], limits=limits), port=0, **options) as server:
        yield engine, server
