"""Whether multicast passes, on which zeroconf rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowedge.discovery.interfaces import InterfaceChoice, choose
from flowedge.discovery.settings import DiscoverySettings
from flowedge.doctor.finding import Finding, FindingKind, Severity

NO_NETWORK = FindingKind(
    "no-network",
    Severity.ERROR,
    "no interface leads to other devices",
    "Connect the device, or correct discovery.allow and discovery.deny in the configuration.",
)
MULTICAST_OFF = FindingKind(
    "multicast-off",
    Severity.ERROR,
    "an interface does not carry multicast",
    "Turn it on: ip link set dev INTERFACE multicast on; or name agents in discovery.peers.",
)
MULTICAST_BLOCKED = FindingKind(
    "multicast-blocked",
    Severity.ERROR,
    "this device does not hear what it sends to 224.0.0.251:5353 itself",
    "Open UDP port 5353 in this device's firewall, in and out; let no other program hold it exclusively.",
)
MULTICAST_ALONE = FindingKind(
    "multicast-alone",
    Severity.INFO,
    "no other host was heard by multicast",
    "Nothing, if there are no other devices. Otherwise look for client isolation on the access point, and "
    "for IGMP snooping without a querier on the switch.",
)
MULTICAST_LOST = FindingKind(
    "multicast-lost",
    Severity.ERROR,
    "an agent answers at its address, but its announcement does not arrive",
    "Start it without --no-advertise; let switches, access points and firewalls between the two pass UDP to "
    "224.0.0.251:5353, or name the agent in discovery.peers.",
)
KINDS = (NO_NETWORK, MULTICAST_OFF, MULTICAST_BLOCKED, MULTICAST_ALONE, MULTICAST_LOST)


@dataclass(frozen=True)
class MulticastTraffic:
    """What one interface carried while it was listened to.

    Attributes:
        own: whether our own question came back; others: addresses of other hosts that said anything.
        problem: why it could not be tried; None when it could.
    """

    interface: str
    own: bool
    others: frozenset[str] = frozenset()
    problem: str | None = None


def judge_interfaces(choice: InterfaceChoice, settings: DiscoverySettings, device: str) -> list[Finding]:
    """From the interfaces of this device."""
    findings = [
        Finding(MULTICAST_OFF, device, f"{out.interface} does not carry multicast, and is not used")
        for out in choice.left_out
        if not out.interface.multicast
        and choose([replace(out.interface, multicast=True)], settings.allow, settings.deny).chosen
    ]
    if not choice.networked and not findings:
        reasons = "; ".join(f"{out.interface}: {out.reason}" for out in choice.left_out)
        findings.append(Finding(NO_NETWORK, device, reasons or "there is no interface but loopback"))
    return findings


def judge_multicast(heard: Sequence[MulticastTraffic], device: str) -> list[Finding]:
    """From what was heard on each interface that leads to others."""
    findings = [
        Finding(MULTICAST_BLOCKED, device, f"on {one.interface}: {one.problem or 'it did not come back'}")
        for one in heard
        if not one.own
    ]
    if heard and not findings and not any(one.others for one in heard):
        names = ", ".join(one.interface for one in heard)
        findings.append(Finding(MULTICAST_ALONE, device, f"nothing from others on {names}"))
    return findings


def judge_arrival(answering: Sequence[tuple[str, str]], announced: frozenset[str]) -> list[Finding]:
    """From agents that answer, as name and address on the network, and the addresses of announcements."""
    return [
        Finding(MULTICAST_LOST, name, f"{address} answers, but was not announced here")
        for name, address in answering
        if address not in announced
    ]
