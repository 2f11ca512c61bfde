"""`Generation`, one request of an engine, readable from other threads and from event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from specdec import _core
from specdec.checks import check_integer, check_timeout
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.scheduler import Sequence
from specdec.display.rounds import FinishReason
from specdec.errors import InputError, NotFiniteError
from specdec.models.score import Score, TopLogProbs, top_pairs
from specdec.trace import Round
from specdec.verification.rules import DecodingRule


@dataclass(frozen=True)
class Speculative:
    """Per-request drafting options of an engine; they never change the output's distribution.

    `draft`: False is plain decoding, without a prediction too; a name selects one of the engine's drafts.
    `gamma`: maximum of draft tokens per round. `verify`: the rule, in place of the request's.
    """

    draft: bool | str = True
    gamma: int | None = None
    verify: DecodingRule | None = None


@dataclass(frozen=True)
class Piece:
    """New output of one sample since its last piece."""

    index: int
    """Index of the sample."""
    text: str
    """Final text; characters that may be incomplete or begin a stop string are held back."""
    tokens: list[int]
    """New token ids, including those of a stop string or stop id, whose text is not in `text`."""
    logprobs: list[float] | None
    """Log-probabilities of the tokens, if requested."""
    top_logprobs: TopLogProbs | None
    """Most probable tokens at each position, best first, if requested."""
    finish_reason: FinishReason | None
    """As in `Result`, with `stop`, in the last piece of a sample, which may have no tokens."""
    stop: str | int | None
    rounds: list[Round]
    """Rounds that wrote the tokens; their `kept` tokens, joined, are `tokens`."""


@dataclass
class GenerationTimes:
    """Times of a request by `time.perf_counter`; None for what has not happened yet."""

    submitted: float
    started: float | None = None  # when its first sample got a slot
    first_token: float | None = None
    ended: float | None = None


@dataclass
class PredictionUse:
    """Use of a prediction over all samples: its tokens, and draft tokens copied from it."""

    n_tokens: int
    n_accepted: int = 0
    n_rejected: int = 0

    def count(self, round_: Round, origins: tuple[int, ...]) -> tuple[int, int]:
        """Count a round's draft tokens; origin 0 marks those from the prediction: (accepted, rejected)."""
        right, depths, n_accepted, n_rejected = [True], [0], 0, 0
        for token, parent, origin in zip(round_.drafted, round_.parents, origins, strict=True):
            depth = depths[parent] + 1
            depths.append(depth)
            right.append(right[parent] and round_.tokens[depth - 1 : depth] == (token,))
            if origin == 0:
                n_accepted += right[-1]
                n_rejected += not right[-1]
        self.n_accepted += n_accepted
        self.n_rejected += n_rejected
        return n_accepted, n_rejected


class Sample(Sequence):
    """One sequence of an engine request. Only the engine's thread writes it, except `cancelled`."""

    def __init__(
        self, request: Request, index: int, settings: _core.Settings, generation: Generation
    ) -> None:
        super().__init__(request, index, settings)
        self.generation = generation
        self.cancelled = False  # set by readers
        self.ended = False  # set by the engine's thread
        self.copied = (0, 0)  # (accepted, rejected) tokens of the prediction in the last round
        self.last_turn = 0  # number of its last turn in `ConstraintTurns`
        self.final: Result | None = None
        self._texts: list[str] = []  # text of the next piece
        self._ready = self._given = (0, 0)  # (tokens, rounds) ready for pieces, and given
        self._gave_last = False

    def take(self, done: _core.SlotRound) -> Round:
        """Extend `Sequence.take`: also count draft tokens copied from a prediction."""
        prediction = self.generation.prediction
        self.copied = (0, 0)
        if done.origins is not None and done.error is None and prediction is not None:
            self.copied = prediction.count(done.round, done.origins)
        return super().take(done)

    @property
    def has_news(self) -> bool:
        """Whether a new piece can be made."""
        return self._ready != self._given or bool(self._texts) or (self.ended and not self._gave_last)

    def gather(self, text: str) -> None:
        """Add new text and tokens to the next piece."""
        if text:
            self._texts.append(text)
        self._ready = len(self.tokens), len(self.rounds)

    def take_piece(self) -> Piece:
        """Return the next piece."""
        n_top = self.request.options.logprobs
        (begin, first), (end, last) = self._given, self._ready
        logprobs, text = self.logprobs[first:last], "".join(self._texts)
        self._gave_last, self._given, self._texts = self.ended, self._ready, []
        return Piece(
            self.index, text, self.tokens[begin:end],
            None if n_top is None else [x for log_probs, _, _ in logprobs for x in log_probs.tolist()],
            [pairs for _, top, of_top in logprobs for pairs in top_pairs(top, of_top)] if n_top else None,
            self.finish_reason if self.ended else None, self.stop if self.ended else None,
            self.rounds[first:last],
        )  # fmt: skip


class Generation:
    """A request running in an `Engine`, made by `Engine.submit`.

    Iterate over it for its `Piece` objects, in a thread or with ``async for``, or wait for its results.
    Unread pieces are merged, so nothing is lost. A reader that stops early should call `cancel`.

    Attributes
    ----------
    id : int
        Number of the request in its engine, from 1.
    n_cached_tokens : int or None
        Prompt tokens found in the prompt cache; None until a sample has a slot.
    created : float
        Submission time, by `time.time`.
    times : GenerationTimes
    prediction : PredictionUse or None
        Use of the prediction; None without one.
    request, samples : Request, list of Sample
        The validated request; its samples, written by the engine's thread only.
    """

    def __init__(
        self, id: int, request: Request, settings: _core.Settings, prediction: PredictionUse | None,
        notify_engine: Callable[[], None],
    ) -> None:  # fmt: skip
        self.id, self.request, self.prediction = id, request, prediction
        self.created = time.time()
        self.times = GenerationTimes(time.perf_counter())
        self.samples = [Sample(request, i, settings, self) for i in range(len(request.prompts))]
        self.n_cached_tokens: int | None = None
        self._notify_engine = notify_engine
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._n_open = len(self.samples)
        self._turn = 0  # the next sample to yield a piece
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __repr__(self) -> str:
        return f"<specdec.Generation {self.id}: {self.n - self._n_open} of {self.n} samples ended>"

    @property
    def n(self) -> int:
        """Samples."""
        return len(self.samples)

    @property
    def prompt_ids(self) -> list[int]:
        """Prompt token ids as the models received them."""
        return self.samples[0].prompt.ids

    @property
    def done(self) -> bool:
        """Whether all samples have ended, or the request has failed."""
        return self._n_open == 0 or self._error is not None

    # ------------------------------------------------------------------------------------------ readers

    def cancel(self, index: int | None = None) -> None:
        """Stop all samples, or one, within a round: `finish_reason` becomes "cancelled"; idempotent."""
        chosen = self.samples
        if index is not None:
            chosen = [self.samples[check_integer("index", index, 0, self.n - 1)]]
        for sample in chosen:
            sample.cancelled = True
        self._notify_engine()

    def next(self, timeout: float | None = None) -> Piece | None:
        """Return the next piece, or None after the last.

        Raises TimeoutError after `timeout` seconds without a piece, or the error that ended this request: an
        exception of its transform, or a `NotFiniteError`.
        """
        with self._changed:
            self._wait(self._is_news, timeout)
            return self._take()

    def __iter__(self) -> Iterator[Piece]:
        while (piece := self.next()) is not None:
            yield piece

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while True:
            await self._wait_in_loop(self._is_news)
            with self._changed:
                piece = self._take()
            if piece is None:
                return
            yield piece

    def results(self, timeout: float | None = None) -> list[Result]:
        """Wait for all samples and return their results, also during or after iteration; raises as `next`."""
        with self._changed:
            self._wait(lambda: self.done, timeout)
        return self._results()

    def result(self, timeout: float | None = None) -> Result:
        """Return the result of the only sample, as `results`."""
        self._check_single()
        return self.results(timeout)[0]

    async def aresults(self) -> list[Result]:
        """Return `results`, for event loops."""
        await self._wait_in_loop(lambda: self.done)
        return self._results()

    async def aresult(self) -> Result:
        """Return `result`, for event loops."""
        self._check_single()
        return (await self.aresults())[0]

    def _check_single(self) -> None:
        if self.n != 1:
            raise InputError(f"there are {self.n} samples; use results for several")

    def _results(self) -> list[Result]:
        if self._error is not None:
            raise self._error
        return [sample.final for sample in self.samples if sample.final is not None]

    def _wait(self, is_there: Callable[[], bool], timeout: float | None) -> None:
        if not self._changed.wait_for(is_there, timeout := check_timeout(timeout)):
            raise TimeoutError(f"no output within {timeout} s")

    async def _wait_in_loop(self, is_there: Callable[[], bool]) -> None:
        waiter = _, event = asyncio.get_running_loop(), asyncio.Event()
        self._waiters.append(waiter)
        try:
            while True:
                event.clear()
                with self._changed:
                    if is_there():
                        return
                await event.wait()
        finally:
            self._waiters.remove(waiter)

    def prompt_score(self, index: int) -> Score | None:
        """Return the log-probabilities of a sample's prompt once it has a slot; None unless requested."""
        return self.samples[index].score

    def _is_news(self) -> bool:
        return self.done or any(sample.has_news for sample in self.samples)

    def _take(self) -> Piece | None:
        """Return the next sample's piece; the caller holds the lock."""
        for i in range(self.n):
            sample = self.samples[(self._turn + i) % self.n]
            if sample.has_news:
                self._turn = sample.index + 1
                return sample.take_piece()
        if self._error is not None:
            raise self._error
        return None

    # ----------------------------------------------------------------------------- the engine's thread

    def publish(self, sample: Sample) -> None:
        """Make a sample's new output available to readers."""
        text = sample.take_text()
        with self._changed:
            sample.gather(text)
            if self.times.first_token is None and sample.tokens:
                self.times.first_token = time.perf_counter()
            self._notify()

    def end(self, sample: Sample) -> None:
        """Make the result of a sample that has ended."""
        result = sample.result()
        with self._changed:
            sample.final, sample.ended = result, True
            self._n_open -= 1
            if self._n_open == 0:
                self.times.ended = time.perf_counter()
            self._notify()

    def fail(self, error: BaseException, sample: Sample | None = None) -> bool:
        """Fail the request for an error in one or all samples; return False if it had failed before."""
        if sample is not None:
            sample.fail(error)
            sample.ended = True
            if isinstance(error, NotFiniteError):
                error.result = sample.result()
        with self._changed:
            first = self._error is None
            if first:
                self._error = error
            self.times.ended = time.perf_counter()
            for one in self.samples:
                one.cancelled = True
            self._notify()
        return first

    def _notify(self) -> None:
        self._changed.notify_all()
        for loop, event in tuple(self._waiters):  # other threads add and remove readers
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)
