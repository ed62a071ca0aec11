"""A process that advertises one device (arguments: id, name, address, protocol) until its input closes."""

from __future__ import annotations

import asyncio
import sys

from flowedge.cluster.discovery import Advertiser
from flowedge.cluster.record import DeviceRecord


async def advertise(device_id: str, name: str, address: str, protocol: int) -> None:
    record = DeviceRecord(
        name=name,
        id=device_id,
        address=address,
        kind="test",
        memory_total=1 << 30,
        protocol_version=protocol,
        version="0.1.0",
    )
    async with Advertiser(record):
        print("advertised", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(advertise(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
