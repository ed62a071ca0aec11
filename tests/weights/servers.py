"""Weights services on ports of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import grpc.aio

from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.service import WeightsService
from flowedge.weights.settings import WeightsSettings


class QuickSettings(WeightsSettings):
    """Small messages, and short waits between attempts."""

    chunk_bytes: ClassVar[int] = 64 << 10
    first_s: ClassVar[float] = 30.0
    poll_s: ClassVar[float] = 0.02
    retry_s: ClassVar[float] = 0.1
    progress_s: ClassVar[float] = 0.05


QUICK = QuickSettings(stall_s=5.0, give_up_s=2.0)


def local_weights_at(root: Path, max_bytes: int = 1 << 30) -> LocalWeights:
    return LocalWeights(ObjectStore(CacheLimits(root, max_bytes)))


class FaultyService(WeightsService):
    """Ends each of the first `cuts` streams after `cut_after` bytes, and remembers what was asked for."""

    def __init__(
        self, local: LocalWeights, settings: WeightsSettings, *, cuts: int = 0, cut_after: int = 0
    ) -> None:
        super().__init__("giver", local, settings)
        self.local = local
        self.offsets: list[int] = []
        self.asked = asyncio.Event()
        self._cuts, self._cut_after = cuts, cut_after

    async def Read(self, request: pb.ReadRequest, context: Any) -> None:  # noqa: N802
        self.offsets.append(request.offset)
        self.asked.set()
        if len(self.offsets) > self._cuts:
            await super().Read(request, context)
            return
        found = self.local.locate(request.object.hex())
        assert found is not None
        data = found.path.read_bytes()[request.offset :][: self._cut_after]
        await context.write(pb.ObjectChunk(data=data))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the link was cut")


@asynccontextmanager
async def serving(
    local: LocalWeights, *, port: int = 0, settings: WeightsSettings = QUICK, **faults: int
) -> AsyncIterator[tuple[str, FaultyService]]:
    """The address of a device that serves its local weights."""
    server = grpc.aio.server(options=LinkSettings().channel_options)
    service = FaultyService(local, settings, **faults)
    rpc.add_WeightsServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", service
    finally:
        await server.stop(0)
