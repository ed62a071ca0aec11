"""Whether multicast passes, which zeroconf needs."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowedge.discovery.discovery import question_for
from flowedge.discovery.interfaces import Interface, InterfaceChoice, choose
from flowedge.discovery.settings import DiscoverySettings
from flowedge.doctor.finding import ERROR, INFO, Finding

NO_NETWORK = ERROR(
    "no-network",
    "no interface leads to other devices",
    "Connect the device, or correct discovery.allow and discovery.deny in the configuration.",
)
MULTICAST_OFF = ERROR(
    "multicast-off",
    "an interface does not carry multicast",
    "Turn it on: ip link set dev INTERFACE multicast on; or name agents in discovery.peers.",
)
MULTICAST_BLOCKED = ERROR(
    "multicast-blocked",
    "this device does not hear what it sends to 224.0.0.251:5353 itself",
    "Open UDP port 5353 in this device's firewall, in and out; let no other program hold it exclusively.",
)
MULTICAST_ALONE = INFO(
    "multicast-alone",
    "no other host was heard by multicast",
    "Nothing, if there are no other devices. Otherwise look for client isolation on the access point, and "
    "for IGMP snooping without a querier on the switch.",
)
MULTICAST_LOST = ERROR(
    "multicast-lost",
    "an agent answers at its address, but its announcement does not arrive",
    "Start it without --no-advertise; let switches, access points and firewalls between the two pass UDP to "
    "224.0.0.251:5353, or name the agent in discovery.peers.",
)
KINDS = (NO_NETWORK, MULTICAST_OFF, MULTICAST_BLOCKED, MULTICAST_ALONE, MULTICAST_LOST)

_GROUP, _PORT = "224.0.0.251", 5353
_IP_MULTICAST_ALL = 49  # linux/in.h; with 0 a socket hears only the interface that it joined on
_SERVICES = "_services._dns-sd._udp.local."  # every mDNS responder answers this question


@dataclass(frozen=True)
class MulticastTraffic:
    """What was heard on an interface.

    Attributes:
        own: whether our own question came back.
        others: addresses of other hosts that sent anything.
        problem: why the interface could not be listened to; None when it could.
    """

    interface: str
    own: bool
    others: frozenset[str] = frozenset()
    problem: str | None = None


def judge_interfaces(choice: InterfaceChoice, settings: DiscoverySettings, device: str) -> list[Finding]:
    findings = [
        Finding(MULTICAST_OFF, device, f"{out.interface} does not carry multicast, and is not used")
        for out in choice.left_out
        if not out.interface.multicast
        and choose([replace(out.interface, multicast=True)], settings.allow, settings.deny).chosen
    ]
    if not choice.networked and not findings:
        reasons = "; ".join(map(str, choice.left_out))
        findings.append(Finding(NO_NETWORK, device, reasons or "there is no interface but loopback"))
    return findings


def judge_multicast(heard: Sequence[MulticastTraffic], device: str) -> list[Finding]:
    findings = [
        Finding(
            MULTICAST_BLOCKED, device, f"on {traffic.interface}: {traffic.problem or 'it did not come back'}"
        )
        for traffic in heard
        if not traffic.own
    ]
    if heard and not findings and not any(traffic.others for traffic in heard):
        names = ", ".join(traffic.interface for traffic in heard)
        findings.append(Finding(MULTICAST_ALONE, device, f"nothing was heard from other hosts on {names}"))
    return findings


def judge_arrival(answering: Sequence[tuple[str, str]], announced: frozenset[str]) -> list[Finding]:
    """Judge whether announcements arrive.

    answering: name and address of each agent that answers; announced: addresses that were announced.
    """
    return [
        Finding(MULTICAST_LOST, name, f"{address} answers, but was not announced here")
        for name, address in answering
        if address not in announced
    ]


def hear(interfaces: Sequence[Interface], seconds: float) -> list[MulticastTraffic]:
    """Ask a question on each interface with IPv4, one after the other, and listen for so many seconds."""
    return [
        _hear(interface.name, interface.multicast_ip, seconds)
        for interface in interfaces
        if ":" not in interface.multicast_ip
    ]


def _hear(name: str, ip: str, seconds: float) -> MulticastTraffic:
    question = _question()
    try:
        with _joined(ip) as listening:
            listening.sendto(question, (_GROUP, _PORT))
            return _listen(listening, name, ip, question, seconds)
    except OSError as error:
        return MulticastTraffic(name, own=False, problem=str(error))


def _listen(
    listening: socket.socket, name: str, ip: str, question: bytes, seconds: float
) -> MulticastTraffic:
    own = False
    others: set[str] = set()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not (own and others):
        listening.settimeout(left)
        try:
            data, (source, _) = listening.recvfrom(9000)
        except TimeoutError:
            break
        if source != ip:
            others.add(source)
        elif data == question:
            own = True
    return MulticastTraffic(name, own, frozenset(others))


def _joined(ip: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        listening.bind(("", _PORT))
        own = socket.inet_aton(ip)
        listening.setsockopt(
            socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", socket.inet_aton(_GROUP), own)
        )
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    except OSError:
        listening.close()
        raise
    return listening


def _question() -> bytes:
    """A question that every responder answers, with a random name that tells it from all others."""
    return bytes(question_for(_SERVICES, f"_{secrets.token_hex(6)}._udp.local.").packets()[0])
