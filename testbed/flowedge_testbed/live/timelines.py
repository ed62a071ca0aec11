"""Timelines: what each device of a pipeline did for a session, on the caller's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.client import Client
from flowedge.client.channel import open_stub
from flowedge.client.clock_offset import ClockOffset, exchange_clocks
from flowedge.client.loop_thread import run
from flowedge.live.timeline import TimelineEvent, decode
from flowedge.v1 import agent_pb2 as pb

EXCHANGES = 12  # the shortest of a few round trips is close to the shortest there is
ANSWER_S = 10.0  # seconds for each answer


@dataclass(frozen=True)
class DeviceTimeline:
    """One device's events of a session.

    Attributes:
        events: in the order they ended; times in seconds of the caller's time.monotonic().
        dropped: number of older events that the device no longer has.
    """

    address: str
    events: tuple[TimelineEvent, ...]
    dropped: int
    offset: ClockOffset


def fetch_timelines(
    addresses: Sequence[str], session: str, answer_s: float = ANSWER_S
) -> list[DeviceTimeline]:
    """Return the timelines that these agents have of a session now; the session goes on undisturbed.

    Args:
        answer_s: seconds that an agent may take for each answer.

    Raises:
        DeviceLostError: when an agent cannot be reached.
        DeadlineError: when an agent does not answer in time.
        DeviceError: when an agent has no role.
        ProtocolError: when an answer cannot be read.
    """

    async def fetch_all() -> list[DeviceTimeline]:
        return [await _fetch(address, session, answer_s) for address in addresses]

    return run(fetch_all())


def measure_offset(address: str, exchanges: int = EXCHANGES, answer_s: float = ANSWER_S) -> ClockOffset:
    """Return an agent's clock against this process's time.monotonic()."""
    with Client(address, silence_s=answer_s) as client:
        return ClockOffset.estimate(client.exchange_clocks(exchanges))


async def _fetch(address: str, session: str, answer_s: float) -> DeviceTimeline:
    async with open_stub(address) as stub:
        reply = await stub.Timeline(pb.TimelineRequest(session=session), timeout=answer_s)
        events, dropped = decode(reply, address)
        exchanges = [await exchange_clocks(stub, address, answer_s) for _ in range(EXCHANGES)]
    offset = ClockOffset.estimate(exchanges)
    ours = (
        event._replace(start=offset.to_caller(event.start), end=offset.to_caller(event.end))
        for event in events
    )
    return DeviceTimeline(address, tuple(ours), dropped, offset)
