"""The interfaces that discovery uses, and the reasons against the others."""

from __future__ import annotations

import socket

import pytest

from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.discovery.advertiser import Announcement
from flowedge.discovery.interfaces import (
    VIRTUAL,
    Interface,
    by_reachability,
    choose,
    local_interfaces,
    shares_host,
)
from flowedge.discovery.settings import DiscoverySettings

LO = Interface("lo", ("127.0.0.1/8", "::1/128"), multicast=False, loopback=True)
ETH0 = Interface("eth0", ("192.168.1.5/24", "fe80::5/64"))
WLAN0 = Interface("wlan0", ("10.0.0.5/16",))
DOCKER0 = Interface("docker0", ("172.17.0.1/16",))
ALL = (LO, ETH0, WLAN0, DOCKER0)


def names(*allow: str, deny: tuple[str, ...] = ()) -> list[str]:
    return [interface.name for interface in choose(ALL, allow, deny).chosen]


def test_virtual_interfaces_are_left_out_with_the_reason() -> None:
    choice = choose(ALL)
    assert [interface.name for interface in choice.chosen] == ["lo", "eth0", "wlan0"]
    assert [interface.name for interface in choice.networked] == ["eth0", "wlan0"]
    (left_out,) = choice.left_out
    assert left_out.interface == DOCKER0
    assert "container bridge" in left_out.reason
    assert "discovery.allow" in left_out.reason


@pytest.mark.parametrize(
    "name", ["br-1f2e", "veth9a", "virbr0", "tun0", "tap1", "wg0", "tailscale0", "ztabc"]
)
def test_each_kind_of_virtual_interface_is_known(name: str) -> None:
    (left_out,) = choose([Interface(name, ("10.1.1.1/24",))]).left_out
    assert any(pattern in left_out.reason for pattern in VIRTUAL)


@pytest.mark.parametrize("name", ["br0", "bridge", "enp3s0", "eth0.10", "end0", "wlp2s0", "usb0", "bond0"])
def test_interfaces_of_a_network_are_used(name: str) -> None:
    assert choose([Interface(name, ("10.1.1.1/24",))]).left_out == ()


def test_rules_by_name_and_by_subnet() -> None:
    assert names("eth*") == ["lo", "eth0"]
    assert names("docker0") == ["lo", "docker0"], "a rule that names a virtual interface uses it"
    assert names("172.17.0.0/16", "wlan0") == ["lo", "wlan0", "docker0"]
    assert names(deny=("wlan*",)) == ["lo", "eth0"]
    assert names("wlan0", deny=("10.0.0.0/8",)) == ["lo"], "what is denied goes first"
    assert names(deny=("lo",)) == ["eth0", "wlan0"]


def test_a_subnet_chooses_among_the_addresses_of_an_interface() -> None:
    two = Interface("eth0", ("192.168.1.5/24", "10.0.0.5/24"))
    assert choose([two], ["10.0.0.0/24"]).chosen[0].ips == ("10.0.0.5",)
    assert choose([two], deny=["10.0.0.0/24"]).chosen[0].ips == ("192.168.1.5",)


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        (Interface("eth1", ("10.1.1.1/24",), up=False), "down"),
        (Interface("eth1", ()), "no IP address"),
        (Interface("eth1", ("10.1.1.1/24",), multicast=False), "ip link set dev eth1 multicast on"),
    ],
)
def test_what_cannot_be_used_is_said(interface: Interface, reason: str) -> None:
    (left_out,) = choose([interface]).left_out
    assert reason in left_out.reason


def test_a_wildcard_is_announced_with_the_addresses_of_the_network() -> None:
    planned = Announcement.plan("0.0.0.0", list(ALL), DiscoverySettings())
    assert planned.interfaces == ("127.0.0.1", "192.168.1.5", "10.0.0.5")
    assert planned.addresses == ("192.168.1.5", "10.0.0.5")
    assert len(planned.left_out) == 1
    without = Announcement.plan("0.0.0.0", [each for each in ALL if each != DOCKER0], DiscoverySettings())
    assert planned.left_out and not without.left_out
    assert planned == without, "a container that is started is nothing to announce"
    alone = Announcement.plan("::", [LO], DiscoverySettings())
    assert alone.addresses == ("127.0.0.1", "::1"), "loopback, where there is nothing else"


def test_an_address_that_is_named_is_used_unless_it_is_denied() -> None:
    planned = Announcement.plan("172.17.0.1", list(ALL), DiscoverySettings())
    assert planned == Announcement(("172.17.0.1",), ("172.17.0.1",))
    with pytest.raises(DeviceError, match=r"discovery.deny names 'docker\*'"):
        Announcement.plan("172.17.0.1", list(ALL), DiscoverySettings(deny=("docker*",)))
    with pytest.raises(DeviceError, match="no interface"):
        Announcement.plan("0.0.0.0", [ETH0], DiscoverySettings(deny=("eth0",)))


def test_addresses_with_a_direct_way_are_tried_first() -> None:
    addresses = ["127.0.0.1:7", "172.17.0.1:7", "[fd00::9]:7", "192.168.1.9:7"]
    assert by_reachability(addresses, ALL[:3]) == [
        "192.168.1.9:7",
        "172.17.0.1:7",
        "[fd00::9]:7",
        "127.0.0.1:7",
    ]


def test_devices_of_one_host_are_known_by_their_addresses() -> None:
    own = [Interface("eth0", ("192.168.1.5/24", "fe80::5/64"))]
    assert not shares_host(["192.168.1.6:7070", "192.168.1.7:7070"], own)
    assert shares_host(["192.168.1.6:7070", "192.168.1.6:7071"], own)
    assert shares_host(["192.168.1.5:7070", "192.168.1.7:7070"], own), "one is on this machine"
    assert shares_host(["[fe80::5%eth0]:7070"], own)


def test_settings_that_cannot_be_used_are_refused() -> None:
    for settings in ({"peers": ("board",)}, {"allow": ("",)}, {"ttl_s": 0}, {"poll_s": 0.0}):
        with pytest.raises(BadRequestError):
            DiscoverySettings(**settings)  # type: ignore[arg-type]


def test_this_machine_has_a_loopback_interface() -> None:
    (loopback,) = [interface for interface in local_interfaces() if "127.0.0.1/8" in interface.addresses]
    assert loopback.loopback
    assert loopback.up
    assert loopback.mtu >= 1280
    assert socket.if_nametoindex(loopback.name)
