"""A server on a socket: it starts, reports where it listens, and stops when its texts have ended."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import uvicorn

from specdec.checks import check_integer, check_number
from specdec.errors import InputError, shown
from specdec.serve.application import application
from specdec.serve.connection import Connection
from specdec.serve.metrics import ServerMetrics
from specdec.serve.service import Service

_LOCAL: Final = ("127.0.0.1", "localhost", "::1", "[::1]")
"""Names by which a host calls itself."""
_LOOK_S: Final = 0.02
_START_S: Final = 30.0


class Server(uvicorn.Server):
    """A service over HTTP.

    `run` serves in the calling thread until `stop` is called; in the main thread SIGINT and SIGTERM do
    that. As a context manager it serves in a thread of its own.

    Stopping is gentle at first: texts that are being written come to their end, new requests get status 503.
    A second signal, or the end of `drain_s`, cancels them.

    Parameters
    ----------
    service : Service
        Its engine is the caller's to close.
    host : str, default "127.0.0.1"
    port : int, default 8000
        0: any that is free.
    api_key : str, optional
        What clients must send.
    drain_s : float, optional
        Seconds that texts may take to end after the first signal; None: as many as they need.
    log : callable, optional
        Is given a line for each answer: path, status, seconds; nothing of a text.

    Examples
    --------
    >>> with Engine(target, draft) as engine, Server(Service(engine, ["mine"]), port=0) as server:
    ...     print(server.url)
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        api_key: str | None = None,
        drain_s: float | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        if api_key is not None and not (isinstance(api_key, str) and api_key.strip()):
            raise InputError.of("api_key", api_key, "a text, or None")
        if drain_s is not None:
            drain_s = check_number("drain_s", drain_s, "a number, at least 0", lambda x: 0.0 <= x < 1e9)
        self._service, self._drain_s = service, drain_s
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._n_asked = 0  # times that it was told to stop
        self._draining: asyncio.Future[None] | None = None
        self._when_started: Callable[[str], None] | None = None
        self._failure: BaseException | None = None
        metrics = ServerMetrics(service, log)
        key = None if api_key is None else api_key.strip()
        connection: Any = partial(Connection, service.limits, metrics)
        config = uvicorn.Config(
            application(service, metrics, api_key=key, hosts=_LOCAL if host in _LOCAL else None),
            host=host, port=check_integer("port", port, 0, 65535), log_config=None, log_level="critical",
            access_log=False, lifespan="off", server_header=False, proxy_headers=False, ws="none",
            http=connection, timeout_graceful_shutdown=5,
            timeout_keep_alive=math.ceil(service.limits.idle_s) + 1,  # connections see to that themselves
        )  # fmt: skip
        super().__init__(config)

    @property
    def url(self) -> str:
        """Where it listens, as "http://127.0.0.1:8000"; RuntimeError if it does not."""
        if not self.started:
            raise RuntimeError("the server has not started")
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, started: Callable[[str], None] | None = None) -> None:
        """Serve until the server is stopped; `started` gets the URL when requests are taken.

        Raises OSError if the port is taken, or not to be had.
        """
        self._when_started = started
        super().run()
        if self._failure is not None:
            raise self._failure

    def stop(self, *, now: bool = False) -> None:
        """Stop the server, from any thread: when its texts have ended, or `now`. Returns at once."""
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

    # ── What uvicorn calls

    async def startup(self, sockets: Any = None) -> None:
        """Start to listen."""
        self._loop = asyncio.get_running_loop()
        if self._n_asked:
            self._begin_to_drain()
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # what uvicorn makes of a port that is taken, after a line in its log
            host, port = self.config.host, self.config.port
            self._failure = OSError(f"cannot listen on {shown(host)}: port {port} is in use or not permitted")
            self.should_exit = True
            return
        if self._when_started is not None and not self.should_exit:
            self._when_started(self.url)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle a signal, in the main thread: the first one is gentle, a second one is not."""
        if self._n_asked == 0:
            print("specdec serve: stopping when the texts have ended; again: now", file=sys.stderr)
        self.stop(now=self._n_asked > 0)

    def _begin_to_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Wait until no request is being answered, or there is no more time; then stop."""
        service = self._service
        service.stopping = True
        until = None if self._drain_s is None else time.monotonic() + self._drain_s
        while service.n_active and self._n_asked < 2 and (until is None or time.monotonic() < until):
            await asyncio.sleep(_LOOK_S)
        if service.n_active:
            await asyncio.to_thread(service.engine.close, drain=False)
        self.should_exit = True
