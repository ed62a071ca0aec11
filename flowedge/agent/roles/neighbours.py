"""Agents beside those of a pipeline, which may have weights from before."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.core.errors import DeviceError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.net.address import is_loopback

LOOK_S = 1.0
MOST = 16  # neighbours; more are left out

_log = logging.getLogger(__name__)


async def find_neighbours(device: str, pipeline: Collection[str], config: AgentConfig) -> list[str]:
    """Return the addresses of other agents: those of the configuration, and those that zeroconf finds.

    An agent that does not advertise itself does not look for others by zeroconf either.

    Args:
        device: the name of this one.
        pipeline: addresses of the devices of the pipeline, one or more.
    """
    named = list(config.discovery.peers)
    if not config.agent.advertise:
        return _others(named, pipeline)
    try:
        records = await discover(LOOK_S, settings=config.discovery)
    except DeviceError as error:
        _log.info("no other devices are asked for weights: %s", error)
        records = []
    return _others([*named, *usable(records, device, pipeline)], pipeline)


def usable(records: Sequence[AdvertisedDevice], device: str, pipeline: Collection[str]) -> list[str]:
    """Return the addresses of other devices that the pipeline's devices can reach."""
    local = all(map(is_loopback, pipeline))
    return [
        record.address
        for record in records
        if not record.mismatch and record.name != device and is_loopback(record.address) == local
    ]


def _others(addresses: Sequence[str], pipeline: Collection[str]) -> list[str]:
    return [address for address in dict.fromkeys(addresses) if address not in pipeline][:MOST]
