"""Announcements are read in one place, which never raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.interfaces import Interface
from flowedge.discovery.parsing import (
    MAX_TXT_BYTES,
    IgnoredAnnouncement,
    LocalNetworks,
    RawAnnouncement,
    name_fault,
    read_announcement,
    txt_fields,
)
from flowedge.discovery.settings import SERVICE_TYPE
from tests.discovery.test_advertised_device import RECORD

LO = Interface("lo", ("127.0.0.1/8", "::1/128"), multicast=False, loopback=True)
ETH0 = Interface("eth0", ("192.168.1.5/24", "fe80::5/64", "fd00::5/64"))
INTERFACES = (LO, ETH0)
NAME = f"board-1.{SERVICE_TYPE}"
FIELDS = {key.encode(): value.encode() for key, value in RECORD.to_txt().items()}


def packed(fields: dict[bytes, bytes]) -> bytes:
    strings = [key + b"=" + value for key, value in fields.items()]
    return b"".join(bytes([len(string)]) + string for string in strings if len(string) < 256)


def read(
    *hosts: str, name: str = NAME, port: int | None = 7070, txt: bytes = packed(FIELDS)
) -> AdvertisedDevice | IgnoredAnnouncement:
    return read_announcement(RawAnnouncement(name, port, hosts, txt), INTERFACES)


def reason(*hosts: str, **changes: object) -> str:
    found = read(*hosts, **changes)  # type: ignore[arg-type]
    assert isinstance(found, IgnoredAnnouncement)
    return str(found)


def test_an_announcement_becomes_a_device_with_the_addresses_of_common_networks() -> None:
    device = read("8.8.8.8", "127.0.0.1", "fe80::9%eth0", "192.168.1.9", "10.1.1.1", "fd00::9")
    assert isinstance(device, AdvertisedDevice)
    assert device.addresses == ("192.168.1.9:7070", "[fd00::9]:7070", "[fe80::9%eth0]:7070", "127.0.0.1:7070")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("8.8.8.8", "in no network of this machine"),
        ("192.168.2.1", "in no network of this machine"),
        ("::ffff:192.168.1.9", "in no network of this machine"),
        ("2001:db8::1", "in no network of this machine"),
        ("192.168.1.255", "broadcast"),
        ("224.0.0.251", "no device can have it"),
        ("0.0.0.0", "no device can have it"),
        ("::", "no device can have it"),
        ("example.org", "not an IP address"),
        ("\x1b[2J", r"'\x1b[2J': it is not an IP address"),
    ],
)
def test_an_address_outside_of_the_networks_of_this_machine_is_not_used(host: str, why: str) -> None:
    assert why in reason(host)
    assert LocalNetworks.of(INTERFACES).refusal(host) is not None


def test_loopback_is_used_only_where_it_is_searched() -> None:
    assert LocalNetworks.of([LO]).refusal("127.0.0.1") is None
    assert LocalNetworks.of([ETH0]).refusal("127.0.0.1") is not None


@pytest.mark.parametrize(
    "name",
    [
        "",
        SERVICE_TYPE,
        f".{SERVICE_TYPE}",
        "junk._other._udp.local.",
        f"a\x1b[31m.{SERVICE_TYPE}",
        f"{'x' * 64}.{SERVICE_TYPE}",
        f"a b.{SERVICE_TYPE}",
        f"\u202eabc.{SERVICE_TYPE}",
        f"{NAME}.{SERVICE_TYPE}",
    ],
)
def test_a_name_that_no_agent_has_is_ignored_and_shown_in_ascii(name: str) -> None:
    assert name_fault(name) is not None
    shown = reason("192.168.1.9", name=name)
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize("port", [None, 0, -1, 65536])
def test_a_port_that_is_none_is_ignored(port: int | None) -> None:
    assert "no port" in reason("192.168.1.9", port=port)


def test_a_huge_txt_record_is_ignored() -> None:
    assert f"{MAX_TXT_BYTES} at most" in reason("192.168.1.9", txt=b"\x00" * (MAX_TXT_BYTES + 1))


def test_fields_of_a_txt_record() -> None:
    txt = b"\x03a=1\x03A=2\x01b\x00\x02=x\x04c=\x00=\x09cut"
    assert txt_fields(txt) == {b"a": b"1", b"b": None, b"c": b"\x00="}


hosts = st.one_of(
    st.sampled_from(["192.168.1.9", "127.0.0.1", "fe80::1%eth0", "fe80::1%", "%", "fd00::1", "8.8.8.8"]),
    st.ip_addresses().map(str),
    st.text(max_size=40),
)


@given(
    name=st.one_of(st.text(max_size=300), st.text(max_size=70).map(lambda text: f"{text}.{SERVICE_TYPE}")),
    port=st.one_of(st.none(), st.integers(-(2**31), 2**31)),
    given_hosts=st.lists(hosts, max_size=100),
    txt=st.one_of(st.binary(max_size=2000), st.just(packed(FIELDS))),
    changes=st.dictionaries(st.sampled_from(sorted(FIELDS)), st.binary(max_size=200)),
)
def test_garbage_gives_a_device_or_a_reason(
    name: str, port: int | None, given_hosts: list[str], txt: bytes, changes: dict[bytes, bytes]
) -> None:
    for content in (txt, packed({**FIELDS, **changes})):
        for tried in (name, NAME):
            found = read_announcement(RawAnnouncement(tried, port, given_hosts, content), INTERFACES)
            if isinstance(found, IgnoredAnnouncement):
                assert found.name.isascii()
                assert str(found).isprintable()
            else:
                networks = LocalNetworks.of(INTERFACES)
                assert all(
                    networks.refusal(address.rpartition(":")[0].strip("[]")) is None
                    for address in found.addresses
                )
                assert found.name.isprintable()
