"""Rates of the links between idle agents, for `flowedge devices --rate` and the doctor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowedge.client.device import IDLE
from flowedge.client.survey import SurveyedAgent
from flowedge.core.errors import FlowEdgeError
from flowedge.network.address import is_loopback
from flowedge.planning.measuring.measure import measure_link
from flowedge.planning.profile.measurement import LinkMeasurement

RATE_BYTES = 8 << 20
RATE_ROUND_TRIPS = 20


@dataclass(frozen=True)
class LinkRate:
    """The link from one agent to another.

    Attributes:
        to: name of the receiver; empty when there is no receiver.
        bits_per_s, round_trip_s: None when `problem` says why they are not known.
    """

    to: str
    bits_per_s: float | None = None
    round_trip_s: float | None = None
    problem: str | None = None


Measure = Callable[[str, str, str], LinkMeasurement]
"""Measures a link; the arguments are the sender's address, the receiver's address and the receiver's id."""


def measure_rate(address: str, peer: str, peer_id: str) -> LinkMeasurement:
    """Measure a link with little data (see `measure_link`)."""
    return measure_link(address, peer, peer_id, num_bytes=RATE_BYTES, round_trips=RATE_ROUND_TRIPS)


def ring(agents: Sequence[SurveyedAgent]) -> list[tuple[SurveyedAgent, SurveyedAgent]]:
    """Return (sender, receiver) of each link; agents on loopback are a ring of their own."""
    idle = [agent for agent in agents if agent.answer is not None and agent.answer.device.role == IDLE]
    pairs = []
    for local in (False, True):
        members = [agent for agent in idle if is_loopback(agent.address) is local]
        if len(members) > 1:
            pairs += list(zip(members, members[1:] + members[:1], strict=True))
    return pairs


def link_rates(agents: Sequence[SurveyedAgent], measure: Measure = measure_rate) -> dict[str, LinkRate]:
    """Measure each idle agent's link to the next, one after the other; return them by the sender's address.

    An agent that has a role, or for which there is no other idle agent, gets a problem instead of a rate.
    """
    rates = {}
    for sender, receiver in ring(agents):
        try:
            measured = measure(sender.address, receiver.address, receiver.id)
        except FlowEdgeError as error:
            rates[sender.address] = LinkRate(receiver.name, problem=str(error))
        else:
            rates[sender.address] = LinkRate(receiver.name, measured.bits_per_s, min(measured.round_trips))
    for agent in agents:
        if agent.answer is not None and agent.address not in rates:
            role = agent.answer.device.role
            why = "no other idle agent to send to" if role == IDLE else f"not measured: it is a {role}"
            rates[agent.address] = LinkRate("", problem=why)
    return rates
