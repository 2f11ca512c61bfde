"""The paths of the server, and what stands before all of them: the key, the host, errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specdec.errors import EngineClosedError, SpecdecError, printable
from specdec.serve.chat_request import ChatRequest
from specdec.serve.completion_request import CompletionRequest
from specdec.serve.json_body import json_bytes, read_object
from specdec.serve.request_body import read_body
from specdec.serve.request_error import RequestError
from specdec.serve.response_request import ResponseRequest
from specdec.serve.server_metrics import ServerMetrics
from specdec.serve.service import Service
from specdec.serve.text_answer import TextAnswer
from specdec.serve.text_request import TextRequest
from specdec.serve.tokenize_request import detokenized, tokenized, tokenizer_info

__all__ = ["application"]

_JSON: Final = "application/json"
_OPEN: Final = ("/health",)
"""Paths that need no key."""

Body = Mapping[str, Any]


def application(
    service: Service,
    *,
    api_key: str | None = None,
    hosts: Sequence[str] | None = None,
    log: Callable[[str], None] | None = None,
) -> Starlette:
    """The server as an ASGI application.

    Parameters
    ----------
    service : Service
    api_key : str, optional
        What clients must send as ``Authorization: Bearer …``; None: nothing.
    hosts : sequence of str, optional
        The names that requests may call this host by; None: any.
    log : callable, optional
        Is given a line for each request for texts or tokens, and for each that is refused: path and status;
        of one that is carried out also seconds and tokens of prompts. Nothing of its text.
    """
    endpoints = _Endpoints(service, log)
    routes = [
        Route("/v1/completions", endpoints.texts(CompletionRequest), methods=["POST"]),
        Route("/v1/chat/completions", endpoints.texts(ChatRequest), methods=["POST"]),
        Route("/v1/responses", endpoints.texts(ResponseRequest), methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.model),
        Route("/tokenize", endpoints.answered(tokenized), methods=["POST"]),
        Route("/detokenize", endpoints.answered(detokenized), methods=["POST"]),
        Route("/tokenizer_info", endpoints.tokenizer),
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics),
    ]
    handlers: Any = {
        RequestError: endpoints.refused,
        HTTPException: endpoints.not_served,
        Exception: endpoints.failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.add_middleware(_Gate, api_key=api_key, hosts=None if hosts is None else tuple(hosts))
    return app


class _Gate:
    """Lets a request in that has the key, calls this host by its name, and is of no page of another site.

    Browsers send what pages ask them to send, and say which site a page is of. A page whose name was made to
    lead here still calls this host by the page's name.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, hosts: tuple[str, ...] | None) -> None:
        self._app, self._hosts = app, hosts
        self._digest = None if api_key is None else _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await _refused(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        site = headers.get(b"origin")
        if site is not None and site.decode("latin-1").lower().partition("://")[2] != host:
            return RequestError(
                "the request is of a page of another site, which this server refuses", status=403
            )
        if self._hosts is not None:
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self._hosts:
                return RequestError(f"the host is {name!r}; expected {' or '.join(self._hosts)}", status=403)
        if self._digest is None or scope["path"] in _OPEN:
            return None
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        # Digests have one length, and are compared in a time that does not tell where they differ.
        if not hmac.compare_digest(_digest(key.strip()), self._digest) or kind.lower() != b"bearer":
            return RequestError(
                "the API key is missing or wrong; expected Authorization: Bearer with the server's key",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refused(refusal: RequestError) -> Response:
    return Response(json_bytes(refusal.body()), refusal.status, refusal.headers, _JSON)


def _answer(value: Any) -> Response:
    return Response(json_bytes(value), media_type=_JSON)


class _Endpoints:
    """What each path does."""

    def __init__(self, service: Service, log: Callable[[str], None] | None) -> None:
        self._service, self._log = service, log
        self._metrics = ServerMetrics(service)

    def _count(self, path: str, status: int, begun: float | None = None, more: str = "") -> None:
        self._metrics.count_answer(path, status)
        if self._log is not None:
            seconds = "" if begun is None else f" {time.perf_counter() - begun:.3f} s"
            self._log(f"{path} {status}{seconds}{more}")

    # ── Errors

    def refused(self, request: Request, error: Exception) -> Response:
        """The answer to a request that is not carried out."""
        assert isinstance(error, RequestError)
        self._count(_known_path(request), error.status)
        return _refused(error)

    def not_served(self, request: Request, error: Exception) -> Response:
        """There is no such path, or not with this method."""
        assert isinstance(error, HTTPException)
        path, method, headers = printable(request.url.path)[:200], request.method, error.headers or {}
        messages = {
            404: f"there is no path {path}",
            405: f"{path} does not take {method}; expected {headers.get('Allow', 'another method')}",
        }
        message = messages.get(error.status_code, str(error.detail))
        self._count("other", error.status_code)
        return _refused(RequestError(message, status=error.status_code, headers=headers))

    def failed(self, request: Request, error: Exception) -> Response:
        """A fault of the server. What is printed has the places in the program, nothing of the request."""
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        print(
            f"specdec serve: {type(error).__name__} in {_known_path(request)}\n{''.join(frames)}",
            file=sys.stderr,
        )
        self._count(_known_path(request), 500)
        return _refused(RequestError("a fault of the server", status=500, code="internal_error"))

    # ── Texts

    def texts(self, kind: Callable[[Body, Service], TextRequest]) -> Callable[[Request], Any]:
        """An endpoint for texts."""

        def begin(body: bytes) -> TextAnswer | Response:
            asked = kind(read_object(body), self._service)
            if isinstance(asked, CompletionRequest) and asked.alone:
                return _answer(asked.scored_prompts())
            generations = self._service.submit(asked.submissions)
            return TextAnswer(asked, generations)

        async def endpoint(request: Request) -> Response:
            begun, path = time.perf_counter(), request.url.path
            self._check_serving()
            self._service.n_active += 1
            answer = None
            try:
                body = await read_body(request, self._service.limits)
                self._check_serving()
                answer = await _carefully(asyncio.to_thread(begin, body))
            except SpecdecError as error:
                raise self._service.refusal(error) from error
            finally:
                if not isinstance(answer, TextAnswer):
                    self._service.n_active -= 1
            if isinstance(answer, TextAnswer):
                answer.at_end(lambda status, gone: self._end(path, begun, answer, status, gone))
            else:
                self._count(path, 200, begun)
            return answer

        return endpoint

    def _check_serving(self) -> None:
        if self._service.stopping:
            raise self._service.refusal(EngineClosedError("the server is about to stop"))

    def _end(self, path: str, begun: float, answer: TextAnswer, status: int, gone: bool) -> None:
        self._service.n_active -= 1
        generations = answer.generations
        if gone:
            self._metrics.count_gone()
        else:
            self._metrics.time(generations)
        n_prompt = sum(len(generation.prompt_ids) for generation in generations)
        more = f", {n_prompt} tokens of prompts" + (", the client has gone" if gone else "")
        self._count(path, status, begun, more)

    # ── The rest

    def answered(self, answer: Callable[[Body, Service], Any]) -> Callable[[Request], Any]:
        """An endpoint that answers at once."""

        async def endpoint(request: Request) -> Response:
            begun, limits = time.perf_counter(), self._service.limits
            body = await read_body(request, limits)
            found = await asyncio.to_thread(lambda: json_bytes(answer(read_object(body), self._service)))
            self._count(request.url.path, 200, begun)
            return Response(found, media_type=_JSON)

        return endpoint

    def _model(self, name: str) -> dict[str, Any]:
        service = self._service
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "specdec",
            "root": service.name,
            "max_model_len": service.engine.n_text,
            "specdec": {"draft": service.draft_name, "dtype": service.target.dtype},
        }

    async def models(self, request: Request) -> Response:
        """The models that are served: one, under its names."""
        return _answer({"object": "list", "data": [self._model(name) for name in self._service.names]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        if name not in self._service.names:
            message = f"the model {printable(name)[:200]!r} is not served here"
            raise RequestError(message, status=404, param="model", code="model_not_found")
        return _answer(self._model(name))

    async def tokenizer(self, request: Request) -> Response:
        """What programs that encode prompts themselves ask."""
        return _answer(tokenizer_info(self._service))

    async def health(self, request: Request) -> Response:
        """Whether the server takes requests."""
        service = self._service
        ready = not (service.stopping or service.engine.closed)
        body = {"status": "ok" if ready else "stopping", "draft": service.draft_name}
        return Response(json_bytes(body), 200 if ready else 503, media_type=_JSON)

    async def metrics(self, request: Request) -> Response:
        """Counts and times."""
        text = await asyncio.to_thread(self._metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _known_path(request: Request) -> str:
    route = request.scope.get("route")
    return getattr(route, "path", "other")


async def _carefully(begun: Any) -> Any:
    """What a thread does; if the waiting for it is cancelled, so are the texts that it has begun by then."""
    task = asyncio.ensure_future(begun)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_cancelled)
        raise


def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None and isinstance(task.result(), TextAnswer):
        task.result().cancel()
