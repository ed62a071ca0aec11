"""The counters and histograms of an agent for Prometheus; docs/metrics.md lists them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from flowedge.core.request import DecodeCounters
from flowedge.engine.activity import ABORTED
from flowedge.engine.work_counts import WorkCounts
from flowedge.live.observer import LiveObserver

# 1 ms to 10 s: a layer block of a small model up to a long prompt's chunk on a slow board.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TTFT_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20)
_ROWS = {"rows_computed": "computed", "rows_trimmed": "trimmed", "rows_wasted": "wasted"}


class AgentMetrics(LiveObserver):
    """The counters and histograms of one agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        ProcessCollector(registry=registry)
        self._opened = Counter("flowedge_sessions_opened", "Sessions begun.", registry=registry)
        self._ended = Counter("flowedge_sessions_ended", "Sessions ended.", ["reason"], registry=registry)
        self._segments = Counter(
            "flowedge_segments", "Segments seen to by a stage.", ["outcome"], registry=registry
        )
        self._rows = Counter("flowedge_rows", "Rows seen to by a stage.", ["outcome"], registry=registry)
        self._compute = Histogram(
            "flowedge_compute_seconds",
            "Jobs of the compute lane.",
            ["activity"],
            buckets=SECONDS,
            registry=registry,
        )
        self._transfer = Histogram(
            "flowedge_transfer_seconds",
            "Handing an in-band message to the transport.",
            buckets=SECONDS,
            registry=registry,
        )
        self._link = Counter(
            "flowedge_link_bytes", "Bytes of frames on links.", ["lane", "direction"], registry=registry
        )
        self._tokens = Counter("flowedge_tokens", "Tokens put out to clients.", registry=registry)
        self._acceptance = Histogram(
            "flowedge_acceptance_length",
            "Tokens put out after each segment that came back with live rows.",
            buckets=LENGTHS,
            registry=registry,
        )
        self._ttft = Histogram(
            "flowedge_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=TTFT_SECONDS,
            registry=registry,
        )
        self._itl = Histogram(
            "flowedge_inter_token_seconds",
            "Between two tokens of a request.",
            buckets=SECONDS,
            registry=registry,
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

    def computed(self, activity: str, seconds: float, rows: int) -> None:
        self._compute.labels(activity).observe(seconds)
        if activity == ABORTED:
            self._rows.labels("aborted").inc(rows)

    def transferred(self, seconds: float) -> None:
        self._transfer.observe(seconds)

    def sent(self, lane: str, num_bytes: int) -> None:
        self._link.labels(lane, "sent").inc(num_bytes)

    def received(self, lane: str, num_bytes: int) -> None:
        self._link.labels(lane, "received").inc(num_bytes)

    def decoded(self, counters: DecodeCounters) -> None:
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
