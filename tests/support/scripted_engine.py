"""An engine that writes texts given by a test, so that server output can be compared exactly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
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


def log_prob(i: int) -> float:
    """ln p of token i of every text."""
    return -0.25 * (i + 1)


class ScriptedGeneration:
    """Texts of one request, in pieces of a fixed number of tokens; a list of ids stands for its text."""

    def __init__(self, engine: ScriptedEngine, options: dict[str, Any]) -> None:
        self._engine, self._options, self.n = engine, options, options.get("n", 1)
        tokenizer, text = engine.target.tokenizer, engine.text
        assert tokenizer is not None
        if options.get("messages") is not None:
            variables = options.get("chat_template_kwargs") or {}
            prompt = engine.target.chat_ids(options["messages"], tools=options.get("tools"), **variables)
        else:
            prompt = options["prompt"]
        self.prompt_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.n_cached_tokens, self.done, self.cancelled = 3, False, threading.Event()
        now = time.perf_counter()
        self.times = SimpleNamespace(submitted=now, started=now, first_token=now, ended=now)
        counts = SimpleNamespace(n_tokens=9, n_accepted=5, n_rejected=4)
        self.prediction = None if options.get("prediction") is None else counts
        self._tokens = text if isinstance(text, list) else tokenizer.encode(text, add_bos=False)
        n_top, places = options.get("logprobs"), range(len(self._tokens))
        self._scores = None if n_top is None else [log_prob(i) for i in places]
        others = [(k, -9.0 - k) for k in range(1, n_top or 0)]
        self._top = [[(self._tokens[i], log_prob(i)), *others] for i in places] if n_top else None

    def _pieces(self) -> Iterator[Piece]:
        tokenizer, step, n = self._engine.target.tokenizer, self._engine.step, len(self._tokens)
        assert tokenizer is not None
        for sample in range(self.n):
            decoder = StreamDecoder(tokenizer)
            for begin in range(0, max(n, 1), step):
                part = slice(begin, min(begin + step, n))
                text = decoder.feed(self._tokens[part]) + (decoder.finish() if part.stop == n else "")
                scores, top = (None if one is None else one[part] for one in (self._scores, self._top))
                reason = self._engine.reason if part.stop == n else None
                yield Piece(sample, text, self._tokens[part], scores, top, reason, None, [])

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            for i, piece in enumerate(self._pieces()):
                while self._engine.held.is_set() and not self.cancelled.is_set():
                    await asyncio.sleep(0.001)
                if self.cancelled.is_set():
                    yield Piece(piece.index, "", [], None, None, "cancelled", None, [])
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
        tokenizer = self._engine.target.tokenizer
        assert tokenizer is not None
        return [
            specdec.Result(
                text=tokenizer.decode(self._tokens), tokens=self._tokens, stop=None, seed=(0, sample),
                finish_reason="cancelled" if self.cancelled.is_set() else self._engine.reason,
                trace=Trace([], prefill_s=0.0, n_sequences=1), prompt_ids=self.prompt_ids,
                logprobs=None if self._scores is None else np.array(self._scores), top_logprobs=self._top,
            )
            for sample in range(self.n)
        ]  # fmt: skip

    def prompt_score(self, index: int) -> SimpleNamespace | None:
        """Return the parts of a `Score` that a server reads, if requested."""
        n_top = self._options.get("prompt_logprobs")
        return None if n_top is None else self._engine.score(self.prompt_ids, n_top, None)

    def cancel(self, index: int | None = None) -> None:
        if not self.done:
            self.cancelled.set()
            self._end()


class ScriptedEngine:
    """Replacement for `Engine` that writes one fixed text or token ids without computing."""

    def __init__(self, target: specdec.Model, text: Any = "", *, max_open: int = 1000) -> None:
        self.target, self.draft, self.text = target, None, text
        self.drafts: dict[str, Any] = {}
        self.n_slots, self.n_text, self.max_waiting = 4, target.config.n_ctx, max_open
        self.step = 2  # tokens of a piece
        self.closed, self.reason = False, "stop"
        self.held = threading.Event()  # while it is set no text continues
        self.refusal: Exception | None = None  # of the next requests
        self.error: Exception | None = None  # of texts, after some pieces
        self.n_before_error = self.n_open = 0
        self.asked: list[dict[str, Any]] = []
        self.generations: list[ScriptedGeneration] = []

    def submit(self, **options: Any) -> ScriptedGeneration:
        if self.closed:
            raise EngineClosedError("the engine is closed")
        if self.refusal is not None:
            raise self.refusal
        generation = ScriptedGeneration(self, options)
        if self.n_open + generation.n > self.max_waiting:
            raise BusyError(f"{self.n_open} texts are waiting; expected at most {self.max_waiting}")
        self.n_open += generation.n
        self.generations.append(generation)
        self.asked.append(options)  # last: tests wait for it
        return generation

    def score(self, prompt: list[int], n_top: int, adapter: Any) -> SimpleNamespace:
        """Return the parts of a `Score` that a server reads; wait while texts are held."""
        while self.held.is_set():
            time.sleep(0.001)
        scores = np.array([log_prob(i) for i in range(len(prompt) - 1)])
        return SimpleNamespace(log_probs=scores, top_logprobs=None)

    def metrics(self) -> EngineMetrics:
        special: dict[str, Any] = {"n_finished": {"stop": 2}, "accepted_at": [3, 1]}
        special |= dict.fromkeys(("first_token_s", "queue_s"), (0, 0.0))
        return EngineMetrics(**{field.name: special.get(field.name, 7) for field in fields(EngineMetrics)})

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        self.closed = True
        if not drain:
            for generation in self.generations:
                generation.cancel()


@contextmanager
def serving(
    target: specdec.Model, text: Any = "", *, limits: ServerLimits | None = None, **options: Any
) -> Iterator[tuple[ScriptedEngine, Server]]:
    """Server with an engine that writes a fixed text; options as of `Server`."""
    engine: Any = ScriptedEngine(target, text)
    with Server(Service(engine, ["mine"], limits=limits), port=0, **options) as server:
        yield engine, server
