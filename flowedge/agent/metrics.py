"""The metrics of an agent for Prometheus, counted or read when it asks; docs/metrics.md lists them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.agent.roles.role_holder import RoleHolder
from flowedge.agent.throttling import ThrottlingWatch
from flowedge.core.messages import Message
from flowedge.core.pipeline_config import drafter_label
from flowedge.core.request import DecodeCounters
from flowedge.device.board.power import rails
from flowedge.device.board.temperature import temperatures
from flowedge.device.memory import read_available_memory
from flowedge.engine.activity import ABORTED
from flowedge.engine.work_counts import WorkCounts
from flowedge.live.compute_thread import ComputeThread, Span
from flowedge.live.observer import CountBytes, LiveObserver
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION, VERSION

# 1 ms to 10 s: a layer block of a small model up to a long prompt's chunk on a slow board.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TTFT_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
QUEUE_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20)
_ROWS = {"rows_computed": "computed", "rows_trimmed": "trimmed", "rows_wasted": "wasted"}
_INFOS = {
    "flowedge_agent": "The device and what it runs.",
    "flowedge_role": "The role that the device has.",
}


class AgentMetrics(LiveObserver):
    """The counters and histograms of one agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._opened = counter("flowedge_sessions_opened", "Sessions begun.")
        self._ended = counter("flowedge_sessions_ended", "Sessions ended.", ["reason"])
        self._segments = counter("flowedge_segments", "Segments seen to by a stage.", ["outcome"])
        self._rows = counter("flowedge_rows", "Rows seen to by a stage.", ["outcome"])
        self._compute = histogram(
            "flowedge_compute_seconds", "Jobs of the compute thread.", ["activity"], buckets=SECONDS
        )
        self._compute_of = cache(self._compute.labels)  # looking a label up takes longer than counting
        self._transfer = histogram(
            "flowedge_transfer_seconds", "Handing an in-band message to the transport.", buckets=SECONDS
        )
        self._link = counter("flowedge_link_bytes", "Bytes of frames on links.", ["lane", "direction"])
        self._tokens = counter("flowedge_tokens", "Tokens put out to clients.")
        self._reused = counter("flowedge_reused_rows", "Tokens of prompts that were not computed again.")
        self._acceptance = histogram(
            "flowedge_acceptance_length",
            "Tokens put out after each segment that came back with live rows.",
            buckets=LENGTHS,
        )
        self._ttft = histogram(
            "flowedge_time_to_first_token_seconds",
            "From a request's arrival to its first token, without its wait.",
            buckets=TTFT_SECONDS,
        )
        self._waited = histogram(
            "flowedge_queue_seconds",
            "For which requests that were opened had to wait.",
            buckets=QUEUE_SECONDS,
        )
        self._refused = counter("flowedge_requests_refused", "Requests that were never opened.", ["reason"])
        self._lost = counter("flowedge_devices_lost", "Devices that the pipeline has lost.", ["state"])
        self._recovered = counter("flowedge_answers_recovered", "Answers that went on with another pipeline.")
        self._itl = histogram(
            "flowedge_inter_token_seconds", "Between two tokens of a request.", buckets=SECONDS
        )

    def counted(self, counts: WorkCounts) -> None:
        self._opened.inc(counts.opened)
        for reason, ended in counts.ended.items():
            self._ended.labels(reason).inc(ended)
        for name, outcome in _ROWS.items():
            self._rows.labels(outcome).inc(counts.work[name])
        aborted = counts.work["aborted"]
        self._segments.labels("aborted").inc(aborted)
        self._segments.labels("done").inc(counts.work["segments"] - aborted)

        for reason, refused in counts.refused.items():
            self._refused.labels(reason).inc(refused)

    def admitted(self, waited_s: float) -> None:
        self._waited.observe(waited_s)

    def computed(self, activity: str, span: Span, rows: int) -> None:
        self._compute_of(activity).observe(span.seconds)
        if activity == ABORTED:
            self._rows.labels("aborted").inc(rows)

    def transferred(self, message: Message, span: Span) -> None:  # noqa: ARG002
        self._transfer.observe(span.seconds)

    def of_link(self, link: str) -> tuple[CountBytes, CountBytes]:
        return self._link.labels(link, "sent").inc, self._link.labels(link, "received").inc

    def recovered(self) -> None:
        """Count an answer that goes on with another pipeline than it was begun with."""
        self._recovered.inc()

    def lost(self, state: str) -> None:
        self._lost.labels(state).inc()

    def decoded(self, counters: DecodeCounters) -> None:
        self._reused.inc(counters.reused_rows)
        for length in counters.accepted_per_segment:
            self._acceptance.observe(length)

    def tokens(self, number: int, seconds: float, *, first: bool) -> None:
        """Count tokens that went to a client.

        Tokens that come out together are 0 apart, as in the statistics of a request.

        Args:
            seconds: since the request's arrival for its first tokens, else since its tokens before.
        """
        self._tokens.inc(number)
        (self._ttft if first else self._itl).observe(seconds)
        for _ in range(number - 1):
            self._itl.observe(0.0)


_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "flowedge_draining": ("1 while the agent is being stopped.", ()),
    "flowedge_lane_overdue_seconds": ("By how much a computation is beyond its limit.", ()),
    "flowedge_role_ready": ("1 when the role is loaded and its pipeline whole.", ()),
    "flowedge_sessions": ("Sessions that are open.", ()),
    "flowedge_queue_requests": ("Requests that wait to be opened by a draft node.", ()),
    "flowedge_kept_sessions": ("Ended sessions of which caches are kept.", ()),
    "flowedge_queue_segments": ("Segments that wait for the compute thread of a stage.", ()),
    "flowedge_weight_bytes": ("Weights in memory.", ()),
    "flowedge_kv_cache_bytes": ("KV caches allocated on a stage.", ()),
    "flowedge_kv_cache_budget_bytes": ("What KV caches may take on a stage.", ()),
    "flowedge_device_memory_bytes": ("Memory of the device.", ("state",)),
    "flowedge_gpu_memory_bytes": ("Memory of the GPU, once it is used.", ("gpu", "state")),
    "flowedge_throttled": ("1 while heat, power or firmware slows the device down.", ()),
    "flowedge_temperature_celsius": ("Temperature, where the device tells.", ("zone",)),
    "flowedge_power_watts": ("Power, where the board has a monitor.", ("rail",)),
}


class MetricsReadings(Collector):
    """The gauges of one agent. Its methods are called in the threads that serve metrics, and only read."""

    def __init__(
        self, device: str, roles: RoleHolder, compute: ComputeThread, throttling: ThrottlingWatch
    ) -> None:
        self._device = device
        self._roles = roles
        self._compute = compute
        self._throttling = throttling

    def describe(self) -> Iterator[Metric]:
        """Yield all metrics, also those for which this device has no value."""
        for name, text in _INFOS.items():
            yield InfoMetricFamily(name, text)
        for name, (text, labels) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterator[Metric]:
        about = {"device": self._device, "version": VERSION, "protocol": str(PROTOCOL_VERSION)}
        yield InfoMetricFamily("flowedge_agent", _INFOS["flowedge_agent"], about)
        yield _single("flowedge_draining", float(self._roles.draining))
        yield _single("flowedge_lane_overdue_seconds", self._compute.overdue_s)
        role = self._roles.role
        if role is not None:
            yield from _of_role(role)
        room = read_available_memory()
        memory: dict[tuple[str, ...], float] = {
            ("total",): float(room.total),
            ("available",): float(room.available),
        }
        yield _gauge("flowedge_device_memory_bytes", memory)
        yield _gauge("flowedge_gpu_memory_bytes", _gpu_memory())
        yield _single("flowedge_throttled", float(self._throttling.state.is_on))
        zones: dict[tuple[str, ...], float] = {(zone,): celsius for zone, celsius in temperatures().items()}
        yield _gauge("flowedge_temperature_celsius", zones)
        yield _gauge("flowedge_power_watts", {(rail,): watts for rail, watts in rails().items()})


def _of_role(role: PipelineRole) -> Iterator[Metric]:
    device = pb.Device()
    role.describe(device)
    if device.role:
        layers = f"{device.layer_start}-{device.layer_stop - 1}" if device.layer_stop else ""
        about = {
            "role": device.role,
            "model": role.config.model,
            "layers": layers,
            "quant": role.config.quant,
            "drafter": drafter_label(role.config.drafters) if role.leads else "",
        }
        yield InfoMetricFamily("flowedge_role", _INFOS["flowedge_role"], about)
    yield _single("flowedge_role_ready", float(role.ready))
    load = role.load()
    yield _single("flowedge_sessions", load.sessions)
    yield _single("flowedge_kept_sessions", load.retained)
    yield _single("flowedge_weight_bytes", device.weight_bytes)
    if role.leads:
        yield _single("flowedge_queue_requests", load.waiting)
    stage = role.stage if role.leads else role
    if stage is not None:
        yield _single("flowedge_queue_segments", stage.load().queued)
        yield _single("flowedge_kv_cache_bytes", device.cache_bytes)
        yield _single("flowedge_kv_cache_budget_bytes", stage.cache_budget)


def _gpu_memory() -> dict[tuple[str, ...], float]:
    """Return bytes by GPU and state. A reading must not initialise CUDA: before that the result is empty."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    values: dict[tuple[str, ...], float] = {}
    for gpu in range(torch.cuda.device_count()):
        available, total = torch.cuda.mem_get_info(gpu)
        values[str(gpu), "available"], values[str(gpu), "total"] = float(available), float(total)
    return values


def _single(name: str, value: float) -> Metric:
    return _gauge(name, {(): value})


def _gauge(name: str, values: dict[tuple[str, ...], float]) -> Metric:
    text, labels = _GAUGES[name]
    family = GaugeMetricFamily(name, text, labels=labels)
    for labelled, value in values.items():
        family.add_metric(labelled, value)
    return family
