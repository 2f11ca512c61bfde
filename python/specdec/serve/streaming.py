"""Answers to requests for texts, whole or as a stream, to clients that may leave or read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import SpecdecError
from specdec.serve.bodies import RequestError, json_bytes
from specdec.serve.metrics import print_fault
from specdec.serve.text_request import TextRequest

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies shall not collect events
]


def error_response(refusal: RequestError) -> Response:
    """Return the answer to a request that is not carried out."""
    return Response(json_bytes(refusal.body()), refusal.status, refusal.headers, "application/json")


class _ClientGoneError(Exception):
    """The client has left, or has not read for too long."""


class TextAnswer(Response):
    """The answer to a request whose texts are being written.

    The connection is watched: when the client leaves, its texts are cancelled. So they are when what was sent
    to it is not read in time; until then they continue, and what is new waits in the engine, in one piece for
    each text.
    """

    def __init__(self, request: TextRequest, generations: Sequence[Generation]) -> None:
        self._request, self.generations = request, list(generations)
        self._limits, self._begun = request.service.limits, False
        self._ended: Callable[[bool], None] = lambda gone: None
        self.background = None
        self.status_code = 200

    def at_end(self, ended: Callable[[bool], None]) -> None:
        """Have ``ended(gone)`` called at the end, where `gone` says that the client had left."""
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the answer."""
        self._scope, gone = scope, False
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            if self._request.fields.stream:
                await self._stream(send, watch)
            else:
                await self._whole(send, watch)
        except _ClientGoneError:
            gone = True
        finally:
            watch.cancel()
            self.cancel()
            self._ended(gone)

    def cancel(self) -> None:
        """End the texts."""
        for generation in self.generations:
            if not generation.done:
                generation.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()

    async def _send(self, send: Send, message: Message) -> None:
        """Send a part of the answer; a client that does not take it in time counts as gone."""
        try:
            with anyio.fail_after(self._limits.write_s):
                await send(message)
        except OSError:  # a TimeoutError among others
            raise _ClientGoneError from None

    def _refusal(self, error: Exception) -> RequestError:
        """What a client is told of what has ended its texts; drafts may raise what they like."""
        if isinstance(error, _ClientGoneError):
            raise error
        if isinstance(error, SpecdecError):
            return self._request.service.refusal(error, self._request.names)
        print_fault(f"the texts of {self._request.id}", error)
        return RequestError("the text was ended by a fault of the server", status=500, code="internal_error")

    async def _results(self) -> list[list[Result]]:
        return [await generation.aresults() for generation in self.generations]

    async def _whole(self, send: Send, watch: asyncio.Future[None]) -> None:
        try:
            results = await self._results()
            if watch.done():
                raise _ClientGoneError
            # Long answers with many log-probabilities take a while, in which others get theirs.
            answer = await asyncio.to_thread(lambda: json_bytes(self._request.whole(results)))
        except Exception as error:
            response = error_response(self._refusal(error))
        else:
            response = Response(answer, media_type="application/json")
        await self._respond(response, send)

    async def _respond(self, response: Response, send: Send) -> None:
        await response(self._scope, _nothing, lambda message: self._send(send, message))

    async def _stream(self, send: Send, watch: asyncio.Future[None]) -> None:
        try:
            await self._events(send, watch)
        except Exception as error:
            refusal = self._refusal(error)
            if not self._begun:
                await self._respond(error_response(refusal), send)
                return
            await self._write(send, self._request.fail(refusal.body()))
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, events: list[bytes]) -> None:
        """Send events; the first time, the head of the answer before them."""
        if not self._begun:
            self._begun = True
            head: Message = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
            await self._send(send, head)
        if events:
            await self._send(
                send, {"type": "http.response.body", "body": b"".join(events), "more_body": True}
            )

    async def _pause(self) -> None:
        """Let pieces become one event: a small model writes faster than sockets are written to.

        The end of a text does not wait.
        """
        for _ in range(2):
            if all(generation.done for generation in self.generations):
                return
            await asyncio.sleep(self._limits.event_s / 2)

    async def _events(self, send: Send, watch: asyncio.Future[None]) -> None:
        request, first = self._request, True
        async for prompt, piece in _merged(self.generations):
            if watch.done():
                raise _ClientGoneError
            # A request that is refused by the engine at its first round gets a status of its own.
            events = [*(request.begin() if first else []), *request.piece(prompt, piece)]
            first = False
            if events:
                await self._write(send, events)
                await self._pause()
        if watch.done():
            raise _ClientGoneError
        events = [*(request.begin() if first else []), *request.end(await self._results())]
        await self._write(send, events)


async def _nothing() -> Message:
    raise NotImplementedError


async def _merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Piece]]:
    """The pieces of several generations as they come, each with the number of its generation."""
    if len(generations) == 1:
        async for piece in generations[0]:
            yield 0, piece
        return
    iterators = [aiter(generation) for generation in generations]
    waiting = {asyncio.ensure_future(_next(one)): i for i, one in enumerate(iterators)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                i = waiting.pop(task)
                found = task.result()
                if found is not None:
                    yield i, found
                    waiting[asyncio.ensure_future(_next(iterators[i]))] = i
    finally:
        for task in waiting:
            task.cancel()


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        return None
