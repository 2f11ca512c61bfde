"""Connections to the server, within bounds: how many there are, how long one is idle, how long a head is."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specdec.serve.answer_log import AnswerLog
from specdec.serve.json_body import json_bytes
from specdec.serve.request_error import RequestError
from specdec.serve.server_limits import ServerLimits

__all__ = ["Connection"]

_MOST_OF_HEAD: Final = 64 << 10
"""Bytes of a request line with its headers."""


class Connection(HttpToolsProtocol):
    """A connection as uvicorn keeps it, which is closed when it has been idle for too long.

    It is idle while no request of it is being answered; a request counts from the end of its headers on.
    Where there are too many connections the one that has been idle longest is closed for a new one, and where
    none is idle the new one is refused.

    Parameters
    ----------
    limits : ServerLimits
    answers : AnswerLog
        Is told of requests that no endpoint sees.
    **of_uvicorn
        What uvicorn makes connections with.
    """

    def __init__(self, limits: ServerLimits, answers: AnswerLog, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits, self._answers = limits, answers
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._n_head = 0  # bytes since it is idle

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has connected."""
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
        """A part of a request."""
        if self.transport.is_closing():
            return
        self._n_head += len(data)
        super().data_received(data)
        if self._is_idle and self._n_head > _MOST_OF_HEAD and not self.transport.is_closing():
            self._refuse(RequestError(f"the headers have more than {_MOST_OF_HEAD} bytes", status=431))

    def on_response_complete(self) -> None:
        """An answer has been given."""
        super().on_response_complete()
        if self._is_idle and not self.transport.is_closing():
            self._begin_idling()

    def send_400_response(self, msg: str) -> None:
        """What has come is no HTTP."""
        self._refuse(RequestError("the request is no HTTP", status=400))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

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
        self._answers.count("other", refusal.status)
        body = json_bytes(refusal.body())
        head = (
            f"HTTP/1.1 {refusal.status} Refused\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._close()
