"""The draft node's part in giving its stages their weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

from flowedge.agent.coordinator import PlannedStage
from flowedge.agent.reporting import Report
from flowedge.agent.settings import AgentSettings
from flowedge.errors import CheckpointError
from flowedge.runtime.lane import ComputeLane
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetcher import SourceAddress
from flowedge.weights.library import Library
from flowedge.weights.opening import ModelOpener, Opened, Wish
from flowedge.weights.peer import Peer
from flowedge.weights.progress import mib
from flowedge.weights.reference import resolve
from flowedge.weights.service import WeightsService
from flowedge.weights.shelf import shown

if TYPE_CHECKING:
    from flowedge.models.checkpoint import Checkpoint

REPORT_S = 2.0  # between two words on how far hashing is


def serve_weights(server: grpc.aio.Server, device: str, settings: AgentSettings) -> Library:
    """Have a server give what the device has; returns that. BadRequestError for a cache that cannot be."""
    library = Library.configured(settings.cache_dir, settings.cache_gib)
    rpc.add_WeightsServicer_to_server(WeightsService(device, library, settings.weights), server)
    return library


@dataclass(frozen=True)
class WeightSharing:
    """Tells the devices of a pipeline who has their weights.

    Attributes:
        address_for: the draft node's own address, as the device at an address reaches it.
    """

    device: str
    library: Library
    settings: AgentSettings
    lane: ComputeLane
    address_for: Callable[[str], str]

    async def sources(
        self,
        model: str,
        checkpoint: Checkpoint,
        stages: Sequence[PlannedStage],
        middles: Sequence[PlannedStage],
        report: Report,
    ) -> dict[str, pb.WeightSources]:
        """Where each device gets its weights, by its address; a model that all devices have needs none.

        Raises CheckpointError for a model that cannot be shared, DeviceLostError for a lost device.
        """
        devices = [*stages, *middles]
        found: dict[str, pb.WeightSources] = {}
        if not all(await asyncio.gather(*(self._looks(stage, model) for stage in stages))):
            manifest = await self._share(checkpoint, report)
            name = shown(checkpoint.directory.resolve().name)
            found |= {stage.address: self._of(manifest, name, stage, devices) for stage in stages}
        for middle in middles:
            if middle.setup is not None and not await self._looks(middle, middle.setup.model):
                opened = await asyncio.to_thread(_open_middle, middle.setup.model)
                manifest = await self._share(opened, report)
                found[middle.address] = self._of(manifest, shown(middle.setup.model), middle, devices)
        return found

    async def open_head(self, model: str, stages: Sequence[str], report: Report) -> Opened:
        """What the draft node needs of a model that is named by its hash: here, or from its stages.

        Errors as ModelOpener.open, and BadRequestError for a hash that is not known.
        """

        async def run(function: Callable[[], Any]) -> Any:
            return (await self.lane.run(function, self.settings.load_s))[0]

        opener = ModelOpener(
            self.device, self.library, self.settings.weights, run, partial(report, self.device)
        )
        wish = Wish(
            model=model,
            name=shown(model),
            manifest=resolve(model, self.library.shelf),
            fingerprint="",
            sources=tuple(map(SourceAddress, stages)),
            select=_select_head,
            every_file=True,
        )
        return await opener.open(wish)

    async def _looks(self, stage: PlannedStage, model: str) -> bool:
        peer = Peer(stage.address, self.settings.weights)
        try:
            return await peer.looks(model)
        finally:
            await peer.close()

    def _of(
        self, manifest: str, name: str, stage: PlannedStage, devices: Sequence[PlannedStage]
    ) -> pb.WeightSources:
        others = [device.address for device in devices if device.address != stage.address]
        return pb.WeightSources(
            manifest=manifest, name=name, draft_node=self.address_for(stage.address), peers=others
        )

    async def _share(self, checkpoint: Checkpoint, report: Report) -> str:
        """Give what is in a checkpoint; returns the id of its manifest. All of it is read the first time."""
        if checkpoint.manifest_id:
            return checkpoint.manifest_id
        read, called_off = [0, 0], asyncio.Event()

        def on_bytes(done: int, total: int) -> None:
            if called_off.is_set():
                raise CheckpointError("reading the model was called off")
            read[:] = done, total

        def describe() -> Any:
            from flowedge.weights.describing import describe  # noqa: PLC0415

            return describe(checkpoint, self.library.store.limits.root, on_bytes)

        await report(self.device, f"making the manifest of {checkpoint.directory}")
        described = asyncio.ensure_future(asyncio.to_thread(describe))
        try:
            while not (await asyncio.wait({described}, timeout=REPORT_S))[0]:
                await report(self.device, f"hashed {mib(read[0])} of {mib(read[1])}")
        finally:
            called_off.set()  # a thread cannot be stopped otherwise
        manifest, locations = described.result().manifest, described.result().locations
        self.library.share(checkpoint.directory.resolve().name, manifest, locations)
        return str(manifest.id)


def _select_head(checkpoint: Checkpoint) -> Sequence[str]:
    from flowedge.weights.needed import head_tensors  # noqa: PLC0415

    return head_tensors(checkpoint)


def _open_middle(source: str) -> Checkpoint:
    from flowedge.drafting.middles import open_middle  # noqa: PLC0415

    return open_middle(source)
