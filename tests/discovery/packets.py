"""mDNS packets as an attacker writes them: no library in between checks anything."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence

SERVICE = [b"_flowedge", b"_tcp", b"local"]
_GROUP = ("224.0.0.251", 5353)
_A, _PTR, _TXT, _SRV, _NSEC = 1, 12, 16, 33, 47
Labels = Sequence[bytes]


def response(*records: bytes) -> bytes:
    """Return a response with these answers."""
    return struct.pack(">6H", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)


def pointer(alias: Labels, ttl: int = 4500) -> bytes:
    """Return a PTR record that names an instance of the service."""
    return _record(SERVICE, _PTR, ttl, _name(alias))


def service(name: Labels, host: Labels, port: int, ttl: int = 120) -> bytes:
    return _record(name, _SRV, ttl, struct.pack(">3H", 0, 0, port) + _name(host))


def text(name: Labels, content: bytes, ttl: int = 120) -> bytes:
    return _record(name, _TXT, ttl, content)


def address(host: Labels, ip: str, ttl: int = 120) -> bytes:
    return _record(host, _A, ttl, socket.inet_aton(ip))


def announcement(instance: str, ip: str, port: int, fields: Mapping[str, str]) -> bytes:
    """Return a whole announcement of an agent."""
    name, host = [instance.encode(), *SERVICE], [instance.encode(), b"local"]
    content = b"".join(
        struct.pack("B", len(field)) + field for field in (f"{k}={v}".encode() for k, v in fields.items())
    )
    return response(pointer(name), service(name, host, port), text(name, content), address(host, ip))


def nsec(name: Labels, ttl: int = 4500) -> bytes:
    """Return an NSEC record that lists 65,536 types in 9 kB."""
    windows = b"".join(bytes([window, 32]) + b"\xff" * 32 for window in range(250))
    return _record(name, _NSEC, ttl, _name(name) + windows)


def sender(ip: str = "127.0.0.1") -> socket.socket:
    """Return a socket whose datagrams go to everybody who listens on the interface of an address."""
    sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
    sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    sending.connect(_GROUP)
    return sending


def _record(name: Labels, kind: int, ttl: int, content: bytes) -> bytes:
    return (
        _name(name) + struct.pack(">HHIH", kind, 0x8001 if kind != _PTR else 1, ttl, len(content)) + content
    )


def _name(labels: Labels) -> bytes:
    return b"".join(struct.pack("B", len(label)) + label for label in labels if label) + b"\0"


MALFORMED = (
    response(pointer([b"junk", b"_other", b"_udp", b"local"])),
    response(pointer([b"local"])),
    response(pointer([b""])),
    response(pointer([b"\x1b[31m\xff\x00", *SERVICE])),
    response(pointer([b"x" * 63, b"y" * 63, b"z" * 63, *SERVICE])),
    response(pointer([b"junk", b"flowedge", b"_tcp", b"local"])),
    response(pointer([b"junk", b"_a-very-long-name-of-a-service", b"_tcp", b"local"])),
    response(service([b"\xe2\x80\xae", *SERVICE], [b"host", b"local"], 0)),
    response(pointer([b"half", *SERVICE]), service([b"half", *SERVICE], [b""], 1), b"\xc0"),
    response(pointer([b"huge", *SERVICE]), text([b"huge", *SERVICE], b"\xff" * 4096)),
)
"""Packets that announce what is no agent."""
