"""Listens on an interface for multicast DNS, its own question included."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Sequence

from zeroconf._dns import DNSQuestion
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.const import _CLASS_IN, _FLAGS_QR_QUERY, _TYPE_PTR

from flowedge.discovery.interfaces import Interface
from flowedge.doctor.checks.multicast import MulticastTraffic

_GROUP, _PORT = "224.0.0.251", 5353
_IP_MULTICAST_ALL = 49  # linux/in.h; with 0 a socket hears only the interface that it joined on
_SERVICES = "_services._dns-sd._udp.local."  # every mDNS responder answers this question


def hear(interfaces: Sequence[Interface], seconds: float) -> list[MulticastTraffic]:
    """What each interface with IPv4 carries within so many seconds, one after the other."""
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
    """One that is told from all others, and that every responder answers."""
    outgoing = DNSOutgoing(_FLAGS_QR_QUERY)
    for name in (_SERVICES, f"_{secrets.token_hex(6)}._udp.local."):
        outgoing.add_question(DNSQuestion(name, _TYPE_PTR, _CLASS_IN))
    return bytes(outgoing.packets()[0])
