"""One run on agents: the request, the draft node's statistics and the timelines of all devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from flowedge.client import Client
from flowedge.client.transcript import typed_statistics
from flowedge.core.errors import CapacityError, DeviceLostError, ProtocolError
from flowedge.engine.activity import COMPUTING, PRUNE, REQUEST, TRANSFER
from flowedge.planning.virtual_pipeline import places_of
from flowedge_testbed.live.power_meter import PowerMeter
from flowedge_testbed.live.timelines import DeviceTimeline, fetch_timelines
from flowedge_testbed.load.arrivals import LoadRequest
from flowedge_testbed.record import RunRecord, record_from
from flowedge_testbed.runs import Run, Task
from flowedge_testbed.trace import NO_SESSION, Interval, PruneMark, Trace

ANSWER_S = 3600.0  # a whole answer; a device that falls silent is noticed within seconds


def generate_arguments(run: Run, asked: Task | LoadRequest) -> dict[str, Any]:
    """Return the arguments of a client's `generate` for a request by the method of a run."""
    return {
        "prompt_ids": asked.prompt,
        "strategy": run.strategy,
        "strategy_options": dict(run.options),
        "noise": run.noise,
        "max_new_tokens": asked.max_new_tokens,
        "temperature": asked.sampling.temperature,
        "top_k": asked.sampling.top_k,
        "top_p": asked.sampling.top_p,
        "seed": asked.sampling.seed,
    }


def run_live(
    draft_node: str,
    stages: Sequence[str],
    task: Task,
    run: Run,
    middles: Sequence[str] = (),
    meter: PowerMeter | None = None,
) -> tuple[RunRecord, Trace]:
    """Carry out a run on a ready pipeline of these agents.

    Times are those of the draft node, from the request's arrival there, without the caller's link.

    Args:
        middles: agents of the middle models, of which a method may leave the first ones out.
        meter: reads the boards' power during the request.

    Raises:
        FlowEdgeError: when the request fails.
        CapacityError: when a device has forgotten a part of the request.
        DeviceLostError: when one was lost, and the answer went on, so that its times are no measurement.
    """
    with Client(draft_node, timeout_s=ANSWER_S, recovery_s=0) as client, meter or nullcontext():
        generation = client.generate(**generate_arguments(run, task)).result()
    statistics = typed_statistics(generation.statistics)
    if statistics.recoveries:
        raise DeviceLostError(draft_node, "its pipeline lost a device during the run; run it again")
    tokens = generation.token_ids
    if len(statistics.stages) != len(stages) or statistics.new_tokens != len(tokens):
        raise ProtocolError(
            f"device {draft_node} reports {len(statistics.stages)} stages and {statistics.new_tokens} "
            f"tokens, but there are {len(stages)} and {len(tokens)}"
        )
    unused = len(middles) - len(statistics.middles)
    timelines = fetch_timelines([draft_node, *stages, *middles[unused:]], generation.session)
    places = places_of(len(stages), len(middles), unused)
    trace = trace_of(timelines, statistics.link_bytes.get("express", 0), places)
    # On the virtual clock too a request ends for its client with the last token.
    latency_s = statistics.ttft_s + statistics.decode_s
    setup = run.setup
    record = record_from(statistics, tokens, latency_s, trace, setup.watts, setup.side_counts)
    joules = None if meter is None else meter.joules(latency_s)
    return replace(record, measured_j=joules), trace


def arrival_of(timelines: Sequence[DeviceTimeline]) -> float:
    """Return when the request of these timelines arrived at the draft node, whose timeline is the first.

    Raises:
        ProtocolError: when the draft node reports no arrival, or several.
    """
    arrivals = [event.start for event in timelines[0].events if event.kind == REQUEST]
    if len(arrivals) != 1:
        raise ProtocolError(
            f"device {timelines[0].address} reports {len(arrivals)} arrivals of the request instead of one"
        )
    return arrivals[0]


def trace_of(
    timelines: Sequence[DeviceTimeline],
    express_bytes: int,
    places: Sequence[int],
    began: float | None = None,
    session: int = NO_SESSION,
) -> Trace:
    """Turn the timelines of the devices of a pipeline, the draft node's first, into a trace.

    Args:
        places: of the devices.
        began: time 0 of the trace, on the timelines' clock; the request's arrival if not given.
        session: as in Interval.

    Raises:
        CapacityError: when a device has forgotten a part of the request.
        ProtocolError: when the draft node reports no arrival, or several.
    """
    for timeline in timelines:
        if timeline.dropped:
            raise CapacityError(
                f"device {timeline.address} has forgotten {timeline.dropped} events of the request and kept "
                f"{len(timeline.events)}; ask for fewer new tokens"
            )
    arrived = arrival_of(timelines)
    began = arrived if began is None else began
    trace = Trace(express_bytes=express_bytes)
    for place, timeline in zip(places, timelines, strict=True):
        for event in timeline.events:
            if event.kind == PRUNE:
                trace.prunes.append(PruneMark(place, event.start - began))
            elif event.kind == TRANSFER or event.kind in COMPUTING:
                start, end = event.start - began, event.end - began
                trace.intervals.append(Interval(place, event.kind, start, end, event.rows, session))
    widest = sorted((timeline.offset.uncertainty for timeline in timelines), reverse=True)
    trace.uncertainty_s = sum(widest[:2])  # between the two devices with the least certain clocks
    return trace
