"""Counts and times of the server: `/metrics` under the names that vLLM gives them, and the log of answers."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec.decoding.engine import EngineMetrics, Generation
from specdec.serve.service import Service

_MORE: Final = "specdec.more"
_POLLED: Final = ("/health", "/metrics")
"""Paths that are asked again and again: an answer of status 200 is not logged."""
_GONE: Final = 499

_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip

_COUNTERS: Final = {
    "vllm:prompt_tokens": ("Tokens of prompts.", "n_prompt_tokens"),
    "vllm:prompt_tokens_cached": ("Of them those that had been read before.", "n_cached_tokens"),
    "vllm:generation_tokens": ("New tokens.", "n_new_tokens"),
    "vllm:spec_decode_num_drafts": ("Rounds of texts that something was drafted for.", "n_drafts"),
    "vllm:spec_decode_num_draft_tokens": ("Drafted tokens.", "n_draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted.", "n_accepted_tokens"),
    "specdec:rounds": ("Rounds of the engine.", "n_rounds"),
    "specdec:texts_refused": ("Requests refused because too many texts were waiting.", "n_refused"),
    "specdec:texts_failed": ("Requests that an error ended.", "n_failed"),
    "specdec:prediction_tokens_accepted": ("Of predictions, those accepted.", "n_prediction_accepted"),
    "specdec:prediction_tokens_rejected": ("Of predictions, those rejected.", "n_prediction_rejected"),
    "specdec:prefill_seconds": ("Seconds spent reading prompts.", "prefill_s"),
    "specdec:draft_seconds": ("Seconds spent drafting.", "draft_s"),
    "specdec:verify_seconds": ("Seconds spent in the target.", "verify_s"),
    "specdec:other_seconds": ("Seconds of rounds spent on the rest.", "other_s"),
}  # fmt: skip
_GAUGES: Final = {
    "vllm:num_requests_running": ("Texts in a slot.", "n_running"),
    "vllm:num_requests_waiting": ("Texts that wait for a slot.", "n_waiting"),
    "specdec:texts_reading": ("Texts whose prompts are being read.", "n_reading"),
    "specdec:slots": ("Texts decoded at once at most.", "n_slots"),
}


class ServerMetrics:
    """Counts of a server's answers, and the figures of its engine.

    `log` is given a line for each answer: path, status, seconds; nothing of a text.
    """

    def __init__(self, service: Service, log: Callable[[str], None] | None = None) -> None:
        self._service, self._log = service, log
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        labels, all_of_it = ("path", "status"), {"registry": self._registry}
        self._answers = Counter("specdec:http_requests", "Answers by path and status.", labels, **all_of_it)
        meaning = "Requests whose clients left or were too slow."
        self._gone = Counter("specdec:clients_gone", meaning, **all_of_it)
        self._first = self._histogram("vllm:time_to_first_token_seconds", "Until the first token.")
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Until a slot was free.")
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Until the text had ended.")

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(name, f"Seconds of a request. {meaning}", buckets=_SECONDS, registry=self._registry)

    def count_answer(self, path: str, status: int, seconds: float | None = None, more: str = "") -> None:
        """Count and log an answer; `more` is the end of its line.

        The path is one of the server's, or "other". Status 499: the client left before there was an answer.
        """
        self._answers.labels(path, str(status)).inc()
        if self._log is not None and (path not in _POLLED or status != 200):
            self._log(f"{path} {status}{'' if seconds is None else f' {seconds:.3f} s'}{more}")

    def count_gone(self) -> None:
        """Count a client that left before its answer was whole."""
        self._gone.inc()

    def time(self, generations: Iterable[Generation]) -> None:
        """Count the times of texts that have ended."""
        for generation in generations:
            times = generation.times
            for histogram, moment in (
                (self._first, times.first_token),
                (self._queue, times.started),
                (self._whole, times.ended),
            ):
                if moment is not None:
                    histogram.observe(max(0.0, moment - times.submitted))

    def collect(self) -> Iterator[Any]:
        """Yield the figures of the engine."""
        metrics: EngineMetrics = self._service.engine.metrics()
        labels, values = ("model_name",), (self._service.name,)
        for family, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (meaning, field) in table.items():
                figure = family(name, meaning, labels=labels)
                figure.add_metric(values, getattr(metrics, field))
                yield figure
        name, meaning = "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position."
        positions = CounterMetricFamily(name, meaning, labels=(*labels, "position"))
        for position, n in enumerate(metrics.accepted_at):
            positions.add_metric((*values, str(position)), n)
        name, meaning = "vllm:request_success", "Texts that have ended, by the reason."
        ended = CounterMetricFamily(name, meaning, labels=(*labels, "finished_reason"))
        for reason, n in metrics.n_finished.items():
            ended.add_metric((*values, reason), n)
        yield from (positions, ended)

    def text(self) -> bytes:
        """Return all of it, as a scrape reads it."""
        text: bytes = generate_latest(self._registry)
        return text


def print_fault(where: str, error: BaseException) -> None:
    """Print a fault of the server: the places in the program, nothing of a request."""
    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    print(f"specdec serve: {type(error).__name__} in {where}\n{frames}", file=sys.stderr)


def add_to_log(scope: Scope, more: str) -> None:
    """Append to the log's line of an answer."""
    scope[_MORE] = more


class CountedAnswers:
    """ASGI middleware that counts answers by path: by `paths`, and all others as "other"."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: Iterable[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)

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
            status = 500  # what is sent then is made outside of this middleware
            raise
        finally:
            seconds = time.perf_counter() - begun
            path: str = getattr(scope.get("route"), "path", scope["path"])
            path = path if path in self._paths else "other"
            self._metrics.count_answer(path, status, seconds, scope.get(_MORE, ""))
