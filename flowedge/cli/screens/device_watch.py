"""`flowedge devices --watch`: follows agents as they come and go."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.text import Text

from flowedge.cli.output import say
from flowedge.cli.screens.device_table import device_rows, device_table
from flowedge.cli.screens.tables import line, output_console
from flowedge.client.survey import SurveyedAgent, survey
from flowedge.discovery.discovery import AgentWatcher
from flowedge.discovery.presence import Change, PresenceEvent, Sighting
from flowedge.discovery.settings import DiscoverySettings
from flowedge.network.deadline import set_within
from flowedge.network.supervision import supervise

SURVEY_S = 2.0  # between two surveys of the agents
_SHOWN_EVENTS = 8
_WORDS = {
    Change.CAME: "came",
    Change.CHANGED: "changed its announcement",
    Change.RESTARTED: "restarted",
    Change.LEFT: "left",
    Change.STALE: "is stale: no sign of life since its announcement expired",
    Change.RETURNED: "is back",
    Change.GONE: "is gone: still no sign of life",
}


def event_line(event: PresenceEvent, clock: str) -> str:
    """Return a change as a line for people; `clock` is the time of day."""
    return f"{clock} {event.device.name} ({event.device.address}) {_WORDS[event.change]}"


def event_json(event: PresenceEvent, seconds: float) -> str:
    """Return a change as a line of JSON; `seconds` since 1970."""
    device = event.device
    fields = {"id": device.id, "name": device.name, "kind": device.kind, "addresses": list(device.addresses)}
    return json.dumps({"time": round(seconds, 3), "change": event.change.value, "device": fields})


async def watch_events(settings: DiscoverySettings, *, as_json: bool) -> None:
    """Print a line for each change until cancelled, or until nobody reads the lines any more."""
    ended = asyncio.Event()

    def show(event: PresenceEvent) -> None:
        text = event_json(event, time.time()) if as_json else event_line(event, time.strftime("%H:%M:%S"))
        try:
            say(text)
        except BrokenPipeError:  # as of `| head`; the watcher would log the error and go on
            ended.set()

    async with AgentWatcher(settings, show):
        await ended.wait()


async def watch_screen(settings: DiscoverySettings, peers: Sequence[str]) -> None:
    """Show a table of agents, asked every SURVEY_S seconds, above the latest changes until cancelled."""
    events: deque[str] = deque(maxlen=_SHOWN_EVENTS)
    changed = asyncio.Event()
    known: set[str] = set()  # ids of the agents that answered last

    def on_event(event: PresenceEvent) -> None:
        events.append(event_line(event, time.strftime("%H:%M:%S")))
        changed.set()

    async def show(watcher: AgentWatcher, live: Live) -> None:
        while True:
            asked = time.monotonic()
            agents = await asyncio.to_thread(_ask, watcher.sightings, peers, frozenset(known))
            known.clear()
            known.update(agent.id for agent in agents if agent.answer is not None)
            live.update(screen(agents, list(events)), refresh=True)
            changed.clear()
            await set_within(max(0.1, SURVEY_S - (time.monotonic() - asked)), changed)

    with Live(
        Text("searching for agents"), console=output_console(), auto_refresh=False, screen=False
    ) as live:
        async with AgentWatcher(settings, on_event) as watcher:
            await supervise("the table of agents", lambda: show(watcher, live))


def screen(agents: Sequence[SurveyedAgent], events: Sequence[str]) -> Group:
    """Return the table above the latest changes, the last change at the bottom."""
    table = device_table(device_rows(agents)) if agents else Text("no agent has answered yet")
    lines = [line(event, "dim") for event in events]
    return Group(table, Text(""), *lines, Text("Ctrl-C ends"))


def _ask(sightings: Sequence[Sighting], peers: Sequence[str], known: frozenset[str]) -> list[SurveyedAgent]:
    return survey(
        [sighting.device for sighting in sightings],
        peers,
        stale=[sighting.device for sighting in sightings if sighting.stale],
        known=known,
    )


def watch(settings: DiscoverySettings, peers: Sequence[str], *, as_json: bool) -> None:
    """Follow the agents until Ctrl-C, on a screen; with JSON or without a terminal, as a line a change.

    Raises:
        DeviceError: when there is no interface to search on, or the network refuses.
    """
    on_screen = sys.stdout.isatty() and not as_json
    asyncio.run(watch_screen(settings, peers) if on_screen else watch_events(settings, as_json=as_json))
