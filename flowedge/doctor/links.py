"""Whether the links between this device's agent and others are fast enough, in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowedge.client.device import IDLE
from flowedge.client.survey import SurveyedAgent
from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.doctor.finding import INFO, WARNING, Finding
from flowedge.doctor.known_agents import KnownAgents
from flowedge.doctor.ports import NOT_REACHED_BACK
from flowedge.network.address import join_address, split_address
from flowedge.planning.measuring.link_rates import Measure, measure_rate

SLOW_BITS_PER_S = 50e6  # a segment of 16 rows of a 7B model in half precision takes 20 ms
SLOW_ROUND_TRIP_S = 0.02

LINK_SLOW = WARNING(
    "link-slow",
    "a link carries less than the bound (--slow, 50 Mbit/s)",
    "Use a cable, or 5 GHz Wi-Fi near the access point; look for a switch port that negotiated 10 Mbit/s "
    "with ethtool, and for other traffic.",
)
LINK_LATENCY = WARNING(
    "link-latency",
    "a small message takes more than 20 ms there and back",
    "Turn Wi-Fi power saving off (iw dev INTERFACE set power_save off), or use a cable.",
)
LINK_UNKNOWN = INFO(
    "link-not-measured",
    "a link could not be measured",
    "Links are measured between idle agents: free them with flowedge release, or ask again later.",
)
KINDS = (LINK_SLOW, LINK_LATENCY, LINK_UNKNOWN)


@dataclass(frozen=True)
class LinkFacts:
    """One direction of a link; rate and round trip are None when `problem` says why."""

    sender: str
    receiver: str
    bits_per_s: float | None = None
    round_trip_s: float | None = None
    problem: str | None = None


def judge_links(links: Sequence[LinkFacts], slow_bits_per_s: float = SLOW_BITS_PER_S) -> list[Finding]:
    findings = []
    for link in links:
        direction = f"from {link.sender} to {link.receiver}"
        if link.problem is not None:
            findings.append(Finding(LINK_UNKNOWN, link.sender, f"{direction}: {link.problem}"))
        if link.bits_per_s is not None and link.bits_per_s < slow_bits_per_s:
            findings.append(
                Finding(LINK_SLOW, link.sender, f"{link.bits_per_s / 1e6:.1f} Mbit/s {direction}")
            )
        if link.round_trip_s is not None and link.round_trip_s > SLOW_ROUND_TRIP_S:
            detail = f"{1000 * link.round_trip_s:.0f} ms {direction} and back"
            findings.append(Finding(LINK_LATENCY, link.sender, detail))
    return findings


def measure_links(
    found: KnownAgents, local: Mapping[str, str], measure: Measure = measure_rate
) -> tuple[list[LinkFacts], list[Finding]]:
    """Measure links there and back; return them, and findings of agents that cannot reach this device's own.

    local: this device's IP address on the route to each agent, by the agent's address.
    """
    own = found.measurer
    links: list[LinkFacts] = []
    findings: list[Finding] = []
    if own is None:
        return links, findings
    for other in found.answering:
        busy = _busy(own) or _busy(other)
        if busy is not None:
            links.append(LinkFacts(own.name, other.name, problem=busy))
            continue
        back = our_address(own, local.get(other.address, ""))
        for sender, receiver, address in ((own, other, other.address), (other, own, back)):
            try:
                rate = measure(sender.address, address, receiver.id)
            except FlowEdgeError as error:
                if receiver is own and isinstance(error, DeviceLostError) and error.device == back:
                    detail = f"{other.name} does not reach the agent of this device at {back}: {error.reason}"
                    findings.append(Finding(NOT_REACHED_BACK, own.name, detail))
                else:
                    links.append(LinkFacts(sender.name, receiver.name, problem=str(error)))
            else:
                links.append(LinkFacts(sender.name, receiver.name, rate.bits_per_s, min(rate.round_trips)))
    return links, findings


def our_address(own: SurveyedAgent, ip: str) -> str:
    """Return our agent's address at an IP address of ours; its usual address if it has none there."""
    address = join_address(ip, split_address(own.address)[1]) if ip else own.address
    return address if address in own.addresses else own.address


def _busy(agent: SurveyedAgent) -> str | None:
    role = agent.answer.device.role if agent.answer is not None else "lost"
    return None if role == IDLE else f"{agent.name} is not idle but a {role}"
