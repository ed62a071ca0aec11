"""What the devices of a pipeline did for a session, in the caller's time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from flowedge.client.channel import CHANNEL_OPTIONS, check_address
from flowedge.client.clock_offset import ClockOffset, Exchange
from flowedge.client.stubs import agent_stub
from flowedge.core.errors import ProtocolError
from flowedge.live.timeline import TimelineEvent
from flowedge.live.timeline_wire import decode
from flowedge.net.grpc_status import from_status
from flowedge.security.tls.channels import open_sync_channel
from flowedge.v1 import agent_pb2 as pb

EXCHANGES = 12  # the shortest of a few round trips is close to the shortest there is
ANSWER_S = 10.0  # each answer has to come within this


@dataclass(frozen=True)
class DeviceTimeline:
    """One device's events of a session.

    Attributes:
        events: in seconds of the caller's time.monotonic(), in the order they ended.
        dropped: older events that the device has forgotten.
    """

    address: str
    events: tuple[TimelineEvent, ...]
    dropped: int
    offset: ClockOffset


def fetch_timelines(
    addresses: Sequence[str], session: str, answer_s: float = ANSWER_S
) -> list[DeviceTimeline]:
    """The timelines of these agents for a session, as they are now; the session is not touched.

    answer_s: how long an agent may take for each answer.
    Raises DeviceLostError or DeadlineError for an agent that does not answer, DeviceError for one without a
    role, ProtocolError for answers that make no sense.
    """
    return [_fetch(check_address(address), session, answer_s) for address in addresses]


def measure_offset(address: str, exchanges: int = EXCHANGES, answer_s: float = ANSWER_S) -> ClockOffset:
    """An agent's clock against this process's time.monotonic(). Raises what `fetch_timelines` does."""
    with open_sync_channel(check_address(address), CHANNEL_OPTIONS) as channel:
        return _offset(agent_stub(channel), address, exchanges, answer_s)


def _fetch(address: str, session: str, answer_s: float) -> DeviceTimeline:
    with open_sync_channel(address, CHANNEL_OPTIONS) as channel:
        stub = agent_stub(channel)
        try:
            reply = stub.Timeline(pb.TimelineRequest(session=session), timeout=answer_s)
        except grpc.RpcError as error:
            raise from_status(error, address) from error
        events, dropped = decode(reply, address)
        offset = _offset(stub, address, EXCHANGES, answer_s)
    return DeviceTimeline(address, tuple(_moved(event, offset) for event in events), dropped, offset)


def _offset(stub: Any, address: str, exchanges: int, answer_s: float) -> ClockOffset:
    return ClockOffset.estimate([exchange_clocks(stub, address, answer_s) for _ in range(exchanges)])


def exchange_clocks(stub: Any, address: str, answer_s: float) -> Exchange:
    """One question for an agent's clocks. Raises what `fetch_timelines` does."""
    sent = time.monotonic()
    try:
        reply = stub.Clock(pb.ClockRequest(), timeout=answer_s)
    except grpc.RpcError as error:
        raise from_status(error, address) from error
    received, wall = time.monotonic(), time.time()
    if not (math.isfinite(reply.now_s) and math.isfinite(reply.wall_s)):
        raise ProtocolError(f"device {address} says that its clock is at {reply.now_s}")
    return Exchange(sent, received, reply.now_s, wall, reply.wall_s)


def _moved(event: TimelineEvent, offset: ClockOffset) -> TimelineEvent:
    return event._replace(start=offset.to_caller(event.start), end=offset.to_caller(event.end))
