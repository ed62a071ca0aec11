"""The metrics of a gateway for Prometheus, by model and pipeline; docs/gateway-losses.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flowedge.gateway.record import CURRENT, RequestRecord

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TTFT_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
_ANSWER_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20)
_OF_PIPELINE = ("model", "pipeline")

PipelineReading = tuple[str, str, Mapping[str, float]]
"""Model, pipeline, and by name of a gauge its value."""
_GAUGES = {
    "ready": ("flowedge_gateway_pipeline_ready", "1 while the pipeline can answer."),
    "running": ("flowedge_gateway_running", "Requests of this gateway that the pipeline answers or queues."),
    "sessions": ("flowedge_gateway_sessions", "Sessions of all clients at the draft node, when last asked."),
    "waiting": (
        "flowedge_gateway_queue",
        "Requests of all clients that wait at the draft node, when last asked.",
    ),
}


class GatewayMetrics:
    """The counters and histograms of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, labelnames=_OF_PIPELINE, registry=self.registry)
        self._requests = counter(
            "flowedge_gateway_requests",
            "Requests, by endpoint and outcome.",
            ["endpoint", "outcome", *_OF_PIPELINE],
        )
        self._tokens = counter(
            "flowedge_gateway_tokens", "Tokens of prompts and answers.", ["direction", *_OF_PIPELINE]
        )
        self._reused = counter(
            "flowedge_gateway_reused_rows", "Tokens of prompts that were not computed again.", _OF_PIPELINE
        )
        self._ttft = histogram(
            "flowedge_gateway_time_to_first_token_seconds",
            "From a request's arrival at the draft node to its first token, without its wait.",
            buckets=_TTFT_SECONDS,
        )
        self._waited = histogram(
            "flowedge_gateway_queue_seconds",
            "Wait of requests for room at the draft node.",
            buckets=_TTFT_SECONDS,
        )
        self._itl = histogram(
            "flowedge_gateway_inter_token_seconds", "Between two tokens of an answer.", buckets=_SECONDS
        )
        self._acceptance = histogram(
            "flowedge_gateway_tokens_per_segment",
            "Tokens put out after each segment that came back with live rows.",
            buckets=_LENGTHS,
        )
        self._seconds = Histogram(
            "flowedge_gateway_request_seconds",
            "Of whole requests, by endpoint.",
            ["endpoint"],
            buckets=_ANSWER_SECONDS,
            registry=self.registry,
        )
        self._recoveries = counter(
            "flowedge_gateway_recoveries",
            "Pauses of answers that had lost a device, by outcome: it went on, or it ended.",
            ["outcome", *_OF_PIPELINE],
        )
        self._recovery = histogram(
            "flowedge_gateway_recovery_seconds",
            "Pauses of answers that had lost a device and went on.",
            buckets=_TTFT_SECONDS,
        )
        self.joined = Counter(
            "flowedge_gateway_joined_requests",
            "Requests that have joined an earlier answer by their Idempotency-Key.",
            registry=self.registry,
        )
        self.waiting = Gauge(
            "flowedge_gateway_waiting",
            "Requests that wait in the gateway, because their pipelines have as many as they take, or are "
            "recovering.",
            registry=self.registry,
        )
        self.connections = Gauge("flowedge_gateway_connections", "Open connections.", registry=self.registry)

    def watch_pipelines(self, readings: Callable[[], Iterable[PipelineReading]]) -> None:
        """Have the registry also show gauges of pipelines, read when it is asked."""
        self.registry.register(_PipelineGauges(readings))

    def answered(self, model: str, pipeline: str, statistics: Mapping[str, Any]) -> None:
        """Count an answer, also a cancelled one.

        Args:
            pipeline: its name, see PipelineClient.
            statistics: of the answer, see Transcript.
        """
        labels = (model, pipeline)
        tokens_in, tokens_out = _count(statistics, "prompt_tokens"), _count(statistics, "new_tokens")
        record = CURRENT.get()
        if record is not None:
            record.tokens_in += tokens_in
            record.tokens_out += tokens_out
        self._tokens.labels("in", *labels).inc(tokens_in)
        self._tokens.labels("out", *labels).inc(tokens_out)
        if isinstance(ttft_s := statistics.get("ttft_s"), float):
            self._ttft.labels(*labels).observe(max(ttft_s, 0.0))
        if isinstance(queue_s := statistics.get("queue_s"), float):
            self._waited.labels(*labels).observe(queue_s)
        between = self._itl.labels(*labels)
        for seconds in statistics.get("itl_s") or ():
            between.observe(seconds)
        counters = statistics.get("counters")
        if isinstance(counters, Mapping):
            self._reused.labels(*labels).inc(_count(counters, "reused_rows"))
            lengths = self._acceptance.labels(*labels)
            for length in counters.get("accepted_per_segment") or ():
                lengths.observe(length)

    def recovered(self, model: str, pipeline: str, pauses_s: Sequence[float], broken_off: int) -> None:
        """Count the pauses of answers that have lost a device; see RunningAnswers."""
        labels = (model, pipeline)
        for seconds in pauses_s:
            self._recoveries.labels("went_on", *labels).inc()
            self._recovery.labels(*labels).observe(seconds)
        if broken_off:
            self._recoveries.labels("ended", *labels).inc(broken_off)

    def ended(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        endpoint = record.endpoint or "other"
        self._requests.labels(endpoint, record.outcome, record.model, record.pipeline).inc()
        self._seconds.labels(endpoint).observe(record.seconds)


class _PipelineGauges(Collector):
    def __init__(self, readings: Callable[[], Iterable[PipelineReading]]) -> None:
        self._readings = readings

    def describe(self) -> Iterator[Metric]:
        for name, text in _GAUGES.values():
            yield GaugeMetricFamily(name, text, labels=_OF_PIPELINE)

    def collect(self) -> Iterator[Metric]:
        families = {
            key: GaugeMetricFamily(name, text, labels=_OF_PIPELINE) for key, (name, text) in _GAUGES.items()
        }
        for model, pipeline, values in self._readings():
            for key, value in values.items():
                families[key].add_metric((model, pipeline), value)
        yield from families.values()


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and value > 0 else 0
