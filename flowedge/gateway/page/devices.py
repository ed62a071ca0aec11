"""Asks the devices of pipelines what they are, again and again while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from flowedge.client.aio import AsyncClient
from flowedge.client.device import IDLE, Device
from flowedge.core.errors import FlowEdgeError

ANSWER_S = 3.0
AT_ONCE = 16  # devices that are asked at the same time


@dataclass(frozen=True)
class DeviceReply:
    """The latest answer of the agent at an address.

    Attributes:
        device: None if it has never answered.
        present: whether it has answered when it was asked last.
        round_trip_s: of the question, from the gateway.
    """

    address: str
    device: Device | None = None
    present: bool = False
    round_trip_s: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self.device is not None and self.device.role == IDLE


class DeviceSurvey:
    """The agents of pipelines, and what they answered. Connections stay open until `close`."""

    def __init__(self) -> None:
        self._clients: dict[str, AsyncClient] = {}
        self._replies: dict[str, DeviceReply] = {}
        self._few = asyncio.Semaphore(AT_ONCE)

    def reply(self, address: str) -> DeviceReply:
        """Return the latest answer of an agent."""
        return self._replies.get(address) or DeviceReply(address)

    async def ask(self, addresses: Iterable[str]) -> None:
        """Ask agents what they are; forget all others."""
        wanted = dict.fromkeys(addresses)
        for gone in self._clients.keys() - wanted:
            self._replies.pop(gone, None)
            await self._clients.pop(gone).close()
        await asyncio.gather(*(self._ask(address) for address in wanted))

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for client in self._clients.values():
                stack.push_async_callback(client.close)
            self._clients.clear()

    async def _ask(self, address: str) -> None:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = AsyncClient(address, silence_s=ANSWER_S)
        async with self._few:
            asked = time.monotonic()
            try:
                device = await client.describe()
            except (FlowEdgeError, ValueError):
                self._replies[address] = replace(self.reply(address), present=False)
                return
        self._replies[address] = DeviceReply(address, device, True, time.monotonic() - asked)
