"""HTTP server on a socket: bounded connections, startup and graceful shutdown."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specdec.checks import check_integer, check_items, check_number
from specdec.errors import InputError, shown
from specdec.serve.application import application
from specdec.serve.bodies import RequestError, json_bytes
from specdec.serve.metrics import ServerMetrics
from specdec.serve.service import ServerLimits, Service

_MAX_HEAD_BYTES: Final = 64 << 10
"""Bytes of request lines, headers, trailers, chunk extensions and pipelined requests."""
_MAX_HEADERS: Final = 256
"""Headers of a request; each takes far more memory than its bytes."""
_MAX_WAITING: Final = 16
"""Pipelined requests of a connection."""


class Connection(HttpToolsProtocol):
    """uvicorn connection with bounds on bytes, idle time and their number.

    All bytes since the connection was last idle count, except the body of the current request. An oversized
    request is refused. If too much follows it, complete requests are answered and the connection is closed.
    Beyond the limit a new connection replaces the longest idle one; it is refused if none is idle.
    """

    def __init__(self, limits: ServerLimits, metrics: ServerMetrics, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits, self._metrics = limits, metrics
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._n_head = 0  # bytes that count against the limit
        self.cycle: Any = None  # the last received request
        self._running: Any = None  # the request being answered
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
            self._stop_parser(f"the request has more than {_MAX_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MAX_WAITING:
            self._stop_parser(f"more than {_MAX_WAITING} pipelined requests are waiting")
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
        self._stop(self._refusal or RequestError("the request is not valid HTTP", status=400))

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
        """Stop reading: refuse the incoming request, or close after answering those before it."""
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
        self.connections.discard(self)  # immediately, before the next connection looks
        self.transport.close()

    def _refuse(self, refusal: RequestError) -> None:
        """Send an error without processing the request, and close the connection."""
        self._metrics.count_answer("other", refusal.status)
        body = json_bytes(refusal.body())
        head = (
            f"HTTP/1.1 {refusal.status} Refused\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._close()


_LOCAL: Final = ("127.0.0.1", "localhost", "::1", "[::1]")
"""Names of the local host."""
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\-\[\]:]+")
_LOOK_S: Final = 0.02
_START_S: Final = 30.0


def _origin(given: object) -> str:
    """Check the origin of a web page: scheme, host and port, as browsers send it."""
    if not isinstance(given, str) or not (given == "*" or _ORIGIN.fullmatch(given)):
        raise InputError.of("cors_origins", given, "'*', or an origin such as 'https://example.com:8443'")
    return given


class Server(uvicorn.Server):
    """HTTP server for a `Service`.

    `run` serves in the calling thread until `stop`, or in the main thread SIGINT or SIGTERM. As a context
    manager the server runs in its own thread.

    On the first stop, running requests finish and new ones get status 503. A second stop, or `drain_s`,
    cancels them.

    Parameters
    ----------
    service : Service
        The caller closes its engine.
    host : str, default "127.0.0.1"
    port : int, default 8000
        0 picks a free port.
    api_key : str, optional
        Key that clients must send.
    cors_origins : sequence of str, default ()
        Origins of other web pages that may use the server, such as "https://example.com"; "*": any page.
    drain_s : float, optional
        Seconds for running requests to finish after the first stop; None: no limit.
    log : callable, optional
        Called with one line per response: path, status, seconds, no text.

    Examples
    --------
    >>> with Engine(target, draft) as engine, Server(Service(engine, ["mine"]), port=0) as server:
    ...     print(server.url)
    """

    def __init__(
        self, service: Service, *, host: str = "127.0.0.1", port: int = 8000, api_key: str | None = None,
        cors_origins: Sequence[str] = (), drain_s: float | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        if api_key is not None and not (isinstance(api_key, str) and api_key.strip()):
            raise InputError.of("api_key", api_key, "a text, or None")
        if drain_s is not None:
            drain_s = check_number("drain_s", drain_s, "a number, at least 0", lambda x: 0.0 <= x < 1e9)
        origins = [_origin(one) for one in check_items("cors_origins", cors_origins, "a list of origins")]
        self._service, self._drain_s = service, drain_s
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._n_asked = 0  # calls to stop
        self._draining: asyncio.Future[None] | None = None
        self._when_started: Callable[[str], None] | None = None
        self._failure: BaseException | None = None
        metrics = ServerMetrics(service, log)
        key = None if api_key is None else api_key.strip()
        connection: Any = partial(Connection, service.limits, metrics)
        config = uvicorn.Config(
            application(
                service, metrics, api_key=key, hosts=_LOCAL if host in _LOCAL else None, cors_origins=origins
            ),
            host=host, port=check_integer("port", port, 0, 65535), log_config=None, log_level="critical",
            access_log=False, lifespan="off", server_header=False, proxy_headers=False, ws="none",
            http=connection, timeout_graceful_shutdown=5,
            timeout_keep_alive=math.ceil(service.limits.idle_s) + 1,  # `Connection` closes first
        )  # fmt: skip
        super().__init__(config)

    @property
    def url(self) -> str:
        """Base URL, such as "http://127.0.0.1:8000"; RuntimeError before the start."""
        if not self.started:
            raise RuntimeError("the server has not started")
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, started: Callable[[str], None] | None = None) -> None:
        """Serve until stopped; call `started` with the URL once listening.

        Raises OSError if the port is in use or not permitted.
        """
        self._when_started = started
        super().run()
        if self._failure is not None:
            raise self._failure

    def stop(self, *, now: bool = False) -> None:
        """Stop the server from any thread, after running requests or `now`; return immediately."""
        self._n_asked += 2 if now else 1
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._begin_to_drain)

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self._run, name="specdec-serve", daemon=True)
        self._thread.start()
        until = time.monotonic() + _START_S
        while not self.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(_LOOK_S / 10)
        if not self.started:
            self.stop(now=True)
            raise self._failure or RuntimeError("the server has not started")
        return self

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._failure = error

    def __exit__(self, *exc_info: object) -> None:
        self.stop(now=exc_info[0] is not None)
        if self._thread is not None:
            self._thread.join()

    # ── Hooks of uvicorn

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._n_asked:
            self._begin_to_drain()
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # uvicorn's reaction to a port in use
            host, port = self.config.host, self.config.port
            self._failure = OSError(f"cannot listen on {shown(host)}: port {port} is in use or not permitted")
            self.should_exit = True
            return
        if self._when_started is not None and not self.should_exit:
            self._when_started(self.url)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle a signal in the main thread: drain on the first, stop immediately on the second."""
        if self._n_asked == 0:
            print("specdec serve: finishing running requests; repeat to stop now", file=sys.stderr)
        self.stop(now=self._n_asked > 0)

    def _begin_to_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Wait until no request is active or time is up, then stop."""
        service = self._service
        service.stopping = True
        until = None if self._drain_s is None else time.monotonic() + self._drain_s
        while service.n_active and self._n_asked < 2 and (until is None or time.monotonic() < until):
            await asyncio.sleep(_LOOK_S)
        if service.n_active:
            await asyncio.to_thread(service.engine.close, drain=False)
        self.should_exit = True
