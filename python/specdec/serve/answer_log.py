"""Each answer of the server is counted, and said in a line if that is wanted."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec.serve.server_metrics import ServerMetrics

__all__ = ["AnswerLog", "CountedAnswers", "print_fault", "tell_more"]

_MORE: Final = "specdec.more"
_POLLED: Final = ("/health", "/metrics")
"""Paths that are asked again and again: what they answer with status 200 is no line."""
_GONE: Final = 499


class AnswerLog:
    """Counts answers, of whatever part of the server.

    Parameters
    ----------
    metrics : ServerMetrics
    log : callable, optional
        Is given a line for each answer: path, status, seconds; nothing of a text.
    """

    def __init__(self, metrics: ServerMetrics, log: Callable[[str], None] | None = None) -> None:
        self.metrics, self._log = metrics, log

    def count(self, path: str, status: int, seconds: float | None = None, more: str = "") -> None:
        """An answer has been given.

        Parameters
        ----------
        path : str
            One of the server's, or "other".
        status : int
            499: the client had gone before there was one.
        seconds : float, optional
            From the request to the end of the answer.
        more : str
            What else the line says.
        """
        self.metrics.count_answer(path, status)
        if self._log is not None and (path not in _POLLED or status != 200):
            self._log(f"{path} {status}{'' if seconds is None else f' {seconds:.3f} s'}{more}")


def print_fault(where: str, error: BaseException) -> None:
    """Print a fault of the server: the places in the program, nothing of a request."""
    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    print(f"specdec serve: {type(error).__name__} in {where}\n{frames}", file=sys.stderr)


def tell_more(scope: Scope, more: str) -> None:
    """Have the line of an answer say more."""
    scope[_MORE] = more


class CountedAnswers:
    """Stands before an application and tells an `AnswerLog` of its answers.

    Parameters
    ----------
    app : ASGI application
    answers : AnswerLog
    paths : iterable of str
        Those that are counted by name, also where a request does not get so far; others are "other".
    """

    def __init__(self, app: ASGIApp, answers: AnswerLog, paths: Iterable[str]) -> None:
        self._app, self._answers, self._paths = app, answers, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), _GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = 500  # what is sent then is made before this one
            raise
        finally:
            seconds = time.perf_counter() - begun
            self._answers.count(self._path_of(scope), status, seconds, scope.get(_MORE, ""))

    def _path_of(self, scope: Scope) -> str:
        path: str = getattr(scope.get("route"), "path", scope["path"])
        return path if path in self._paths else "other"
