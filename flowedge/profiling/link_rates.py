"""Link rates between agents, measured for people to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowedge.client.device import IDLE
from flowedge.client.survey import Surveyed
from flowedge.core.errors import FlowEdgeError
from flowedge.net.address import is_loopback
from flowedge.profiling.measure import measure_link
from flowedge.profiling.measurement import LinkMeasurement

RATE_BYTES = 8 << 20
RATE_ROUND_TRIPS = 20


@dataclass(frozen=True)
class LinkRate:
    """What one agent sends to another.

    Attributes:
        to: name of the receiver; empty when there is none.
        bits_per_s, round_trip_s: None when `problem` says why they are not known.
    """

    to: str
    bits_per_s: float | None = None
    round_trip_s: float | None = None
    problem: str | None = None


Measure = Callable[[str, str, str], LinkMeasurement]
"""From the agent at an address to the one at another address, whose id is the third."""


def measure_rate(address: str, peer: str, peer_id: str) -> LinkMeasurement:
    """See flowedge.profiling.measure.measure_link."""
    return measure_link(address, peer, peer_id, num_bytes=RATE_BYTES, round_trips=RATE_ROUND_TRIPS)


def ring(agents: Sequence[Surveyed]) -> list[tuple[Surveyed, Surveyed]]:
    """Each idle agent with the next one, which it sends to; agents on loopback are a ring of their own."""
    idle = [one for one in agents if one.answer is not None and one.answer.device.role == IDLE]
    pairs = []
    for local in (False, True):
        members = [one for one in idle if is_loopback(one.address) is local]
        if len(members) > 1:
            pairs += list(zip(members, members[1:] + members[:1], strict=True))
    return pairs


def link_rates(agents: Sequence[Surveyed], measure: Measure = measure_rate) -> dict[str, LinkRate]:
    """The rate of each agent's link to the next, by the address of the sender, one after the other.

    Agents that have a role, and one that no other idle agent is there for, have a problem instead.
    """
    rates = {}
    for sender, receiver in ring(agents):
        try:
            measured = measure(sender.address, receiver.address, receiver.id)
        except FlowEdgeError as error:
            rates[sender.address] = LinkRate(receiver.name, problem=str(error))
        else:
            rates[sender.address] = LinkRate(receiver.name, measured.bits_per_s, min(measured.round_trips))
    for one in agents:
        if one.answer is not None and one.address not in rates:
            role = one.answer.device.role
            why = "no other idle agent to send to" if role == IDLE else f"not measured: it is a {role}"
            rates[one.address] = LinkRate("", problem=why)
    return rates
