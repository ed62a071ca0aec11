"""The network interfaces of this machine: which of them discovery uses, and why not the others."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import psutil

from flowedge.network.address import split_address

# Names of interfaces that lead to no other device, or have an address that many devices have.
_VIRTUAL_KINDS = {
    "container bridge": ("docker*", "br-*", "podman*"),
    "container network": ("cni*", "flannel*", "cali*", "lxc*", "lxdbr*"),
    "container link": ("veth*",),
    "bridge of virtual machines": ("virbr*",),
    "link of a virtual machine": ("vnet*",),
    "network of virtual machines": ("vmnet*", "vboxnet*"),
    "VPN": ("tun*", "tap*", "wg*", "tailscale*", "zt*"),
    "VPN or modem": ("ppp*",),
    "USB bridge of a Jetson, with the same address on each": ("l4tbr*",),
}
VIRTUAL = {pattern: kind for kind, patterns in _VIRTUAL_KINDS.items() for pattern in patterns}


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine.

    Attributes:
        addresses: IP addresses with their prefix lengths, "192.168.1.5/24"; IPv6 without a scope.
        multicast: whether the system sends multicast through the interface.
        mtu: bytes.
    """

    name: str
    addresses: tuple[str, ...]
    up: bool = True
    multicast: bool = True
    loopback: bool = False
    mtu: int = 1500

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(address.partition("/")[0] for address in self.addresses)

    @property
    def multicast_ip(self) -> str:
        """The address that stands for the interface in multicast: its first IPv4 address, or else IPv6."""
        return min(self.ips, key=lambda ip: ipaddress.ip_address(ip).version)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.ips)})" if self.addresses else self.name


@dataclass(frozen=True)
class ExcludedInterface:
    """An interface that is not used, and the reason as a sentence for people."""

    interface: Interface
    reason: str

    def __str__(self) -> str:
        return f"{self.interface}: {self.reason}"


@dataclass(frozen=True)
class InterfaceChoice:
    """The interfaces that are used and those that are left out.

    Attributes:
        chosen: loopback included; each interface has only those addresses that are used.
    """

    chosen: tuple[Interface, ...]
    left_out: tuple[ExcludedInterface, ...]

    @property
    def networked(self) -> tuple[Interface, ...]:
        """The chosen interfaces that can lead to other devices."""
        return tuple(interface for interface in self.chosen if not interface.loopback)


def choose(
    interfaces: Iterable[Interface], allow: Sequence[str] = (), deny: Sequence[str] = ()
) -> InterfaceChoice:
    """Choose interfaces by the rules of DiscoverySettings; loopback is used unless it is denied."""
    chosen: list[Interface] = []
    left_out: list[ExcludedInterface] = []
    for interface in interfaces:
        decided = _decide(interface, allow, deny)
        if isinstance(decided, Interface):
            chosen.append(decided)
        else:
            left_out.append(ExcludedInterface(interface, decided))
    return InterfaceChoice(tuple(chosen), tuple(left_out))


def local_interfaces() -> list[Interface]:
    """Return the interfaces of this machine, sorted by name."""
    stats = psutil.net_if_stats()
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state = stats.get(name)
        flags = set(state.flags.split(",")) if state is not None else set()
        found.append(
            Interface(
                name,
                tuple(
                    f"{address.address.partition('%')[0]}/{_prefix(address.netmask, address.family)}"
                    for address in addresses
                    if address.family in (socket.AF_INET, socket.AF_INET6)
                ),
                up=state is not None and state.isup,
                multicast="multicast" in flags,
                loopback="loopback" in flags,
                mtu=state.mtu if state is not None else 0,
            )
        )
    return found


def shares_host(addresses: Sequence[str], interfaces: Sequence[Interface]) -> bool:
    """Return whether two devices at addresses "host:port" are on one host, or one is on this machine.

    interfaces: of this machine.
    """
    hosts = [split_address(address)[0].partition("%")[0] for address in addresses]
    own = {"localhost", *(ip for interface in interfaces for ip in interface.ips)}
    return len({*hosts}) < len(hosts) or not own.isdisjoint(hosts)


def by_reachability(addresses: Iterable[str], interfaces: Sequence[Interface]) -> list[str]:
    """Sort addresses "host:port" of another device by how well this machine should reach them.

    Addresses in the network of an interface come first, then other addresses, loopback last; within each
    group IPv4 comes before IPv6.
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


def _decide(interface: Interface, allow: Sequence[str], deny: Sequence[str]) -> Interface | str:  # noqa: PLR0911
    if not interface.up:
        return "it is down"
    if not interface.addresses:
        return "it has no IP address"
    denied = _matching(interface, deny)
    if len(denied) == len(interface.addresses):
        return f"discovery.deny names {_first_match(interface, deny)!r}"
    usable = tuple(address for address in interface.addresses if address not in denied)
    if interface.loopback:
        return replace(interface, addresses=usable)
    allowed = tuple(address for address in usable if address in _matching(interface, allow))
    virtual = next((pattern for pattern in VIRTUAL if fnmatchcase(interface.name, pattern)), None)
    if allow and not allowed:
        return "discovery.allow does not name it"
    if virtual is not None and not allowed:
        return f'{VIRTUAL[virtual]} ({virtual}); discovery.allow = ["{interface.name}"] would use it alone'
    if not interface.multicast:
        return f"it carries no multicast; `ip link set dev {interface.name} multicast on` changes that"
    return replace(interface, addresses=allowed or usable)


def _matching(interface: Interface, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that match a pattern: all when a pattern matches the interface's name."""
    if any(fnmatchcase(interface.name, pattern) for pattern in patterns):
        return interface.addresses
    return tuple(
        address
        for address in interface.addresses
        if any(_in_subnet(address, pattern) for pattern in patterns)
    )


def _first_match(interface: Interface, patterns: Sequence[str]) -> str:
    return next(pattern for pattern in patterns if _matching(interface, [pattern]))


def _in_subnet(address: str, pattern: str) -> bool:
    try:
        network = ipaddress.ip_network(pattern, strict=False)
    except ValueError:  # a name
        return False
    return ipaddress.ip_address(address.partition("/")[0]) in network


def _prefix(netmask: str | None, family: int) -> int:
    bits = 32 if family == socket.AF_INET else 128
    if netmask is None:
        return bits
    return int(ipaddress.ip_address(netmask)).bit_count()
