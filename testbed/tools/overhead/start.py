"""The time until a device can be found after its agent was started."""

from __future__ import annotations

import asyncio
import time

from flowedge.agent.local_cluster import LocalCluster
from flowedge.core.errors import DeviceError
from flowedge.discovery.discovery import discover

_DEADLINE_S = 30.0


def measure_discovery() -> float:
    """Return the seconds from the start of two agents until zeroconf has found both.

    Raises:
        DeadlineError: when they do not listen in time.
        DeviceError: when an agent cannot be found.
    """
    started = time.monotonic()
    with LocalCluster(1, name="overhead") as cluster:
        names = [agent.name for agent in cluster.agents]
        found = asyncio.run(discover(_DEADLINE_S, want=names))
        took = time.monotonic() - started
    missing = sorted(set(names) - {device.name for device in found})
    if missing:
        raise DeviceError(missing[0], f"it was not found within {_DEADLINE_S:g} s")
    return took
