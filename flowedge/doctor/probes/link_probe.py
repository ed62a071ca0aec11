"""Measures the links between this device's agent and others, in both directions."""

from __future__ import annotations

from collections.abc import Mapping

from flowedge.client.device import IDLE
from flowedge.client.survey import Surveyed
from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.doctor.checks.links import LinkFacts
from flowedge.doctor.checks.ports import NOT_REACHED_BACK
from flowedge.doctor.finding import Finding
from flowedge.doctor.peers import Agents
from flowedge.net.address import join_address, split_address
from flowedge.profiling.link_rates import Measure, measure_rate
from flowedge.profiling.measurement import LinkMeasurement


def measure_links(
    found: Agents, local: Mapping[str, str], measure: Measure = measure_rate
) -> tuple[list[LinkFacts], list[Finding]]:
    """Links there and back, and those agents that cannot reach this device's own.

    local: our own IP address on the way to each agent's address.
    """
    own = found.measurer
    links: list[LinkFacts] = []
    findings: list[Finding] = []
    for other in found.answering if own is not None else ():
        assert own is not None
        idle = _busy(own) or _busy(other)
        if idle is not None:
            links.append(LinkFacts(own.name, other.name, problem=idle))
            continue
        links.append(_forward(own, other, measure))
        back = own_address(own, local.get(other.address, ""))
        try:
            links.append(_facts(other, own, measure(other.address, back, own.id)))
        except DeviceLostError as error:
            if error.device == back:
                detail = f"{other.name} does not reach the agent of this device at {back}: {error.reason}"
                findings.append(Finding(NOT_REACHED_BACK, own.name, detail))
            else:
                links.append(LinkFacts(other.name, own.name, problem=str(error)))
        except FlowEdgeError as error:
            links.append(LinkFacts(other.name, own.name, problem=str(error)))
    return links, findings


def own_address(own: Surveyed, ip: str) -> str:
    """The address of our own agent on the interface that leads to another; the usual one if it has none."""
    address = join_address(ip, split_address(own.address)[1]) if ip else own.address
    return address if address in own.addresses else own.address


def _forward(own: Surveyed, other: Surveyed, measure: Measure) -> LinkFacts:
    try:
        return _facts(own, other, measure(own.address, other.address, other.id))
    except FlowEdgeError as error:
        return LinkFacts(own.name, other.name, problem=str(error))


def _facts(sender: Surveyed, receiver: Surveyed, measured: LinkMeasurement) -> LinkFacts:
    return LinkFacts(sender.name, receiver.name, measured.bits_per_s, min(measured.round_trips))


def _busy(one: Surveyed) -> str | None:
    role = one.answer.device.role if one.answer is not None else "lost"
    return None if role == IDLE else f"{one.name} is not idle but a {role}"
