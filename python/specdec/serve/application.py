"""ASGI application: routes, access control, streamed and error responses."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec.decoding.engine import Generation, Piece
from specdec.decoding.result import Result
from specdec.errors import BusyError, EngineClosedError, SpecdecError, number_of, printable
from specdec.serve.bodies import RequestError, json_bytes, message_error, read_object
from specdec.serve.completions import ChatRequest, CompletionRequest
from specdec.serve.message_request import MessageRequest, counted_tokens
from specdec.serve.metrics import CountedAnswers, ServerMetrics, add_to_log, print_fault
from specdec.serve.page import page
from specdec.serve.responses import ResponseRequest
from specdec.serve.service import ServerLimits, Service
from specdec.serve.text_request import TextRequest
from specdec.serve.tokenize import detokenized, tokenized, tokenizer_info

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

_CLOSE: Final = {"Connection": "close"}
_MESSAGES: Final = "/v1/messages"
"""Prefix of the paths whose errors have the format of Anthropic's API."""
_OPEN: Final = ("/", "/health")
"""Paths that need no API key."""


def application(
    service: Service,
    metrics: ServerMetrics,
    *,
    api_key: str | None = None,
    hosts: Sequence[str] | None = None,
    cors_origins: Sequence[str] = (),
) -> Starlette:
    """Make the ASGI application; for `api_key`, `hosts` and `cors_origins` see `AccessControl`."""
    endpoints = _Endpoints(service, metrics)
    routes = [
        Route("/v1/completions", endpoints.texts(CompletionRequest), methods=["POST"]),
        Route("/v1/chat/completions", endpoints.texts(ChatRequest), methods=["POST"]),
        Route("/v1/responses", endpoints.texts(ResponseRequest), methods=["POST"]),
        Route(_MESSAGES, endpoints.texts(MessageRequest), methods=["POST"]),
        Route(f"{_MESSAGES}/count_tokens", endpoints.answered(counted_tokens), methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.model),
        Route("/tokenize", endpoints.answered(tokenized), methods=["POST"]),
        Route("/detokenize", endpoints.answered(detokenized), methods=["POST"]),
        Route("/tokenizer_info", endpoints.tokenizer),
        Route("/", endpoints.page),
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics),
    ]
    handlers: Any = {RequestError: _refused, HTTPException: _not_served, Exception: _failed}
    app = Starlette(routes=routes, exception_handlers=handlers)
    # Do not redirect paths with a trailing slash: a redirect repeats the client's Host header, and some
    # clients drop the body.
    app.router.redirect_slashes = False
    names = None if hosts is None else tuple(hosts)
    app.add_middleware(AccessControl, api_key=api_key, hosts=names, cors_origins=tuple(cors_origins))
    if cors_origins:  # answers preflight requests, which carry no key, and names the origin in each response
        cors: Any = {"allow_origins": cors_origins, "allow_methods": ("GET", "POST"), "allow_headers": ("*",)}
        app.add_middleware(CORSMiddleware, **cors)
    app.add_middleware(CountedAnswers, metrics=metrics, paths=[route.path for route in routes])
    return app


class AccessControl:
    """ASGI middleware that checks the API key, and the Host and Origin headers (None: any key or host).

    Pages of this server and of `cors_origins` (with "*" of any) may send requests. Checking Host stops DNS
    rebinding: a page whose name resolves to this host still sends its own name.
    """

    def __init__(
        self, app: ASGIApp, api_key: str | None, hosts: tuple[str, ...] | None, cors_origins: tuple[str, ...]
    ) -> None:
        self._app, self._hosts, self._origins = app, hosts, cors_origins
        self._digest = None if api_key is None else _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        site = headers.get(b"origin")
        if site is not None and not self._accepts(origin := site.decode("latin-1"), host):
            expected = " or ".join(["this server's own", *self._origins])
            message = f"the origin is {printable(origin)[:200]!r}; expected {expected}"
            return RequestError(message, status=403)
        if self._hosts is not None:
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self._hosts:
                return RequestError(f"the host is {name!r}; expected {' or '.join(self._hosts)}", status=403)
        if self._digest is None or scope["path"] in _OPEN:
            return None
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if (own := headers.get(b"x-api-key")) is not None and not key:  # as Anthropic's clients send it
            scheme, key = b"bearer", own
        # Digests have equal lengths, so the comparison takes constant time.
        if not hmac.compare_digest(_digest(key.strip()), self._digest) or scheme.lower() != b"bearer":
            message = "the API key is missing or wrong; expected Authorization: Bearer KEY"
            asks = {"WWW-Authenticate": "Bearer"}
            return RequestError(message, status=401, code="invalid_api_key", headers=asks)
        return None

    def _accepts(self, origin: str, host: str) -> bool:
        """Return whether pages of an origin may send requests."""
        own = origin.lower().partition("://")[2] == host
        return own or "*" in self._origins or origin in self._origins


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _json(value: Any, status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, request.url.path)


def _not_served(request: Request, error: Exception) -> Response:
    """Respond to an unknown path or method."""
    assert isinstance(error, HTTPException)
    path, method, headers = printable(request.url.path)[:200], request.method, error.headers or {}
    paths = [route.path for route in request.app.routes if "{" not in route.path]
    nearest = get_close_matches(path, paths, 1, 0.75)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    messages = {
        404: f"there is no path {path}{hint}",
        405: f"{path} does not take {method}; expected {headers.get('Allow', 'another method')}",
    }
    message = messages.get(error.status_code, str(error.detail))
    return error_response(RequestError(message, status=error.status_code, headers=headers), path)


def _failed(request: Request, error: Exception) -> Response:
    print_fault(getattr(request.scope.get("route"), "path", "other"), error)
    refusal = RequestError("internal server error", status=500, code="internal_error")
    return error_response(refusal, request.url.path)


async def _read_body(request: Request, limits: ServerLimits) -> bytes:
    """Read a JSON body; status 415 for other types, 413 if too large, 408 on timeout."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json":
        message = "the Content-Type is not application/json; expected a JSON body with that header"
        raise RequestError(message, status=415)
    most, announced = limits.n_body_bytes, request.headers.get("content-length", "")
    message = f"the body is too large; expected at most {most} bytes"
    too_large = RequestError(message, status=413, code="body_too_large", headers=_CLOSE)
    if announced.isascii() and announced.isdecimal() and (len(announced) > 18 or int(announced) > most):
        raise too_large
    body = bytearray()
    try:
        with anyio.fail_after(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_s:g} seconds"
        raise RequestError(message, status=408, headers=_CLOSE) from None
    except ClientDisconnect:
        raise RequestError("the client disconnected", status=499) from None
    return bytes(body)


class _Endpoints:
    def __init__(self, service: Service, metrics: ServerMetrics) -> None:
        self._service, self._metrics = service, metrics
        self._scoring = asyncio.Lock()
        self._n_scoring = 0  # requests that hold or wait for the lock
        self._tokenizing = asyncio.Semaphore(2)  # leaves threads for other requests

    def texts(self, request_type: Callable[[Mapping[str, Any], Service], TextRequest]) -> Endpoint:
        service = self._service

        def begin(body: bytes) -> TextRequest:
            asked = request_type(read_object(body), service)
            if not asked.alone:
                asked.start()
            return asked

        async def endpoint(request: Request) -> Response:
            self._check_serving()
            service.n_active += 1
            answer = None
            try:
                body = await _read_body(request, service.limits)
                self._check_serving()
                started = asyncio.ensure_future(asyncio.to_thread(begin, body))
                try:
                    asked = await asyncio.shield(started)
                except asyncio.CancelledError:  # the thread continues
                    started.add_done_callback(_cancel_started)
                    raise
                if not asked.alone:
                    answer = TextAnswer(asked, lambda gone: self._end(request, asked, gone))
                return answer or await self._scored(request, asked)
            except SpecdecError as error:
                raise service.refusal(error) from error
            finally:
                if answer is None:
                    service.n_active -= 1

        return endpoint

    async def _scored(self, request: Request, asked: Any) -> Response:
        """Score prompts, one request at a time because each uses all cores."""
        most = self._service.limits.n_waiting
        if self._n_scoring > most:
            raise BusyError(f"{number_of(most, 'request')} already waiting for prompt scores; try later")
        self._n_scoring += 1
        try:
            async with self._scoring:
                if await request.is_disconnected():
                    raise RequestError("the client disconnected", status=499)
                return await asyncio.to_thread(lambda: _json(asked.scored_prompts()))
        finally:
            self._n_scoring -= 1

    def _check_serving(self) -> None:
        if self._service.stopping:
            raise self._service.refusal(EngineClosedError("the server is shutting down"))

    def _end(self, request: Request, asked: TextRequest, gone: bool) -> None:
        self._service.n_active -= 1
        self._metrics.end(asked.generations, gone=gone)
        n_prompt = sum(len(generation.prompt_ids) for generation in asked.generations)
        more = f", {n_prompt} prompt tokens" + (", client disconnected" if gone else "")
        add_to_log(request.scope, more)

    def answered(self, answer: Callable[[Mapping[str, Any], Service], Any]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            body = await _read_body(request, self._service.limits)
            async with self._tokenizing:
                found = await asyncio.to_thread(lambda: json_bytes(answer(read_object(body), self._service)))
            return Response(found, media_type="application/json")

        return endpoint

    def _model(self, name: str) -> dict[str, Any]:
        service = self._service
        own = {
            "draft": service.draft_name, "drafts": service.draft_names, "dtype": service.target.dtype,
            "has_chat_template": service.target.chat_template is not None,
        }  # fmt: skip
        return {
            "id": name, "object": "model", "created": service.created, "owned_by": "specdec",
            "root": service.name, "parent": service.name if name in service.adapters else None,
            "max_model_len": service.engine.n_text, "specdec": own,
        }  # fmt: skip

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model(name) for name in self._service.names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._service.names:
            message = f"the model {printable(name)[:200]!r} is not served here"
            raise RequestError(message, status=404, param="model", code="model_not_found")
        return _json(self._model(name))

    async def page(self, request: Request) -> Response:
        return page()

    async def tokenizer(self, request: Request) -> Response:
        return _json(tokenizer_info(self._service))

    async def health(self, request: Request) -> Response:
        service = self._service
        ready = not (service.stopping or service.engine.closed)
        body = {"status": "ok" if ready else "stopping", "draft": service.draft_name}
        return _json(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        text = await asyncio.to_thread(self._metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _cancel_started(started: asyncio.Future[TextRequest]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().cancel()


# ── Responses

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # no buffering by proxies
]


def error_response(refusal: RequestError, path: str) -> Response:
    """Return the response to a refused request, in the format of its path."""
    body = refusal.body()
    if path.startswith(_MESSAGES):
        body = message_error(body, refusal.status)
    return Response(json_bytes(body), refusal.status, refusal.headers, "application/json")


class _ClientGoneError(Exception):
    """The client disconnected or stopped reading."""


class TextAnswer(Response):
    """Response to a request for texts, streamed or whole; calls ``ended(gone)`` at its end.

    Cancel the texts when the client disconnects or reads too slowly. Meanwhile they continue, and the engine
    collects new output in one piece per text.
    """

    def __init__(self, request: TextRequest, ended: Callable[[bool], None]) -> None:
        self._request, self._ended = request, ended
        self._limits, self._begun = request.service.limits, False
        self.background, self.status_code = None, 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            self._request.cancel()
            self._ended(gone)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._request.cancel()

    async def _send(self, send: Send, message: Message) -> None:
        """Send a message; a client that does not read it in time counts as gone."""
        try:
            with anyio.fail_after(self._limits.write_s):
                await send(message)
        except OSError:  # includes TimeoutError
            raise _ClientGoneError from None

    def _refusal(self, error: Exception) -> RequestError:
        """Convert the error that ended a request to a response; a user's draft may raise anything."""
        if isinstance(error, _ClientGoneError):
            raise error
        if isinstance(error, SpecdecError):
            return self._request.service.refusal(error, self._request.names)
        print_fault(f"the texts of {self._request.id}", error)
        return RequestError("an internal error ended the text", status=500, code="internal_error")

    async def _results(self) -> list[list[Result]]:
        return [await generation.aresults() for generation in self._request.generations]

    async def _whole(self, send: Send, watch: asyncio.Future[None]) -> None:
        try:
            results = await self._results()
            if watch.done():
                raise _ClientGoneError
            # In a thread: large responses with log-probabilities must not block others.
            answer = await asyncio.to_thread(lambda: json_bytes(self._request.whole(results)))
        except Exception as error:
            response = error_response(self._refusal(error), self._scope["path"])
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
                await self._respond(error_response(refusal, self._scope["path"]), send)
                return
            await self._write(send, self._request.fail(refusal.body()))
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, events: list[bytes]) -> None:
        """Send events, preceded by the response head the first time."""
        if not self._begun:
            self._begun = True
            head: Message = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
            await self._send(send, head)
        if events:
            body: Message = {"type": "http.response.body", "body": b"".join(events), "more_body": True}
            await self._send(send, body)

    async def _pause(self) -> None:
        """Wait so that pieces merge into one event, except at the end."""
        for _ in range(2):
            if all(generation.done for generation in self._request.generations):
                return
            await asyncio.sleep(self._limits.event_s / 2)

    async def _events(self, send: Send, watch: asyncio.Future[None]) -> None:
        request, first = self._request, True
        async for prompt, piece in _merged(self._request.generations):
            if watch.done():
                raise _ClientGoneError
            # Nothing is sent before the first piece: an error of the first round can set the status.
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
    """Yield (index of the generation, piece) from several generations as pieces arrive."""
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
