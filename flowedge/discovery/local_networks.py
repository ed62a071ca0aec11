"""The networks that this machine is connected to; announced addresses elsewhere are not used."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from flowedge.discovery.interfaces import Interface

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class LocalNetworks:
    """The networks of the interfaces that are searched.

    Attributes:
        networks: loopback included where it is searched.
    """

    networks: tuple[Network, ...]

    @classmethod
    def of(cls, interfaces: Iterable[Interface]) -> LocalNetworks:
        return cls(
            tuple(
                ipaddress.ip_interface(address).network
                for interface in interfaces
                for address in interface.addresses
            )
        )

    def refusal(self, host: str) -> str | None:
        """Return why an announced IP address is not used; None if a connection may be made to it.

        host: IPv6 with or without a scope, "fe80::5%eth0".
        """
        try:
            ip = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return "it is not an IP address"
        if ip.is_multicast or ip.is_unspecified:
            return "no device can have it"
        network = next((network for network in self.networks if ip in network), None)
        if network is None:
            return "it is in no network of this machine"
        if network.version == 4 and network.prefixlen < 31 and ip == network.broadcast_address:
            return "it is a broadcast address"
        return None
