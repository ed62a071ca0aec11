"""Mutated mDNS packets to a watcher that lives: nothing is raised, and agents are found after them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

import pytest

from flowedge.discovery.discovery import AgentWatcher
from flowedge.discovery.presence import MAX_INSTANCES, PresenceEvent
from tests.discovery.fake_agents import fields
from tests.discovery.packets import MALFORMED, SERVICE, address, announcement, nsec, response, sender, service
from tests.fuzz.mutation import Mutator
from tests.support.blocks import BLOCKS

HOST = [b"host", b"local"]
SEEDS = (
    *MALFORMED,
    *(announcement(f"fake{number}", "127.0.0.1", 5001, fields(number, "0" * 16)) for number in range(3)),
    announcement("cpu", "127.0.0.1", 5001, {**fields(9, "0" * 16), "compute": "cpu", "instance": "1"}),
    response(service([b"moved", *SERVICE], HOST, 65535, ttl=0), address(HOST, "255.255.255.255", ttl=2**31)),
    response(address(HOST, "224.0.0.1"), address(HOST, "0.0.0.0"), nsec(HOST)),
)


@pytest.mark.parametrize(
    ("packets", "seed"),
    [(2_000, 0), *(pytest.param(20_000, seed, marks=pytest.mark.proof) for seed in range(1, 1 + BLOCKS))],
)
def test_whatever_comes_by_multicast_the_search_goes_on(
    packets: int, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    token = uuid.uuid4().hex[:8]
    unforeseen: list[dict[str, Any]] = []
    found = asyncio.Event()

    def on_event(event: PresenceEvent) -> None:
        assert event.device.name.isprintable()
        if event.device.name == token:
            found.set()

    async def search() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unforeseen.append(context))
        mutator = Mutator(seed)
        async with AgentWatcher(on_event=on_event) as watcher:
            with sender() as sending:
                for number in range(packets):
                    sending.send(mutator.spoil(mutator.random.choice(SEEDS))[:8900])
                    if number % 20 == 0:
                        await asyncio.sleep(0.002)
                known = len(watcher.sightings)
                honest = announcement(token, "127.0.0.1", 5001, {**fields(0, "0" * 16), "name": token})
                deadline = time.monotonic() + 60
                while not found.is_set() and time.monotonic() < deadline:
                    sending.send(honest)
                    await asyncio.sleep(0.1)
        return known

    with caplog.at_level(logging.INFO):
        known = asyncio.run(search())
    assert found.is_set()
    assert 0 < known <= MAX_INSTANCES, "the packets were read"
    assert unforeseen == []
    assert "cannot be read" not in caplog.text
    assert "failed" not in caplog.text
