"""The Health service, whose watchers cannot hold up the agent."""

# ruff: noqa: N802 (method names are gRPC's)

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1 import health, health_pb2

from flowedge.network.grpc_handlers import Context
from flowedge.network.unread import send_reply


class HealthService(health.aio.HealthServicer):
    """Tells which services can serve.

    The library's own Watch sends with a lock held that a change of the status needs: one watcher that reads
    nothing would stop every later change, and with it the agent's signs of life.
    """

    def __init__(self, read_s: float) -> None:
        """read_s: seconds within which a watcher has to take a status."""
        super().__init__()
        self._read_s = read_s
        self._changed = asyncio.Event()
        self._statuses: dict[str, Any] = {"": health_pb2.HealthCheckResponse.SERVING}

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a service, and wake the watchers."""
        await super().set(service, status)
        self._statuses[service] = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        unknown, last = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, None
        while True:
            changed, status = self._changed, self._statuses.get(request.service, unknown)
            if status != last:
                await send_reply(context, health_pb2.HealthCheckResponse(status=status), self._read_s)
                last = status
            await changed.wait()
