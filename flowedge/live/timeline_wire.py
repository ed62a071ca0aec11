"""Timelines as protobuf messages, which are checked when they are decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowedge.core.errors import ProtocolError
from flowedge.engine.activity import ACTIVITIES
from flowedge.live.timeline import MAX_EVENTS, TimelineEvent
from flowedge.v1 import agent_pb2 as pb

_CODES: dict[str, int] = {kind: pb.Activity.Value(f"ACTIVITY_{kind.upper()}") for kind in ACTIVITIES}
_KINDS = {code: kind for kind, code in _CODES.items()}


def encode(events: Sequence[TimelineEvent], dropped: int) -> pb.TimelineReply:
    """Return the message that carries events; `dropped` older ones are missing."""
    return pb.TimelineReply(
        activity=[_CODES[event.kind] for event in events],  # type: ignore[misc]
        start_s=[event.start for event in events],
        end_s=[event.end for event in events],
        rows=[event.rows for event in events],
        dropped=dropped,
    )


def decode(reply: pb.TimelineReply, device: str) -> tuple[list[TimelineEvent], int]:
    """Return the events of a device, and how many older ones were dropped.

    Raises:
        ProtocolError: when the message makes no sense; it names the device.
    """
    count = len(reply.activity)
    if count > MAX_EVENTS or not count == len(reply.start_s) == len(reply.end_s) == len(reply.rows):
        raise ProtocolError(
            f"device {device} sent a timeline of {count} kinds, {len(reply.start_s)} starts, "
            f"{len(reply.end_s)} ends and {len(reply.rows)} rows; at most {MAX_EVENTS} of each are taken"
        )
    events: list[TimelineEvent] = []
    for code, start, end, rows in zip(reply.activity, reply.start_s, reply.end_s, reply.rows, strict=True):
        kind = _KINDS.get(code)
        if kind is None:
            raise ProtocolError(f"device {device} sent a timeline with the unknown activity {code}")
        if not (math.isfinite(start) and math.isfinite(end) and start <= end):
            raise ProtocolError(f"device {device} sent a timeline in which {kind} goes from {start} to {end}")
        events.append(TimelineEvent(kind, start, end, rows))
    return events, reply.dropped
