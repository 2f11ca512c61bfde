"""One request of an engine: what comes of its texts, for readers in other threads and in event loops."""

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
from specdec.models.score import TopLogProbs, top_pairs
from specdec.trace import Round
from specdec.verification.rules import DecodingRule


@dataclass(frozen=True)
class Speculative:
    """How one request is drafted for; the distribution of its text never depends on it.

    `draft`: False is plain decoding, without a prediction too; a name chooses one of the engine's drafts.
    `gamma`: draft tokens a round at most. `verify`: the rule, in place of the request's.
    """

    draft: bool | str = True
    gamma: int | None = None
    verify: DecodingRule | None = None


@dataclass(frozen=True)
class Piece:
    """What is new of one sample since its last piece."""

    index: int
    """The sample."""
    text: str
    """Never taken back; what may be a part of a character, or begin a stop string, is held back."""
    tokens: list[int]
    """Those of a stop string or stop id are among them, their text is not in `text`."""
    logprobs: list[float] | None
    """ln p of the tokens, if asked for."""
    top_logprobs: TopLogProbs | None
    """The most probable tokens in the place of each, the best first, if asked for."""
    finish_reason: FinishReason | None
    """As in `Result`, with `stop`, in the last piece of a sample, which may have no tokens."""
    stop: str | int | None


@dataclass
class GenerationTimes:
    """Moments of a request by `time.perf_counter`; None for what has not come."""

    submitted: float
    started: float | None = None  # the first of its samples got a slot
    first_token: float | None = None
    ended: float | None = None


@dataclass
class PredictionUse:
    """What became of a prediction: its tokens, and guesses copied from it, in all samples."""

    n_tokens: int
    n_accepted: int = 0
    n_rejected: int = 0

    def count(self, round_: Round, origins: tuple[int, ...]) -> tuple[int, int]:
        """Add the guesses of a round, with an origin of 0 those from the prediction: (accepted, rejected)."""
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
    """A sequence of a request of an engine. The engine's thread alone writes it, but for `cancelled`."""

    def __init__(
        self, request: Request, index: int, settings: _core.Settings, generation: Generation
    ) -> None:
        super().__init__(request, index, settings)
        self.generation = generation
        self.cancelled = False  # nobody wants it any more
        self.ended = False  # and its readers know how
        self.copied = (0, 0)  # draft tokens from a prediction in its last round: accepted, rejected
        self.last_turn = 0  # number of its last turn in `ConstraintTurns`
        self.final: Result | None = None
        self._texts: list[str] = []  # of the next piece
        self._ready = self._given = (0, 0)  # tokens, rounds of `logprobs`: for pieces, and in them
        self._gave_last = False

    def take(self, done: _core.SlotRound) -> Round:
        """See `Sequence.take`; counts what became of draft tokens that were copied from a prediction."""
        prediction = self.generation.prediction
        self.copied = (0, 0)
        if done.origins is not None and done.error is None and prediction is not None:
            self.copied = prediction.count(done.round, done.origins)
        return super().take(done)

    @property
    def has_news(self) -> bool:
        """Whether there is something for a piece."""
        return self._ready != self._given or bool(self._texts) or (self.ended and not self._gave_last)

    def gather(self, text: str) -> None:
        """Put what is new into the next piece, with this text."""
        if text:
            self._texts.append(text)
        self._ready = len(self.tokens), len(self.logprobs)

    def take_piece(self) -> Piece:
        """What is new since the last piece."""
        n_top = self.request.options.logprobs
        (begin, first), (end, last) = self._given, self._ready
        logprobs, text = self.logprobs[first:last], "".join(self._texts)
        self._gave_last, self._given, self._texts = self.ended, self._ready, []
        return Piece(
            self.index, text, self.tokens[begin:end],
            None if n_top is None else [x for log_probs, _, _ in logprobs for x in log_probs.tolist()],
            [pairs for _, top, of_top in logprobs for pairs in top_pairs(top, of_top)] if n_top else None,
            self.finish_reason if self.ended else None, self.stop if self.ended else None,
        )  # fmt: skip


class Generation:
    """A request that an `Engine` carries out: `Engine.submit` makes it.

    Iterate over it for its `Piece`s, in a thread or with ``async for``, or wait for its results. Nothing is
    lost if nobody reads: pieces that wait are merged. A reader that leaves should call `cancel`.

    Attributes
    ----------
    id : int
        Number of the request in its engine, from 1 on.
    n_cached_tokens : int or None
        Tokens of the prompt that a prompt cache had; None as long as no sample has a slot.
    created : float
        When it was submitted, by `time.time`.
    times : GenerationTimes
    prediction : PredictionUse or None
        What became of the prediction; None where the request has none.
    request, samples : Request, list of Sample
        What was asked for, checked; the samples, which the engine's thread alone writes.
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
        self._turn = 0  # the sample whose piece comes next
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __repr__(self) -> str:
        return f"<specdec.Generation {self.id}: {self.n - self._n_open} of {self.n} samples have ended>"

    @property
    def n(self) -> int:
        """Samples."""
        return len(self.samples)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt as the models see it."""
        return self.samples[0].prompt.ids

    @property
    def done(self) -> bool:
        """Whether all samples have ended, or the request has failed."""
        return self._n_open == 0 or self._error is not None

    # ------------------------------------------------------------------------------------------ readers

    def cancel(self, index: int | None = None) -> None:
        """End the samples, or one of them, within a round: `finish_reason` "cancelled"; idempotent."""
        chosen = self.samples
        if index is not None:
            chosen = [self.samples[check_integer("index", index, 0, self.n - 1)]]
        for sample in chosen:
            sample.cancelled = True
        self._notify_engine()

    def next(self, timeout: float | None = None) -> Piece | None:
        """The next piece; None when all have been given.

        Raises TimeoutError after `timeout` seconds without one, or what has ended the request alone: an
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
        """Wait until all samples have ended; may be called while iterating, and after; raises as `next`."""
        with self._changed:
            self._wait(lambda: self.done, timeout)
        return self._results()

    def result(self, timeout: float | None = None) -> Result:
        """That of the only sample, as `results`."""
        self._check_single()
        return self.results(timeout)[0]

    async def aresults(self) -> list[Result]:
        """`results`, for event loops."""
        await self._wait_in_loop(lambda: self.done)
        return self._results()

    async def aresult(self) -> Result:
        """`result`, for event loops."""
        self._check_single()
        return (await self.aresults())[0]

    def _check_single(self) -> None:
        if self.n != 1:
            raise InputError(f"there are {self.n} samples; expected one, or a call of results")

    def _results(self) -> list[Result]:
        if self._error is not None:
            raise self._error
        return [sample.final for sample in self.samples if sample.final is not None]

    def _wait(self, is_there: Callable[[], bool], timeout: float | None) -> None:
        if not self._changed.wait_for(is_there, timeout := check_timeout(timeout)):
            raise TimeoutError(f"there was nothing within {timeout} s")

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

    def _is_news(self) -> bool:
        return self.done or any(sample.has_news for sample in self.samples)

    def _take(self) -> Piece | None:
        """What waits of the next sample that has something; with the lock."""
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
        """Give what is new of a sample to the readers."""
        text = sample.take_text()
        with self._changed:
            sample.gather(text)
            if self.times.first_token is None and sample.tokens:
                self.times.first_token = time.perf_counter()
            self._notify()

    def end(self, sample: Sample) -> None:
        """A sample has ended: make its result."""
        result = sample.result()
        with self._changed:
            sample.final, sample.ended = result, True
            self._n_open -= 1
            if self._n_open == 0:
                self.times.ended = time.perf_counter()
            self._notify()

    def fail(self, error: BaseException, sample: Sample | None = None) -> bool:
        """The request has failed, by one of its samples or as a whole; returns False if it had before."""
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
        for loop, event in tuple(self._waiters):  # readers come and go in threads of their own
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(event.set)
