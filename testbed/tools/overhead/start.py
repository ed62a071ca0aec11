"""The time until a device can be found after its agent was started."""

from __future__ import annotations

import asyncio
import secrets
import time

from flowedge.agent.local_cluster import LocalCluster
from flowedge.core.errors import DeviceError
from flowedge.discovery.discovery import discover
from flowedge.discovery.settings import DiscoverySettings

_DEADLINE_S = 30.0


def measure_discovery() -> float:
    """Return the seconds from the start of two agents until zeroconf has found both.

    Raises:
        DeadlineError: when they do not listen in time.
        DeviceError: when an agent cannot be found.
    """
    started = time.monotonic()
    group = secrets.token_hex(3)
    with LocalCluster(1, name="overhead", group=group) as cluster:
        names = [agent.name for agent in cluster.agents]
        found = asyncio.run(discover(_DEADLINE_S, want=names, settings=DiscoverySettings(group=group)))
        took = time.monotonic() - started
    missing = sorted(set(names) - {device.name for device in found})
    if missing:
        raise DeviceError(missing[0], f"it was not found within {_DEADLINE_S:g} s")
    return took
