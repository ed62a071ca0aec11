"""Agents beside those of a pipeline, which may have weights from before."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.core.errors import DeviceError
from flowedge.net.address import is_loopback

if TYPE_CHECKING:
    from flowedge.discovery.advertised_device import AdvertisedDevice

LOOK_S = 1.0
MOST = 16  # more are left out

_log = logging.getLogger(__name__)


async def find_neighbours(device: str, pipeline: Collection[str], config: AgentConfig) -> list[str]:
    """The addresses of agents of the configuration, and of those that zeroconf finds where this one uses it.

    device: the name of this one; pipeline: addresses of the devices of the pipeline, one or more.
    """
    named = list(config.discovery.peers)
    if not config.agent.advertise:
        return _others(named, pipeline)
    from flowedge.discovery.discovery import discover  # noqa: PLC0415 (imports zeroconf)

    try:
        records = await discover(LOOK_S, settings=config.discovery)
    except DeviceError as error:
        _log.info("no other devices are asked for weights: %s", error)
        records = []
    return _others([*named, *usable(records, device, pipeline)], pipeline)


def usable(records: Sequence[AdvertisedDevice], device: str, pipeline: Collection[str]) -> list[str]:
    """The addresses of records that the pipeline's devices may reach, other than this device's own."""
    local = all(map(is_loopback, pipeline))
    return [
        record.address
        for record in records
        if not record.mismatch and record.name != device and is_loopback(record.address) == local
    ]


def _others(addresses: Sequence[str], pipeline: Collection[str]) -> list[str]:
    return [address for address in dict.fromkeys(addresses) if address not in pipeline][:MOST]
