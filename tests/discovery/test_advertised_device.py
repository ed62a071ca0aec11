"""Advertisements are data from the network, and are checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.network.address import join_address, split_address
from flowedge.version import PROTOCOL_VERSION

RECORD = AdvertisedDevice(
    name="küche",
    id="abc-1",
    address="10.0.0.1:7070",
    kind="Raspberry Pi 5",
    memory_total=8 << 30,
    protocol_version=PROTOCOL_VERSION,
    version="0.1.0",
)


def txt(**changes: bytes | None) -> dict[bytes, bytes | None]:
    fields: dict[bytes, bytes | None] = {
        key.encode(): value.encode() for key, value in RECORD.to_txt().items()
    }
    return {**fields, **{key.encode(): value for key, value in changes.items()}}


def test_a_record_survives_the_network() -> None:
    assert AdvertisedDevice.from_txt(txt(), RECORD.address) == RECORD
    assert RECORD.mismatch is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None),
        ("id", b""),
        ("id", b"../../etc"),
        ("id", b"x" * 64),
        ("name", b"\xff\xfe"),
        ("name", b"a\x1b[2Jb"),
        ("name", b"n" * 200),
        ("kind", b"two\nlines"),
        ("memory", b"-1"),
        ("memory", b"1e9"),
        ("memory", b"9" * 40),
        ("memory", "²".encode()),
        ("protocol", b"one"),
        ("protocol", b"70000"),
        ("version", b"\x00"),
    ],
)
def test_a_field_that_is_not_as_it_should_be_is_refused(field: str, value: bytes | None) -> None:
    with pytest.raises(ProtocolError, match=field):
        AdvertisedDevice.from_txt(txt(**{field: value}), RECORD.address)


@given(st.dictionaries(st.sampled_from([b"id", b"name", b"kind", b"memory", b"protocol"]), st.binary()))
def test_garbage_gives_a_record_or_a_typed_error(fields: dict[bytes, bytes]) -> None:
    try:
        record = AdvertisedDevice.from_txt({**txt(), **fields}, RECORD.address)
    except ProtocolError:
        return
    assert record.name.isprintable()
    assert record.memory_total >= 0


def test_another_protocol_version_is_named() -> None:
    newer = PROTOCOL_VERSION + 1
    other = AdvertisedDevice.from_txt(txt(protocol=b"%d" % newer, version=b"7.0"), RECORD.address)
    assert other.mismatch is not None
    assert "küche" in other.mismatch
    assert f"protocol {newer}" in other.mismatch
    assert "7.0" in other.mismatch


def test_addresses() -> None:
    assert split_address("host:1") == ("host", 1)
    assert split_address("[::1]:65535") == ("::1", 65535)
    assert join_address(*split_address("[fd00::2]:80")) == "[fd00::2]:80"


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:0", "host:65536", "host:-1", "host:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadRequestError, match="host:port"):
        split_address(address)
