"""The paths of the server, and what becomes of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specdec.errors import BusyError, EngineClosedError, SpecdecError, number_of, printable
from specdec.serve.answer_log import AnswerLog, CountedAnswers, print_fault, tell_more
from specdec.serve.chat_request import ChatRequest
from specdec.serve.completion_request import CompletionRequest
from specdec.serve.gate import Gate, refused
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

Body = Mapping[str, Any]


def application(
    service: Service,
    answers: AnswerLog,
    *,
    api_key: str | None = None,
    hosts: Sequence[str] | None = None,
) -> Starlette:
    """The server as an ASGI application.

    Parameters
    ----------
    service : Service
    answers : AnswerLog
        Is told of each answer.
    api_key : str, optional
        What clients must send as ``Authorization: Bearer …``; None: nothing.
    hosts : sequence of str, optional
        The names that requests may call this host by; None: any.
    """
    endpoints = _Endpoints(service, answers.metrics)
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
    # A path that ends with a slash is none of the API's. A redirect would name the host that the client says,
    # and some clients send no body behind it.
    app.router.redirect_slashes = False
    app.add_middleware(Gate, api_key=api_key, hosts=None if hosts is None else tuple(hosts))
    app.add_middleware(CountedAnswers, answers=answers, paths=[route.path for route in routes])
    return app


def _answer(value: Any) -> Response:
    return Response(json_bytes(value), media_type=_JSON)


class _Endpoints:
    """What each path does."""

    def __init__(self, service: Service, metrics: ServerMetrics) -> None:
        self._service, self._metrics = service, metrics
        self._scoring = asyncio.Lock()
        self._n_scoring = 0  # requests that have it or wait for it
        self._tokenizing = asyncio.Semaphore(2)  # so that other requests find a thread

    # ── Errors

    def refused(self, request: Request, error: Exception) -> Response:
        """The answer to a request that is not carried out."""
        assert isinstance(error, RequestError)
        return refused(error)

    def not_served(self, request: Request, error: Exception) -> Response:
        """There is no such path, or not with this method."""
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
        return refused(RequestError(message, status=error.status_code, headers=headers))

    def failed(self, request: Request, error: Exception) -> Response:
        """A fault of the server."""
        print_fault(_known_path(request), error)
        return refused(RequestError("a fault of the server", status=500, code="internal_error"))

    # ── Texts

    def texts(self, kind: Callable[[Body, Service], TextRequest]) -> Callable[[Request], Any]:
        """An endpoint for texts."""

        def begin(body: bytes) -> TextAnswer | CompletionRequest:
            asked = kind(read_object(body), self._service)
            if isinstance(asked, CompletionRequest) and asked.alone:
                return asked
            generations = self._service.submit(asked.submissions, asked.adapter, asked.names)
            return TextAnswer(asked, generations)

        async def endpoint(request: Request) -> Response:
            self._check_serving()
            self._service.n_active += 1
            answer = None
            try:
                body = await read_body(request, self._service.limits)
                self._check_serving()
                answer = await _carefully(asyncio.to_thread(begin, body))
                if isinstance(answer, CompletionRequest):
                    answer = await self._scored(request, answer)
            except SpecdecError as error:
                raise self._service.refusal(error) from error
            finally:
                if not isinstance(answer, TextAnswer):
                    self._service.n_active -= 1
            if isinstance(answer, TextAnswer):
                answer.at_end(lambda gone: self._end(request, answer, gone))
            return answer

        return endpoint

    async def _scored(self, request: Request, asked: CompletionRequest) -> Response:
        """The answer to a request that wants its prompts scored and no text.

        One after the other: each takes a thread of those in which other requests are read, and all cores.

        Raises
        ------
        BusyError
        """
        most = self._service.limits.n_waiting
        if self._n_scoring > most:
            raise BusyError(f"{number_of(most, 'request')} wait for scores of prompts; expected fewer")
        self._n_scoring += 1
        try:
            async with self._scoring:
                if await request.is_disconnected():
                    raise RequestError("the client has gone", status=499)
                return await asyncio.to_thread(lambda: _answer(asked.scored_prompts()))
        finally:
            self._n_scoring -= 1

    def _check_serving(self) -> None:
        if self._service.stopping:
            raise self._service.refusal(EngineClosedError("the server is about to stop"))

    def _end(self, request: Request, answer: TextAnswer, gone: bool) -> None:
        self._service.n_active -= 1
        if gone:
            self._metrics.count_gone()
        else:
            self._metrics.time(answer.generations)
        n_prompt = sum(len(generation.prompt_ids) for generation in answer.generations)
        more = f", {n_prompt} tokens of prompts" + (", the client has gone" if gone else "")
        tell_more(request.scope, more)

    # ── The rest

    def answered(self, answer: Callable[[Body, Service], Any]) -> Callable[[Request], Any]:
        """Make an endpoint that runs no model."""

        async def endpoint(request: Request) -> Response:
            body = await read_body(request, self._service.limits)
            async with self._tokenizing:
                found = await asyncio.to_thread(lambda: json_bytes(answer(read_object(body), self._service)))
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
            "parent": service.name if name in service.adapters else None,
            "max_model_len": service.engine.n_text,
            "specdec": {
                "draft": service.draft_name,
                "drafts": service.draft_names,
                "dtype": service.target.dtype,
            },
        }

    async def models(self, request: Request) -> Response:
        """The models that are served: one, under its names, and with each adapter."""
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
