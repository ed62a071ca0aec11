"""The largest packet that arrives at a host: a closed UDP port answers each that does."""

from __future__ import annotations

import socket

from flowedge.doctor.checks.mtu import sizes_below
from flowedge.net.address import split_address

_MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3  # never fragment, and do not heed what was learnt before (linux/in.h)
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP
_SMALL = 576
_TRIES = 2


def passing_size(address: str, own: int, timeout_s: float = 0.5) -> int | None:
    """Bytes of the largest IP packet, of the usual sizes up to our own MTU, that arrives there.

    None when the host does not say that it has no such UDP port, so that nothing can be known.
    """
    host, port = split_address(address)
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    if not _arrives(family, target, _SMALL, timeout_s):
        return None
    sizes = [size for size in sizes_below(own) if size > _SMALL]
    low, high = 0, len(sizes)  # the first that arrives is in sizes[low:high], or none is
    if sizes and _arrives(family, target, sizes[0], timeout_s):
        return sizes[0]
    low = 1
    while low < high:
        middle = (low + high) // 2
        if _arrives(family, target, sizes[middle], timeout_s):
            high = middle
        else:
            low = middle + 1
    return sizes[low] if low < len(sizes) else _SMALL


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
            except OSError:  # too long for the way, or no answer in time
                continue
    return False
