"""Which connections are open, by the address of the client, and which of these makes room for a new one."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from uvicorn.middleware.proxy_headers import _TrustedHosts

RESERVED = 64  # connections beyond the limit, which only ask how the gateway is
_IPV6_NETWORK = 64  # bits that one customer of a provider has in common


class Evictable(Protocol):
    """What the table does with a connection."""

    def give_way(self) -> None:
        """Close the connection, which has no request under way, for a new one."""


class ConnectionTable:
    """The open connections, with a limit for all together and a share for each address.

    A connection without a request under way makes room for a new one: at the limit of an address its own
    oldest, at the limit of all the oldest of the address that has the most. So silent connections keep
    nobody out. Where every connection has a request, a new one is *reserved*: it may ask for /health only.
    """

    def __init__(self, most: int, most_each: int, proxies: Iterable[str] = ()) -> None:
        """Take the limits, and the addresses or networks of proxies, which have no share."""
        self._most, self._most_each = most, most_each
        self._proxies = _TrustedHosts(list(proxies))
        self._group_of: dict[Evictable, str] = {}
        self._number: Counter[str] = Counter()  # of connections, by group
        self._waiting: dict[str, dict[Evictable, None]] = {}  # without a request, oldest first, by group
        self._reserved: dict[Evictable, None] = {}

    def enter(self, connection: Evictable, address: str) -> bool:
        """Count a new connection; return whether it is an ordinary one, and not reserved."""
        group = group_of(address)
        crowded = self._number[group] >= self._most_each and address not in self._proxies
        if crowded and not self._evict(group):
            return self._reserve(connection)
        # Whoever has most: an address that opens many cannot close those of another that has few.
        if len(self._group_of) >= self._most and not self._evict(self._largest()):
            return self._reserve(connection)
        self._group_of[connection] = group
        self._number[group] += 1
        self.waits(connection)
        return True

    def waits(self, connection: Evictable) -> None:
        """Note that a connection has no request under way."""
        group = self._group_of.get(connection)
        if group is not None:
            self._waiting.setdefault(group, {})[connection] = None

    def works(self, connection: Evictable) -> None:
        """Note that a connection has a request with complete headers."""
        self._reserved.pop(connection, None)
        self._forget_waiting(self._group_of.get(connection, ""), connection)

    def leave(self, connection: Evictable) -> None:
        """Forget a connection that is closed."""
        self._reserved.pop(connection, None)
        group = self._group_of.pop(connection, None)
        if group is None:
            return
        self._forget_waiting(group, connection)
        self._number[group] -= 1
        if not self._number[group]:
            del self._number[group]

    def _reserve(self, connection: Evictable) -> bool:
        if len(self._reserved) >= RESERVED:
            oldest = next(iter(self._reserved))
            del self._reserved[oldest]
            oldest.give_way()
        self._reserved[connection] = None
        return False

    def _evict(self, group: str) -> bool:
        """Close the oldest connection of a group that has no request; return whether there was one."""
        oldest = next(iter(self._waiting.get(group, ())), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.give_way()
        return True

    def _largest(self) -> str:
        return max(self._waiting, key=self._number.__getitem__, default="")

    def _forget_waiting(self, group: str, connection: Evictable) -> None:
        waiting = self._waiting.get(group, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(group, None)


def group_of(address: str) -> str:
    """Return whom an address counts for: an IPv4 address for itself, an IPv6 address for its /64 network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket that is none of IP
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
