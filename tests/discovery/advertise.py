"""A process that advertises one device until its input closes.

Arguments: id, name, address, protocol, and seconds that the announcement is good for.
"""

from __future__ import annotations

import asyncio
import sys

from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.advertiser import Advertiser
from flowedge.discovery.settings import DiscoverySettings


async def advertise(device_id: str, name: str, address: str, protocol: int, ttl_s: int) -> None:
    record = AdvertisedDevice(
        name=name,
        id=device_id,
        address=address,
        kind="test",
        memory_total=1 << 30,
        protocol_version=protocol,
        version="0.1.0",
    )
    async with Advertiser(record, DiscoverySettings(ttl_s=ttl_s, poll_s=0.5)):
        print("advertised", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(advertise(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
