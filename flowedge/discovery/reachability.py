"""Which of a device's addresses to try first."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from flowedge.discovery.interfaces import Interface
from flowedge.net.address import split_address


def by_reachability(addresses: Iterable[str], interfaces: Sequence[Interface]) -> list[str]:
    """Addresses "host:port", those first that one of our own interfaces has a direct way to.

    Then IPv4 goes before IPv6, and loopback comes last.
    """
    networks = [
        ipaddress.ip_interface(address).network
        for interface in interfaces
        if not interface.loopback
        for address in interface.addresses
    ]

    def rank(address: str) -> tuple[bool, bool, bool, str]:
        ip = ipaddress.ip_address(split_address(address)[0].partition("%")[0])
        direct = any(ip in network for network in networks)
        return (ip.is_loopback, not direct, ip.version == 6, address)

    return sorted(addresses, key=rank)
