"""Connections to the server and their bounds: number, idle time, and bytes before an answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specdec.serve.bodies import RequestError, json_bytes
from specdec.serve.metrics import ServerMetrics
from specdec.serve.service import ServerLimits

_MAX_HEAD_BYTES: Final = 64 << 10
"""Bytes of request lines, headers, trailers, chunk extensions, and requests that wait for an earlier one."""
_MAX_HEADERS: Final = 256
"""Headers of a request: each takes far more memory than it has bytes."""
_MAX_WAITING: Final = 16
"""Requests that wait while an earlier one of their connection is answered (pipelining)."""


class Connection(HttpToolsProtocol):
    """A connection as uvicorn keeps it, within bounds.

    Everything that a client sends after the connection was last idle counts, except the body of the request
    that is being answered, whose size its reader bounds. A request that is too large is refused. If too much
    comes after it instead, nothing more is read: the complete requests are answered, and the connection is
    closed.

    A connection is idle while no request of it is being answered; a request counts from the end of its
    headers on. It is closed when it has been idle for too long. Where there are too many connections the one
    that has been idle longest is closed for a new one, and where none is idle the new one is refused.
    """

    def __init__(self, limits: ServerLimits, metrics: ServerMetrics, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits, self._metrics = limits, metrics
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._n_head = 0  # bytes that count against the limit
        self.cycle: Any = None  # the last request that has come
        self._running: Any = None  # the request whose answer is next
        self._in_head = self._is_chunked = False
        self._refusal: RequestError | None = None  # why a callback stopped the parser
        self._is_full = False  # further bytes are dropped

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        others = [one for one in self.connections if isinstance(one, Connection)]
        super().connection_made(transport)
        if len(others) >= self._limits.n_connections:
            idle = min((one for one in others if one._is_idle), key=lambda one: one._idle_since, default=None)
            if idle is None:
                self._refuse(RequestError("there are too many connections", status=503, code="server_busy"))
                return
            idle._close()
        self._begin_idling()

    def data_received(self, data: bytes) -> None:
        if self._is_full or self.transport.is_closing():
            return
        self._n_head += len(data)
        super().data_received(data)
        self._n_head = max(self._n_head, 0)
        if self._n_head > _MAX_HEAD_BYTES and not (self._is_full or self.transport.is_closing()):
            self._stop(RequestError(f"the headers have more than {_MAX_HEAD_BYTES} bytes", status=431))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return
        if len(self.headers) >= _MAX_HEADERS:
            self._stop_parser(f"there are more than {_MAX_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MAX_WAITING:
            self._stop_parser(f"more than {_MAX_WAITING} requests wait")
        super().on_headers_complete()
        self._in_head = False
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        if self.pipeline:
            self.flow.resume_reading()  # to notice when the client leaves
        else:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        if self.cycle is self._running:
            framing = (len(body).bit_length() + 3) // 4 + 4 if self._is_chunked else 0  # "1f", two line ends
            self._n_head -= len(body) + framing
        super().on_body(body)

    def on_response_complete(self) -> None:
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is not None:
            self._running = following
        if self._is_idle and not self.transport.is_closing():
            self._begin_idling()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or what a callback refused."""
        self._stop(self._refusal or RequestError("the request is no HTTP", status=400))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn notifies the last request only
            self._running.message_event.set()
        super().connection_lost(exc)

    def _stop_parser(self, message: str) -> None:
        self._refusal = RequestError(message, status=431)
        raise self._refusal

    def _stop(self, refusal: RequestError) -> None:
        """Read nothing more: refuse the incoming request, or close after the answers to those before it."""
        is_coming = not self._in_head and self.cycle is not None and self.cycle.more_body
        if self._is_idle or (is_coming and self.cycle is self._running):
            if self._is_idle or not self.cycle.response_started:
                self._refuse(refusal)
            else:
                self._close()
            return
        if is_coming:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
        self.cycle.keep_alive = False
        self._is_full = True

    def _begin_idling(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._idle_since, self._n_head = time.monotonic(), 0
        self._timer = self.loop.call_later(self._limits.idle_s, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_idle:
            self._close()

    def _close(self) -> None:
        self.connections.discard(self)  # at once, so that the next one does not find it
        self.transport.close()

    def _refuse(self, refusal: RequestError) -> None:
        """Answer without a look at the request, and close the connection."""
        self._metrics.count_answer("other", refusal.status)
        body = json_bytes(refusal.body())
        head = (
            f"HTTP/1.1 {refusal.status} Refused\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._close()
