"""Server metrics under vLLM's names (`/metrics`) and the response log."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec.decoding.engine import EngineMetrics, Generation
from specdec.serve.service import Service

_MORE: Final = "specdec.more"
_POLLED: Final = ("/health", "/metrics")
"""Polled paths, whose responses of status 200 are not logged."""
_GONE: Final = 499

_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip

_COUNTERS: Final = {
    "vllm:prompt_tokens": ("Prompt tokens.", "n_prompt_tokens"),
    "vllm:prompt_tokens_cached": ("Prompt tokens found in the prefix cache.", "n_cached_tokens"),
    "vllm:generation_tokens": ("New tokens.", "n_new_tokens"),
    "vllm:spec_decode_num_drafts": ("Drafts: rounds of a sequence with draft tokens.", "n_drafts"),
    "vllm:spec_decode_num_draft_tokens": ("Draft tokens.", "n_draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("Accepted draft tokens.", "n_accepted_tokens"),
    "specdec:rounds": ("Rounds of the engine.", "n_rounds"),
    "specdec:texts_refused": ("Requests refused because the queue was full.", "n_refused"),
    "specdec:texts_failed": ("Requests that failed.", "n_failed"),
    "specdec:prediction_tokens_accepted": ("Accepted prediction tokens.", "n_prediction_accepted"),
    "specdec:prediction_tokens_rejected": ("Rejected prediction tokens.", "n_prediction_rejected"),
    "specdec:prefill_seconds": ("Seconds of prefill.", "prefill_s"),
    "specdec:draft_seconds": ("Seconds of drafting.", "draft_s"),
    "specdec:verify_seconds": ("Seconds of target forward passes.", "verify_s"),
    "specdec:other_seconds": ("Seconds of rounds spent on other work.", "other_s"),
}  # fmt: skip
_GAUGES: Final = {
    "vllm:num_requests_running": ("Sequences in a slot.", "n_running"),
    "vllm:num_requests_waiting": ("Sequences waiting for a slot.", "n_waiting"),
    "specdec:texts_reading": ("Sequences in prefill.", "n_reading"),
    "specdec:slots": ("Slots: sequences decoded at once.", "n_slots"),
}

_HISTOGRAMS: Final = (
    ("first_token", "vllm:time_to_first_token_seconds", "until its first token"),
    ("started", "vllm:request_queue_time_seconds", "until it gets a slot"),
    ("ended", "vllm:e2e_request_latency_seconds", "until it ends"),
)


class ServerMetrics:
    """Collector of response counts and engine statistics; `log` gets a line per response."""

    def __init__(self, service: Service, log: Callable[[str], None] | None = None) -> None:
        self._service, self._log = service, log
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        labels = ("path", "status")
        all_of_it: Any = {"registry": self._registry}
        self._answers = Counter("specdec:http_requests", "Responses by path and status.", labels, **all_of_it)
        meaning = "Requests whose client disconnected or read too slowly."
        self._gone = Counter("specdec:clients_gone", meaning, **all_of_it)
        self._times = [
            (Histogram(name, f"Seconds of a request {until}.", buckets=_SECONDS, **all_of_it), moment)
            for moment, name, until in _HISTOGRAMS
        ]

    def count_answer(self, path: str, status: int, seconds: float | None = None, more: str = "") -> None:
        """Count and log a response by path, or "other"; append `more` to its log line."""
        self._answers.labels(path, str(status)).inc()
        if self._log is not None and (path not in _POLLED or status != 200):
            self._log(f"{path} {status}{'' if seconds is None else f' {seconds:.3f} s'}{more}")

    def end(self, generations: Iterable[Generation], *, gone: bool) -> None:
        """Observe the times of finished sequences, or count a client that disconnected."""
        if gone:
            self._gone.inc()
            return
        for times in (generation.times for generation in generations):
            for histogram, name in self._times:
                if (moment := getattr(times, name)) is not None:
                    histogram.observe(max(0.0, moment - times.submitted))

    def collect(self) -> Iterator[Any]:
        metrics: EngineMetrics = self._service.engine.metrics()

        def family(
            metric_type: Any, name: str, meaning: str, figures: Mapping[Any, float], *labels: str
        ) -> Any:
            found = metric_type(name, meaning, labels=["model_name", *labels])
            for values, figure in figures.items():
                found.add_metric([self._service.name, *values], figure)
            return found

        for metric_type, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (meaning, field) in table.items():
                yield family(metric_type, name, meaning, {(): getattr(metrics, field)})
        positions = {(str(position),): n for position, n in enumerate(metrics.accepted_at)}
        name, meaning = "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position."
        yield family(CounterMetricFamily, name, meaning, positions, "position")
        name, meaning = "vllm:request_success", "Finished sequences by reason."
        reasons = {(reason,): n for reason, n in metrics.n_finished.items()}
        yield family(CounterMetricFamily, name, meaning, reasons, "finished_reason")

    def text(self) -> bytes:
        text: bytes = generate_latest(self._registry)
        return text


def print_fault(where: str, error: BaseException) -> None:
    """Print the traceback of an internal error, without request data."""
    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    print(f"specdec serve: {type(error).__name__} in {where}\n{frames}", file=sys.stderr)


def add_to_log(scope: Scope, more: str) -> None:
    """Append to the response's log line."""
    scope[_MORE] = more


class CountedAnswers:
    """ASGI middleware that counts responses by path; paths not in `paths` count as "other"."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: Iterable[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            status = 500  # an outer layer sends the response
            raise
        finally:
            seconds = time.perf_counter() - begun
            path: str = getattr(scope.get("route"), "path", scope["path"])
            path = path if path in self._paths else "other"
            self._metrics.count_answer(path, status, seconds, scope.get(_MORE, ""))
