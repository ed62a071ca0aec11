"""Real zeroconf between real processes of this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from flowedge.core.errors import BadRequestError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.advertiser import Advertiser
from flowedge.discovery.discovery import discover
from flowedge.discovery.settings import SERVICE_TYPE
from flowedge.version import PROTOCOL_VERSION


@contextmanager
def advertised(device_id: str, name: str, port: int, protocol: int = PROTOCOL_VERSION) -> Iterator[None]:
    """A process that advertises a device on loopback."""
    command = [sys.executable, "-m", "tests.discovery.advertise", device_id, name, f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*command, str(protocol), "30"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "advertised\n"
        yield
    finally:
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.fixture
def token() -> str:
    """Other tests, and other agents, may be on the same network."""
    return uuid.uuid4().hex[:8]


def test_processes_find_each_other_over_loopback(token: str) -> None:
    names = [f"{token}-{letter}" for letter in "cab"]
    with ExitStack() as stack:
        for index, name in enumerate(names):
            stack.enter_context(advertised(f"id-{name}", name, 5001 + index))
        # Longer than the test may take: the wait ends as soon as all that are wanted have answered.
        found = asyncio.run(discover(10_000.0, want=names))
    assert [record.name for record in found] == sorted(names)
    assert [record.address for record in found] == ["127.0.0.1:5002", "127.0.0.1:5003", "127.0.0.1:5001"]
    assert found[0].memory_total == 1 << 30


def test_a_device_that_left_is_not_found(token: str) -> None:
    with advertised(f"id-{token}", token, 5001):
        assert len(asyncio.run(discover(10.0, want=[token]))) == 1
    assert asyncio.run(discover(1.0, want=[token])) == []


def test_the_search_ends_at_its_deadline(token: str) -> None:
    started = time.monotonic()
    assert asyncio.run(discover(0.5, want=[token])) == []
    assert time.monotonic() - started > 0.4


def test_another_protocol_version_is_found_and_named(token: str) -> None:
    with advertised(f"id-{token}", token, 5001, protocol=PROTOCOL_VERSION + 1):
        (record,) = asyncio.run(discover(10.0, want=[token]))
    assert record.mismatch is not None
    assert token in record.mismatch


def test_a_device_that_advertises_twice_is_listed_once(token: str) -> None:
    """The same id under two names of the service, as after a restart that left no goodbye."""

    async def search() -> list[AdvertisedDevice]:
        first, second = AsyncZeroconf(interfaces=["127.0.0.1"]), AsyncZeroconf(interfaces=["127.0.0.1"])
        try:
            await register(first, f"{token}-old", record_of(token).to_txt(), 5001)
            await register(second, f"{token}-new", record_of(token).to_txt(), 5001)
            return [record for record in await discover(2.0) if record.name == token]
        finally:
            await asyncio.gather(first.async_close(), second.async_close())

    assert len(asyncio.run(search())) == 1


def test_an_advertisement_that_breaks_the_format_is_left_out(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def search() -> list[AdvertisedDevice]:
        zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
        try:
            await register(zeroconf, token, {**record_of(token).to_txt(), "memory": "lots"}, 5001)
            return await discover(1.5)
        finally:
            await zeroconf.async_close()

    assert token not in [record.name for record in asyncio.run(search())]
    assert "memory" in caplog.text


def test_a_name_is_no_address_to_advertise(token: str) -> None:
    record = record_of(token, host="board.example")
    with pytest.raises(BadRequestError, match="IP address"):
        asyncio.run(Advertiser(record).start())


def test_time_to_search_must_be_positive() -> None:
    with pytest.raises(BadRequestError, match="finite and above 0"):
        asyncio.run(discover(0.0))


def record_of(token: str, host: str = "127.0.0.1") -> AdvertisedDevice:
    return AdvertisedDevice(
        name=token,
        id=f"id-{token}",
        address=f"{host}:5001",
        kind="test",
        memory_total=1 << 30,
        protocol_version=PROTOCOL_VERSION,
        version="0.1.0",
    )


async def register(zeroconf: AsyncZeroconf, name: str, txt: dict[str, str], port: int) -> None:
    info = AsyncServiceInfo(
        SERVICE_TYPE,
        f"{name}.{SERVICE_TYPE}",
        parsed_addresses=["127.0.0.1"],
        port=port,
        properties=txt,
        server=f"{name}.local.",
    )
    await (await zeroconf.async_register_service(info, cooperating_responders=True))
