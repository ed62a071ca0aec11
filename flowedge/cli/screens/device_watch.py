"""`flowedge devices --watch`: a screen that follows agents as they come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.text import Text

from flowedge.cli.screens.device_rows import device_rows
from flowedge.cli.screens.device_table import console, device_table
from flowedge.client.survey import Surveyed, survey
from flowedge.discovery.presence import Change, PresenceEvent, Sighting
from flowedge.discovery.settings import DiscoverySettings
from flowedge.discovery.watcher import AgentWatcher

SURVEY_S = 2.0  # how often agents are asked
_SHOWN_EVENTS = 8
_WORDS = {
    Change.CAME: "came",
    Change.CHANGED: "changed its announcement",
    Change.RESTARTED: "was started again",
    Change.LEFT: "left",
    Change.STALE: "is stale: nothing was heard of it for as long as its announcement is good for",
    Change.RETURNED: "is back",
    Change.GONE: "is gone: still nothing was heard of it",
}


def event_line(event: PresenceEvent, clock: str) -> str:
    """One change for a person; `clock` is the time of day."""
    return f"{clock} {event.record.name} ({event.record.address}) {_WORDS[event.change]}"


def event_json(event: PresenceEvent, seconds: float) -> str:
    """One change for a program, a line; `seconds` since 1970."""
    record = event.record
    device = {"id": record.id, "name": record.name, "kind": record.kind, "addresses": list(record.addresses)}
    return json.dumps({"time": round(seconds, 3), "change": event.change.value, "device": device})


async def watch_events(settings: DiscoverySettings, *, as_json: bool) -> None:
    """A line for each change on standard output, until it is cancelled."""

    def tell(event: PresenceEvent) -> None:
        text = event_json(event, time.time()) if as_json else event_line(event, time.strftime("%H:%M:%S"))
        print(text, flush=True)

    async with AgentWatcher(settings, tell):
        await asyncio.Event().wait()


async def watch_screen(settings: DiscoverySettings, peers: Sequence[str]) -> None:
    """The table, asked for anew every SURVEY_S, and the latest changes below it, until it is cancelled."""
    events: deque[str] = deque(maxlen=_SHOWN_EVENTS)
    changed = asyncio.Event()

    def on_event(event: PresenceEvent) -> None:
        events.append(event_line(event, time.strftime("%H:%M:%S")))
        changed.set()

    with Live(Text("looking for agents"), console=console(), auto_refresh=False, screen=False) as live:
        async with AgentWatcher(settings, on_event) as watcher:
            while True:
                asked = time.monotonic()
                agents = await asyncio.to_thread(_ask, watcher.sightings, peers)
                live.update(screen(agents, list(events)), refresh=True)
                changed.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(0.1, SURVEY_S - (time.monotonic() - asked)))


def screen(agents: Sequence[Surveyed], events: Sequence[str]) -> Group:
    """The table and the latest changes, the last one at the bottom."""
    table = device_table(device_rows(agents)) if agents else Text("no agent answers so far")
    lines = [Text(line, style="dim") for line in events]
    return Group(table, Text(""), *lines, Text("Ctrl-C ends"))


def _ask(sightings: Sequence[Sighting], peers: Sequence[str]) -> list[Surveyed]:
    return survey(
        [sighting.record for sighting in sightings],
        peers,
        stale=[sighting.record for sighting in sightings if sighting.stale],
    )


def watch(settings: DiscoverySettings, peers: Sequence[str], *, as_json: bool) -> None:
    """Until Ctrl-C. Where standard output is no terminal, or with JSON, a line for each change.

    Raises DeviceError when the network does not let itself be searched.
    """
    on_screen = sys.stdout.isatty() and not as_json
    asyncio.run(watch_screen(settings, peers) if on_screen else watch_events(settings, as_json=as_json))
