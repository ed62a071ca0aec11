"""Agents find each other on the local network by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from flowedge.core.errors import BadRequestError
from flowedge.discovery.advertiser import SERVICE_TYPE, Advertiser
from flowedge.discovery.device_record import AdvertisedDevice
from flowedge.discovery.presence import PresenceEvent
from flowedge.discovery.settings import DiscoverySettings
from flowedge.discovery.watcher import AgentWatcher

__all__ = ["SERVICE_TYPE", "Advertiser", "discover"]


async def discover(
    timeout_s: float,
    want: Collection[str] | None = None,
    settings: DiscoverySettings = DiscoverySettings(),  # noqa: B008 (frozen)
) -> list[AdvertisedDevice]:
    """The devices that answer within `timeout_s`, sorted by name.

    An agent that answers on several interfaces is listed once, with all its addresses; two agents that say
    the same id are both listed. Devices of another protocol version are listed; their `mismatch` says so.
    Answers that break the format are logged and left out. With `want`, a collection of ids or names, only
    those are returned, and the wait ends as soon as all of them have answered.

    Raises DeviceError when the network does not let itself be searched.
    """
    if not timeout_s > 0:
        raise BadRequestError(f"the time to look for devices is {timeout_s} s; it must be above 0")
    wanted = None if want is None else frozenset(want)
    complete = asyncio.Event()
    known: set[str] = set()

    def on_event(event: PresenceEvent) -> None:
        known.update((event.record.id, event.record.name))
        if wanted is not None and wanted <= known:
            complete.set()

    async with AgentWatcher(settings, on_event) as watcher:
        with contextlib.suppress(asyncio.TimeoutError):  # what has answered by then is the result
            await asyncio.wait_for(complete.wait(), timeout_s)
        records = [sighting.record for sighting in watcher.sightings]
    return [r for r in records if wanted is None or r.id in wanted or r.name in wanted]
