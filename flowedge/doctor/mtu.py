"""Whether packets of full size pass between two devices."""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.doctor.finding import WARNING, Finding
from flowedge.network.address import split_address

MTU_DIFFERS = WARNING(
    "mtu-differs",
    "two devices of a network have interfaces of different MTU",
    "Set the same MTU on every interface of the network: ip link set dev INTERFACE mtu 1500.",
)
MTU_PATH = WARNING(
    "mtu-path",
    "packets as large as the interface sends do not arrive",
    "Set the interface's MTU to what passes, or correct the switch, tunnel or bridge between the two.",
)
KINDS = (MTU_DIFFERS, MTU_PATH)
COMMON = (9000, 4352, 1500, 1492, 1480, 1450, 1420, 1400, 1350, 1280, 1000, 576)  # sizes to try, in bytes
_MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3  # never fragment, and ignore what was learnt of the path before (linux/in.h)
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # bytes of IP and UDP
_SMALL = 576
_TRIES = 2


@dataclass(frozen=True)
class MtuFacts:
    """Sizes of IP packets in bytes.

    Attributes:
        own: MTU of our interface to the device.
        agreed: largest packet that TCP agreed on with the device; None if it is not known.
        passes: largest packet that arrived there; None when the device did not answer.
    """

    device: str
    own: int
    agreed: int | None
    passes: int | None


def judge_mtu(mtus: Sequence[MtuFacts]) -> list[Finding]:
    findings = []
    for mtu in mtus:
        if mtu.agreed is not None and mtu.agreed < mtu.own:
            detail = f"the MTU is {mtu.agreed} there, or on the way, and {mtu.own} on this device"
            findings.append(Finding(MTU_DIFFERS, mtu.device, detail))
        if mtu.passes is not None and mtu.passes < mtu.own:
            detail = f"packets of {mtu.own} bytes are lost on the way there; {mtu.passes} bytes pass"
            findings.append(Finding(MTU_PATH, mtu.device, detail))
    return findings


def passing_size(address: str, own: int, timeout_s: float = 0.5) -> int | None:
    """Return the bytes of the largest IP packet, of COMMON sizes up to our own MTU, that arrives at a host.

    A host answers each packet to a closed UDP port with an ICMP message. Returns None when no answer comes.
    """
    host, port = split_address(address)
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    if not _arrives(family, target, _SMALL, timeout_s):
        return None
    sizes = [size for size in sizes_below(own) if size > _SMALL]
    if sizes and _arrives(family, target, sizes[0], timeout_s):
        return sizes[0]
    first = bisect_left(sizes, True, lo=1, key=lambda size: _arrives(family, target, size, timeout_s))
    return sizes[first] if first < len(sizes) else _SMALL


def sizes_below(own: int) -> list[int]:
    """Return the sizes to try, the largest first, beginning with the interface's own."""
    return [own, *(size for size in COMMON if size < own)]


def _arrives(family: int, target: tuple[object, ...], size: int, timeout_s: float) -> bool:
    for _ in range(_TRIES):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            level, option = _MTU_DISCOVER[socket.AddressFamily(family)]
            probe.setsockopt(level, option, _PROBE)
            probe.settimeout(timeout_s)
            probe.connect(target)
            try:
                probe.send(bytes(size - _HEADERS[socket.AddressFamily(family)]))
                probe.recv(1)
            except ConnectionRefusedError:
                return True
            except OSError:  # too large for the route, or no answer in time
                continue
    return False
