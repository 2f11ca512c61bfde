"""The answer to a request for texts, whole or as a stream, to a client that may leave or read slowly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import SpecdecError
from specdec.serve.answer_log import print_fault
from specdec.serve.event_stream import EventWriter
from specdec.serve.json_body import json_bytes
from specdec.serve.request_error import RequestError
from specdec.serve.text_request import TextRequest

__all__ = ["TextAnswer"]


class _ClientGoneError(Exception):
    """The client has left, or has not read for too long."""


class TextAnswer(Response):
    """The answer to a request whose texts are being written.

    While it is being given the connection is watched: when the client leaves, its texts are cancelled. So
    they are when what was sent to it is not read in time; till then they go on, and what is new waits with
    the engine, in one piece for each text.

    Parameters
    ----------
    request : TextRequest
    generations : sequence of Generation
    """

    def __init__(self, request: TextRequest, generations: Sequence[Generation]) -> None:
        self._request, self.generations = request, list(generations)
        self._limits = request.service.limits
        self._ended: Callable[[bool], None] = lambda gone: None
        self.background = None
        self.status_code = 200

    def at_end(self, ended: Callable[[bool], None]) -> None:
        """Have ``ended(gone)`` called at the end, where `gone` says that the client had left."""
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the answer."""
        gone = False
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
        """Send a part of the answer; a client that does not take it in time counts as gone.

        `asyncio.wait_for` would make a task of each part.
        """
        task, late = asyncio.current_task(), False
        assert task is not None

        def give_up() -> None:
            nonlocal late
            late = True
            task.cancel()

        timer = asyncio.get_running_loop().call_later(self._limits.write_s, give_up)
        try:
            await send(message)
        except OSError:
            raise _ClientGoneError from None
        except asyncio.CancelledError:
            if not late:
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise _ClientGoneError from None
        finally:
            timer.cancel()

    async def _body(
        self, send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        sent = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
        await self._send(send, {"type": "http.response.start", "status": status, "headers": sent})
        await self._send(send, {"type": "http.response.body", "body": body})

    async def _refuse(self, send: Send, refusal: RequestError) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        await self._body(send, refusal.status, json_bytes(refusal.body()), headers)

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
            answer = await asyncio.to_thread(
                lambda: json_bytes(self._request.whole(self.generations, results))
            )
        except Exception as error:
            await self._refuse(send, self._refusal(error))
            return
        await self._body(send, 200, answer, [])

    async def _stream(self, send: Send, watch: asyncio.Future[None]) -> None:
        writer = self._request.writer(self.generations)
        begun = False

        async def write(events: list[bytes]) -> None:
            nonlocal begun
            if not begun:
                begun = True
                headers = [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),  # proxies shall not collect events
                ]
                await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
            if events:
                body = b"".join(events)
                await self._send(send, {"type": "http.response.body", "body": body, "more_body": True})

        try:
            await self._events(writer, write, watch)
        except Exception as error:
            refusal = self._refusal(error)
            if not begun:
                await self._refuse(send, refusal)
                return
            await write(writer.fail(refusal.body()))
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _pause(self) -> None:
        """Let pieces become one event: a small model writes faster than sockets are written to.

        The end of a text does not wait.
        """
        for _ in range(2):
            if all(generation.done for generation in self.generations):
                return
            await asyncio.sleep(self._limits.event_s / 2)

    async def _events(
        self,
        writer: EventWriter,
        write: Callable[[list[bytes]], Awaitable[None]],
        watch: asyncio.Future[None],
    ) -> None:
        first = True
        async for prompt, piece in _merged(self.generations):
            if watch.done():
                raise _ClientGoneError
            # A request that is refused by the engine at its first round gets a status of its own.
            events = writer.begin() if first else []
            first = False
            found = [*events, *writer.piece(prompt, piece)]
            if found:
                await write(found)
                await self._pause()
        if watch.done():
            raise _ClientGoneError
        await write([*(writer.begin() if first else []), *writer.end(await self._results())])


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
