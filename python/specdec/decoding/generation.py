"""One request of an engine: what comes of its texts, for readers in other threads and in event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from specdec import _core
from specdec.checks import check_integer, check_timeout
from specdec.decoding.beginning import Beginning
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.sequence_state import SequenceState
from specdec.decoding.stopping import FinishReason
from specdec.errors import InputError, NotFiniteError
from specdec.models.score import Score, TopLogProbs, top_pairs
from specdec.verification.rules import DecodingRule

__all__ = ["Generation", "GenerationTimes", "Piece", "PredictionUse", "Sample", "Speculative"]


@dataclass(frozen=True)
class Speculative:
    """How one request is drafted for; the law of its text never depends on it.

    Attributes
    ----------
    draft : bool or str
        False: plain decoding; a prediction is not used either. A name: this one of the engine's drafts.
    gamma : int or None
        Guesses a round at most; None: as many as the engine makes.
    verify : str or None
        The rule, in place of the request's `verify`.
    """

    draft: bool | str = True
    gamma: int | None = None
    verify: DecodingRule | None = None


@dataclass(frozen=True)
class Piece:
    """What is new of one sample since its last piece.

    Attributes
    ----------
    index : int
        The sample.
    text : str
        Empty where text is held back: a part of a character, or what may begin a stop string. It is never
        taken back.
    tokens : list of int
        Those of a stop string or stop id are among them, their text is not in `text`. Empty where a piece
        says no more than that the sample has ended.
    logprobs : list of float, or None
        ln p of the tokens, if asked for.
    top_logprobs : list of lists of (int, float), or None
        The most probable tokens in the place of each, the best first, if asked for.
    finish_reason : str or None
        Set in the last piece of a sample.
    stop : str, int or None
        The stop string or stop id that was met.
    """

    index: int
    text: str
    tokens: list[int]
    logprobs: list[float] | None
    top_logprobs: TopLogProbs | None
    finish_reason: FinishReason | None
    stop: str | int | None


@dataclass
class GenerationTimes:
    """Moments of a request by `time.perf_counter`; None for what has not come.

    Attributes
    ----------
    submitted : float
    started : float or None
        When the first of its samples was given a slot.
    first_token, ended : float or None
    """

    submitted: float
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None


@dataclass
class PredictionUse:
    """What became of a prediction.

    Attributes
    ----------
    n_tokens : int
        Of the prediction.
    n_accepted, n_rejected : int
        Guesses that were copied from it, in all samples.
    """

    n_tokens: int
    n_accepted: int = 0
    n_rejected: int = 0


@dataclass
class Sample:
    """One text of a request. The engine's thread alone writes it, but for `cancelled`."""

    generation: Generation
    index: int
    seed: tuple[int, int]
    state: SequenceState
    cancelled: bool = False
    ended: bool = False
    slot: int | None = None
    last_turn: int = 0  # number of its last turn in `FormTurns`
    result: Result | None = None
    n_told: int = 0  # tokens that are in `tokens` or in pieces before
    n_laws_told: int = 0  # entries of the state's laws that are
    texts: list[str] = field(default_factory=list)  # of the next piece
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: TopLogProbs = field(default_factory=list)
    said: bool = False  # its last piece has been given

    @property
    def beginning(self) -> Beginning:
        """What its text begins with."""
        return self.generation.request.beginnings[self.index]


class Generation:
    """A request that an `Engine` carries out: `Engine.submit` makes it.

    Iterate over it for its `Piece`s, in a thread or with ``async for``, or wait for its results. Nothing is
    lost if nobody reads: pieces that wait are merged. A reader that leaves should call `cancel`.

    Attributes
    ----------
    id : int
        Number of the request in its engine, from 1 on.
    n : int
        Samples.
    prompt_ids : list of int
        The prompt as the models see it.
    n_cached_tokens : int or None
        Tokens of the prompt that a prompt cache had; None as long as no sample has a slot.
    created : float
        When it was submitted, by `time.time`.
    times : GenerationTimes
    prediction : PredictionUse or None
        What became of the prediction; None where the request has none.
    done : bool
        Whether all samples have ended, or the request has failed.
    request : Request
        What was asked for, checked.
    settings : object
        The same, as the core takes it.
    samples : list of Sample
        The engine's thread writes them; readers take a `Piece` or a `Result`.
    of_prompt : Score or None
        What the target says of the prompt, if that was asked for, and has been computed.
    read : object or None
        The prompt as it was read for its score, with which the samples begin.
    """

    def __init__(
        self,
        id: int,
        request: Request,
        settings: _core.Settings,
        prediction: PredictionUse | None,
        wake: Callable[[], None],
    ) -> None:
        self.id = id
        self.request = request
        self.settings = settings
        self.prediction = prediction
        self.created = time.time()
        self.times = GenerationTimes(time.perf_counter())
        self.samples = [
            Sample(
                self,
                i,
                request.seeds[i],
                SequenceState(beginning.stream_decoder(request.target), request.stop, *request.limit(i)),
            )
            for i, beginning in enumerate(request.beginnings)
        ]
        self.of_prompt: Score | None = None
        self.read: _core.CachedText | None = None
        self.n_cached_tokens: int | None = None
        self._wake = wake
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
        return self.samples[0].beginning.ids

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
        self._wake()

    def next(self, timeout: float | None = None) -> Piece | None:
        """The next piece; None when all have been given.

        Raises
        ------
        TimeoutError
            After `timeout` seconds without one.
        Exception
            What has ended the request alone: of its transform, or a `NotFiniteError`.
        """
        timeout = check_timeout(timeout)
        with self._changed:
            if not self._changed.wait_for(self._is_news, timeout):
                raise TimeoutError(f"there was no piece for {timeout} s")
            return self._take()

    def __iter__(self) -> Iterator[Piece]:
        while (piece := self.next()) is not None:
            yield piece

    async def __aiter__(self) -> AsyncIterator[Piece]:
        waiter = self._begin_waiting()
        try:
            while True:
                await self._wait(waiter, self._is_news)
                with self._changed:
                    piece = self._take()
                if piece is None:
                    return
                yield piece
        finally:
            self._waiters.remove(waiter)

    def results(self, timeout: float | None = None) -> list[Result]:
        """Wait until all samples have ended; may be called beside iterating, and after it.

        Raises
        ------
        TimeoutError
        Exception
            What has ended the request alone.
        """
        timeout = check_timeout(timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the texts have not ended within {timeout} s")
        return self._results()

    def result(self, timeout: float | None = None) -> Result:
        """That of the only sample, as `results`."""
        self._check_single()
        return self.results(timeout)[0]

    async def aresults(self) -> list[Result]:
        """`results`, for event loops."""
        waiter = self._begin_waiting()
        try:
            await self._wait(waiter, lambda: self.done)
        finally:
            self._waiters.remove(waiter)
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
        return [sample.result for sample in self.samples if sample.result is not None]

    def _begin_waiting(self) -> tuple[asyncio.AbstractEventLoop, asyncio.Event]:
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._waiters.append(waiter)
        return waiter

    async def _wait(
        self, waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event], is_there: Callable[[], bool]
    ) -> None:
        while True:
            waiter[1].clear()
            with self._changed:
                if is_there():
                    return
            await waiter[1].wait()

    def _is_new(self, sample: Sample) -> bool:
        return bool(sample.tokens or sample.texts or (sample.ended and not sample.said))

    def _is_news(self) -> bool:
        return self.done or any(self._is_new(sample) for sample in self.samples)

    def _take(self) -> Piece | None:
        """What waits of the next sample that has something; with the lock."""
        for i in range(self.n):
            sample = self.samples[(self._turn + i) % self.n]
            if self._is_new(sample):
                self._turn = sample.index + 1
                return self._piece(sample)
        if self._error is not None:
            raise self._error
        return None

    def _piece(self, sample: Sample) -> Piece:
        n_top = self.request.options.logprobs
        ended = sample.ended
        piece = Piece(
            sample.index,
            "".join(sample.texts),
            sample.tokens,
            None if n_top is None else sample.logprobs,
            sample.top_logprobs if n_top else None,
            sample.state.finish_reason if ended else None,
            sample.state.stop if ended else None,
        )
        sample.texts, sample.tokens, sample.logprobs, sample.top_logprobs = [], [], [], []
        sample.said = ended
        return piece

    # ----------------------------------------------------------------------------- the engine's thread

    def publish(self, sample: Sample) -> None:
        """Give what is new of a sample to the readers."""
        state = sample.state
        text = state.take_text()
        with self._changed:
            if text:
                sample.texts.append(text)
            sample.tokens += state.tokens[sample.n_told :]
            sample.n_told = len(state.tokens)
            for log_probs, top, of_top in state.laws[sample.n_laws_told :]:
                sample.logprobs += log_probs.tolist()
                sample.top_logprobs += top_pairs(top, of_top)
            sample.n_laws_told = len(state.laws)
            if self.times.first_token is None and state.tokens:
                self.times.first_token = time.perf_counter()
            self._notify()

    def end(self, sample: Sample, n_sequences: int) -> None:
        """A sample has ended: make its result."""
        self.publish(sample)
        result = self._result_of(sample, n_sequences)
        with self._changed:
            sample.result, sample.ended = result, True
            self._n_open -= 1
            if self._n_open == 0:
                self.times.ended = time.perf_counter()
            self._notify()

    def fail(self, error: BaseException, sample: Sample | None, n_sequences: int) -> bool:
        """The request has failed; the samples that are open are cancelled. False: it had failed before."""
        if isinstance(error, NotFiniteError) and sample is not None:
            error.result = self._result_of(sample, n_sequences)
        with self._changed:
            first = self._error is None
            if first:
                self._error = error
            self.times.ended = time.perf_counter()
            for one in self.samples:
                one.cancelled = True
            self._notify()
        return first

    def _result_of(self, sample: Sample, n_sequences: int) -> Result:
        return sample.state.result(
            self.request.target,
            sample.beginning,
            sample.seed,
            n_sequences=n_sequences,
            n_top=self.request.options.logprobs,
            of_prompt=self.of_prompt,
        )

    def _notify(self) -> None:
        self._changed.notify_all()
        for loop, event in tuple(self._waiters):  # readers come and go in threads of their own
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                pass
