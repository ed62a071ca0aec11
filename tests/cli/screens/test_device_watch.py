"""The lines of `flowedge devices --watch`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from flowedge.cli.screens import device_watch
from flowedge.discovery.discovery import OnEvent
from flowedge.discovery.presence import Change, PresenceEvent
from flowedge.discovery.settings import DiscoverySettings
from tests.discovery.test_advertised_device import RECORD

LONG_S = 60.0  # after which the watch is held to go on for ever


def test_the_watch_ends_when_nobody_reads_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        raise BrokenPipeError

    @contextlib.asynccontextmanager
    async def one_device_came(settings: DiscoverySettings, on_event: OnEvent) -> AsyncIterator[None]:
        on_event(PresenceEvent(Change.CAME, RECORD))
        yield

    monkeypatch.setattr(device_watch, "say", say)
    monkeypatch.setattr(device_watch, "AgentWatcher", one_device_came)
    asyncio.run(asyncio.wait_for(device_watch.watch_events(DiscoverySettings(), as_json=False), LONG_S))
    assert len(lines) == 1
    assert lines[0].endswith(f"{RECORD.name} ({RECORD.address}) came")
