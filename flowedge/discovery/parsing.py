"""Reading of announcements. Everything that multicast brings is checked here, and nothing here raises."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowedge.core.errors import ProtocolError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.interfaces import Interface, by_reachability
from flowedge.discovery.settings import SERVICE_TYPE
from flowedge.network.address import join_address

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


MAX_ADDRESSES = 16  # of one device
MAX_TXT_BYTES = 1300  # RFC 6763, section 6.2
_READ_HOSTS = 64  # addresses of one announcement that are looked at
_SHOWN = 80  # characters of a name in the log
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class RawAnnouncement:
    """An announcement as it came off the network.

    Attributes:
        name: of the instance, with the service type.
        hosts: IP addresses as text.
        txt: the TXT record: strings with their lengths in front.
    """

    name: str
    port: int | None
    hosts: Sequence[str]
    txt: bytes


@dataclass(frozen=True)
class IgnoredAnnouncement:
    """An announcement that is not used.

    Attributes:
        name: of the instance, shortened, with everything that is not ASCII escaped.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"the announcement {self.name} is ignored: {self.reason}"


def name_fault(name: str, service_type: str = SERVICE_TYPE) -> str | None:
    """Return why no agent announces itself by this name of an instance; None if an agent may."""
    instance, dot, rest = name.partition(f".{service_type}")
    if not dot or rest:
        return f"its name does not end with .{service_type}"
    if not _INSTANCE.fullmatch(instance):
        return "its name is not made of 1 to 63 letters, digits, dots, hyphens and underscores"
    return None


def read_announcement(
    raw: RawAnnouncement, interfaces: Sequence[Interface], service_type: str = SERVICE_TYPE
) -> AdvertisedDevice | IgnoredAnnouncement:
    """Return the device that an announcement describes, or why the announcement is ignored.

    Addresses outside of the networks of this machine are left out, so that nobody on the network can have
    this machine open connections elsewhere.

    Args:
        interfaces: that are searched, each with the addresses that are used.
    """
    fault = name_fault(raw.name, service_type)
    if fault is not None:
        return _ignored(raw, fault)
    if raw.port is None or not 0 < raw.port < 65536:
        return _ignored(raw, "it has no port")
    if len(raw.txt) > MAX_TXT_BYTES:
        return _ignored(raw, f"its TXT record has {len(raw.txt)} bytes, {MAX_TXT_BYTES} at most are read")
    networks = LocalNetworks.of(interfaces)
    refusals = {host: networks.refusal(host) for host in raw.hosts[:_READ_HOSTS]}
    addresses = {join_address(host, raw.port) for host, refusal in refusals.items() if refusal is None}
    if not addresses:
        reasons = "; ".join(f"{host!a}: {refusal}" for host, refusal in [*refusals.items()][:4])
        return _ignored(
            raw,
            f"none of its addresses is used ({reasons or 'it has none'}); an agent in another network is "
            "named in discovery.peers",
        )
    reachable = by_reachability(addresses, interfaces)[:MAX_ADDRESSES]
    try:
        return AdvertisedDevice.from_txt(txt_fields(raw.txt), *reachable)
    except ProtocolError as error:
        return _ignored(raw, str(error))


def txt_fields(txt: bytes) -> dict[bytes, bytes | None]:
    """Return the fields of a TXT record (RFC 6763, section 6); the first field of a name counts."""
    fields: dict[bytes, bytes | None] = {}
    at = 0
    while at < len(txt):
        end = at + 1 + txt[at]
        if end > len(txt):
            break
        key, equals, value = txt[at + 1 : end].partition(b"=")
        if key:
            fields.setdefault(key.lower(), value if equals else None)
        at = end
    return fields


def shown_name(name: str) -> str:
    """Return the name of an instance for the log."""
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")


def _ignored(raw: RawAnnouncement, reason: str) -> IgnoredAnnouncement:
    return IgnoredAnnouncement(shown_name(raw.name), reason)
