"""One text that is decoded: what it begins with, how it is decoded, and what has come of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.stopping import NewText
from specdec.models.score import Score, joined, scored, top_pairs
from specdec.trace import Round, Trace

__all__ = ["AnySequence", "Sequence", "score_prompts", "sequences_of"]


class Sequence(NewText):
    """One text of a request, in a slot of a `Scheduler` or waiting for one."""

    def __init__(self, request: Request, index: int, settings: _core.Settings) -> None:
        self.request, self.index, self.settings = request, index, settings
        self.prompt = request.prompts[index]
        self.model = request.model(index)
        super().__init__(self.prompt.stream_decoder(request.target), request.stop, *request.limit(index))
        self.slot: int | None = None
        self.rounds: list[Round] = []
        self.prefill_s = 0.0  # of the prompts that were read together with this one
        self.n_cached = 0  # tokens of the prompt that a prompt cache had
        self.n_sequences = request.n_slots
        self.score: Score | None = None  # of the prompt, where that was asked for
        self.read: _core.CachedText | None = None  # the prompt as it was read for its score
        self.error: BaseException | None = None
        self.logprobs: list[tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]] = []
        self._logits: list[NDArray[np.float32]] = []

    def take(self, done: _core.SlotRound) -> Round:
        """Add a round's tokens up to where the text ends; of a failed one only the error."""
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
        """End the text by an error; what came before stays."""
        self.error, self.finish_reason = error, "error"

    def result(self) -> Result:
        """The result of the text so far, with the reason "error" where it has not ended."""
        request, target, score = self.request, self.request.target, self.score
        logits = log_probs = top = None
        if request.options.logits:
            logits = np.concatenate([np.empty((0, target.config.n_vocab), np.float32), *self._logits])
        if request.options.logprobs is not None:
            log_probs = np.concatenate([np.empty(0), *(of_round for of_round, _, _ in self.logprobs)])
        if request.options.logprobs:
            top = [pairs for _, ids, of_ids in self.logprobs for pairs in top_pairs(ids, of_ids)]
        return Result(
            text=self.text, tokens=self.tokens, finish_reason=self.finish_reason or "error", stop=self.stop,
            trace=Trace(self.rounds, prefill_s=self.prefill_s, n_sequences=self.n_sequences),
            prompt_ids=self.prompt.ids, source_ids=self.prompt.source,
            source_text=self.prompt.source_text(target), seed=request.seeds[self.index],
            logits=logits, logprobs=log_probs, top_logprobs=top,
            prompt_logprobs=None if score is None else score.log_probs,
            prompt_top_logprobs=None if score is None else score.top_logprobs,
            tokenizer=target.tokenizer, n_cached_tokens=self.n_cached,
        )  # fmt: skip


AnySequence = TypeVar("AnySequence", bound=Sequence)


def sequences_of(request: Request, **drafting: Any) -> list[Sequence]:
    """The sequences of a request, in order; `drafting` as in `Request.settings`."""
    settings: dict[_core.Model, _core.Settings] = {}
    found = []
    for index in range(len(request.prompts)):
        model = request.model(index).core
        if model not in settings:
            settings[model] = request.settings(index, **drafting)
        found.append(Sequence(request, index, settings[model]))
    return found


def score_prompts(sequences: list[Any]) -> None:
    """Score the prompts of all sequences of a request; what is read of a single one is kept."""
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
