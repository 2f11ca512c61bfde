"""`/metrics`: counts and times in Prometheus' form, under the names that vLLM gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from specdec.decoding.engine import EngineMetrics, Generation
from specdec.serve.service import Service

__all__ = ["ServerMetrics"]

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
    """What a server counts, and what its engine does.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._answers = Counter(
            "specdec:http_requests",
            "Answers by path and status.",
            ("path", "status"),
            registry=self._registry,
        )
        self._gone = Counter(
            "specdec:clients_gone", "Requests whose clients left or were too slow.", registry=self._registry
        )
        self._first = self._histogram("vllm:time_to_first_token_seconds", "Until the first token.")
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Until a slot was free.")
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Until the text had ended.")

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(name, f"Seconds of a request. {meaning}", buckets=_SECONDS, registry=self._registry)

    def count_answer(self, path: str, status: int) -> None:
        """An answer was begun."""
        self._answers.labels(path, str(status)).inc()

    def count_gone(self) -> None:
        """A client left before its answer was whole."""
        self._gone.inc()

    def time(self, generations: list[Generation]) -> None:
        """Texts have ended."""
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
        """What the engine counts."""
        metrics: EngineMetrics = self._service.engine.metrics()
        labels, values = ("model_name",), (self._service.name,)
        for name, (meaning, field) in _COUNTERS.items():
            counter = CounterMetricFamily(name, meaning, labels=labels)
            counter.add_metric(values, getattr(metrics, field))
            yield counter
        for name, (meaning, field) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, meaning, labels=labels)
            gauge.add_metric(values, getattr(metrics, field))
            yield gauge
        places = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Rounds in which the guess in this place was accepted.",
            labels=("model_name", "position"),
        )
        for position, n in enumerate(metrics.accepted_at):
            places.add_metric((*values, str(position)), n)
        yield places
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Texts that have ended, by the reason.",
            labels=("model_name", "finished_reason"),
        )
        for reason, n in metrics.n_finished.items():
            ended.add_metric((*values, reason), n)
        yield ended

    def text(self) -> bytes:
        """All of it, as a scrape reads it."""
        text: bytes = generate_latest(self._registry)
        return text
