"""The record of one request: what a benchmark stores of it and reports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from flowedge.core.errors import BadRequestError, DeadlineError
from flowedge.core.request import Finished, Request, StageReport, Tokens, VerifierCounts
from flowedge.engine.activity import DRAFT, FORWARD
from flowedge.engine.statistics import RequestClock, RequestStatistics
from flowedge.planning.profile.device import Watts
from flowedge.planning.virtual_pipeline import DRAFT_NODE, TimedOutput, places_of, route_lines
from flowedge.strategies.events import TARGET
from flowedge.training.self_generation import is_looping
from flowedge_testbed.trace import Trace, place_name, use_between


@dataclass(frozen=True)
class DeviceUsage:
    """What one device did for a request.

    Attributes:
        device: the name of its place: d0, v1, v2, ..., m1, ...
        busy, transferring, waiting: shares of the decode time.
        busy_s: seconds of computing. These, and all counts, bytes and joules, are of the whole request.
        for_nothing: rows computed that did not become context.
        energy_j: joules; None if the device's profile has no watts.
    """

    device: str
    busy: float
    transferring: float
    waiting: float
    busy_s: float
    rows_computed: int
    rows_trimmed: int
    rows_wasted: int
    for_nothing: int
    aborted: int
    bytes_sent: int
    energy_j: float | None


@dataclass(frozen=True)
class RunRecord:
    """One request; times in seconds.

    Attributes:
        output: a digest of the tokens, by which the outputs of methods are compared.
        loops: whether the output repeats itself (see is_looping), which flatters every drafter.
        latency_s: from the request's arrival to its last token.
        itl_s: times between tokens.
        rows_in_flight, rows_alive_in_flight, segments_in_flight: means over the decode time, as in
            DecodeCounters.
        middles: the devices of the middle models that were used.
        rollbacks, verifiers: as in DecodeCounters.
        model_s: mean seconds of a layer of the draft tree, then of a forward of each middle model, in the
            decode time; 0 if there was none.
        measured_j: joules of all boards from the arrival to the last token; None where it was not measured.
    """

    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    output: str
    loops: bool
    ttft_s: float
    decode_s: float
    latency_s: float
    itl_s: tuple[float, ...]
    accepted_per_segment: tuple[int, ...]
    accepted_per_round: tuple[int, ...]
    segments: int
    empty_segments: int
    prunes: int
    draft_layers: int
    draft_rows_sent: int
    rows_in_flight: float
    rows_alive_in_flight: float
    segments_in_flight: float
    express_bytes: int
    draft_node: DeviceUsage
    stages: tuple[DeviceUsage, ...]
    middles: tuple[DeviceUsage, ...] = ()
    rollbacks: tuple[int, ...] = ()
    verifiers: tuple[VerifierCounts, ...] = ()
    model_s: tuple[float, ...] = ()
    measured_j: float | None = None

    @property
    def devices(self) -> tuple[DeviceUsage, ...]:
        """The draft node, the stages and the middle models' devices, in this order."""
        return (self.draft_node, *self.stages, *self.middles)

    @property
    def token_times_s(self) -> tuple[float, ...]:
        """When each token came out, in seconds from the request's arrival."""
        return tuple(accumulate(self.itl_s, initial=self.ttft_s))

    def tokens_before(self, time_s: float) -> int:
        """Return how many tokens came out before a time, in seconds from the request's arrival."""
        return sum(time < time_s for time in self.token_times_s)

    def speed_from(self, token: int) -> float:
        """Return the tokens/s of the tokens behind that of an index, counted from 0.

        Compare runs of one request over the same tokens, since tokens take longer as the context grows: for
        example over those behind the first token that came out after an event.

        Raises:
            BadRequestError: when no token came out later.
        """
        times = self.token_times_s
        if token >= len(times) or times[-1] <= times[token]:
            raise BadRequestError(
                f"the answer of {self.new_tokens} tokens in {self.latency_s:.3g} s has none that came out "
                f"later than token {token}"
            )
        return (len(times) - 1 - token) / (times[-1] - times[token])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> RunRecord:
        """Return the record that `to_dict` turned into this content, after JSON."""
        values = dict(content)
        for name in ("itl_s", "accepted_per_segment", "accepted_per_round", "rollbacks", "model_s"):
            values[name] = tuple(values[name])
        values["draft_node"] = DeviceUsage(**values["draft_node"])
        for name in ("stages", "middles"):
            values[name] = tuple(DeviceUsage(**device) for device in values[name])
        values["verifiers"] = tuple(_verifier(counts) for counts in values["verifiers"])
        return cls(**values)


def _verifier(content: dict[str, Any]) -> VerifierCounts:
    places = {name: tuple(content[name]) for name in ("compared", "survived")}
    return VerifierCounts(**{**content, **places})


def record_of(
    request: Request,
    outputs: Sequence[TimedOutput],
    trace: Trace,
    watts: Sequence[Watts | None],
    side_counts: Sequence[int] = (),
) -> RunRecord:
    """Return the record of a request that began at time 0; `watts` and `side_counts` as in PipelineProfile.

    Raises:
        DeadlineError: when the request did not finish.
    """
    clock = RequestClock(0.0)
    tokens: list[int] = []
    last = 0.0
    for timed in outputs:
        if isinstance(timed.output, Tokens):
            clock.count(len(timed.output.token_ids), timed.time)
            tokens.extend(timed.output.token_ids)
            last = timed.time
    finished = outputs[-1].output
    if not isinstance(finished, Finished):
        raise DeadlineError(f"session {request.session} did not finish: the pipeline has nothing left to do")
    statistics = clock.statistics(outputs[-1].time, request, finished, trace.express_bytes)
    return record_from(statistics, tokens, last, trace, watts, side_counts)


def record_from(
    statistics: RequestStatistics,
    tokens: Sequence[int],
    latency_s: float,
    trace: Trace,
    watts: Sequence[Watts | None],
    side_counts: Sequence[int],
) -> RunRecord:
    """Return the record of a request from the draft node's statistics.

    Args:
        side_counts: the number of devices of each middle model.
        tokens: the output; latency_s: seconds from the arrival to the last token.
        trace: what the devices did, with the arrival at time 0.
        watts: power of each device, as in PipelineProfile.
    """
    draft_node, *others = _devices(statistics, trace, watts, latency_s)
    middles = tuple(others[len(statistics.stages) :])
    counters, stages = statistics.counters, len(statistics.stages)
    return RunRecord(
        prompt_tokens=statistics.prompt_tokens,
        new_tokens=statistics.new_tokens,
        finish_reason=statistics.finish_reason,
        output=hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16],
        loops=is_looping(tokens),
        ttft_s=statistics.ttft_s,
        decode_s=statistics.decode_s,
        latency_s=latency_s,
        itl_s=statistics.itl_s,
        accepted_per_segment=counters.accepted_per_segment,
        accepted_per_round=counters.accepted_per_round,
        segments=counters.segments,
        empty_segments=counters.empty_segments,
        prunes=counters.prunes,
        draft_layers=counters.draft_layers,
        draft_rows_sent=counters.draft_rows_sent,
        rows_in_flight=counters.rows_in_flight,
        rows_alive_in_flight=counters.rows_alive_in_flight,
        segments_in_flight=counters.segments_in_flight,
        express_bytes=trace.express_bytes,
        draft_node=draft_node,
        stages=tuple(others[:stages]),
        middles=middles,
        rollbacks=counters.rollbacks,
        verifiers=counters.verifiers,
        model_s=_model_s(trace, _used(side_counts, len(middles)), statistics.ttft_s),
    )


def _used(side_counts: Sequence[int], devices: int) -> list[list[int]]:
    """Return the places of each middle model that was used; a hierarchy of fewer leaves the first out."""
    lines = [line for route, line in route_lines(0, side_counts).items() if route != TARGET]
    while sum(map(len, lines)) > devices:
        lines = lines[1:]
    return lines


def _model_s(trace: Trace, middles: Sequence[Sequence[int]], start: float) -> tuple[float, ...]:
    """Return mean seconds of computing, from `start` on: the draft node's layers, each middle's forwards.

    middles: for each middle model, the places of its devices.
    """

    def mean(place: int, kind: str) -> float:
        spans = [
            interval.end - interval.start
            for interval in trace.intervals
            if interval.place == place and interval.kind == kind and interval.start >= start
        ]
        return fmean(spans) if spans else 0.0

    forwards = [sum(mean(place, FORWARD) for place in line) for line in middles]
    return (mean(DRAFT_NODE, DRAFT), *forwards)


def _devices(
    statistics: RequestStatistics, trace: Trace, watts: Sequence[Watts | None], last: float
) -> list[DeviceUsage]:
    reports: list[StageReport] = [
        statistics.draft_node.report,
        *(device.report for device in (*statistics.stages, *statistics.middles)),
    ]
    stages, sides = len(statistics.stages), len(watts) - 1 - len(statistics.stages)
    power = dict(zip(places_of(stages, sides), watts, strict=True))
    places = places_of(stages, sides, sides - len(statistics.middles))
    uses = use_between(trace.intervals, places, statistics.ttft_s, last)
    context = statistics.prompt_tokens + statistics.new_tokens - 1  # the last token's row is not needed
    records: list[DeviceUsage] = []
    for place, report in zip(places, reports, strict=True):
        use, watt = uses[place], power[place]
        idle_s = max(last - report.busy_s, 0.0)
        records.append(
            DeviceUsage(
                device=place_name(place),
                busy=use.busy,
                transferring=use.transferring,
                waiting=use.waiting,
                busy_s=report.busy_s,
                rows_computed=report.rows_computed,
                rows_trimmed=report.rows_trimmed,
                rows_wasted=report.rows_wasted,
                for_nothing=max(report.rows_computed - context, 0),
                aborted=report.aborted,
                bytes_sent=report.bytes_sent,
                energy_j=None if watt is None else report.busy_s * watt.busy + idle_s * watt.idle,
            )
        )
    return records
