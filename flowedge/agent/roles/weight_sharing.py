"""The draft node's part in giving its stages their weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.roles.coordinator import PlannedStage
from flowedge.agent.roles.neighbours import find_neighbours
from flowedge.agent.roles.reporting import ReportProgress
from flowedge.core.errors import CheckpointError
from flowedge.live.compute_thread import ComputeThread
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetch.progress import mib
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import WeightsClient
from flowedge.weights.known_models import printable_name
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest.manifest import Manifest
from flowedge.weights.model_directory import model_name
from flowedge.weights.open.model_opener import ModelOpener
from flowedge.weights.open.model_request import ModelRequest, OpenedModel
from flowedge.weights.service import WeightsService
from flowedge.weights.threads import finish_in_thread

if TYPE_CHECKING:
    from flowedge.models.checkpoint.checkpoint import Checkpoint

REPORT_S = 2.0  # between two words on how far hashing is


def serve_weights(server: grpc.aio.Server, device: str, config: AgentConfig) -> LocalWeights:
    """Have a server give what the device has; returns that. BadRequestError for a cache that cannot be."""
    library = LocalWeights.configured(config.cache.dir, config.cache.gib)
    rpc.add_WeightsServicer_to_server(WeightsService(device, library, config.weights), server)
    return library


def keep_from_hub(config: AgentConfig) -> None:
    """Have the hub's library ask nobody, unless the settings allow it or the environment says otherwise.

    To be called before the library is imported.
    """
    if not config.weights.hub:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class WeightSharing:
    """Tells the devices of a pipeline who has their weights.

    Attributes:
        address_for: the draft node's own address, as the device at an address reaches it.
    """

    device: str
    library: LocalWeights
    config: AgentConfig
    lane: ComputeThread
    address_for: Callable[[str], str]

    async def sources(
        self,
        request: pb.DraftNodeRole,
        checkpoint: Checkpoint,
        stages: Sequence[PlannedStage],
        middles: Sequence[PlannedStage],
        report: ReportProgress,
    ) -> dict[str, pb.WeightSources]:
        """Where each device gets its weights, by its address; a model that all devices have needs none.

        Raises CheckpointError for a model that cannot be shared, DeviceLostError for a lost device.
        """
        lacking = not all(await asyncio.gather(*(self._has_model(stage, request.model) for stage in stages)))
        in_need = [
            middle
            for middle in middles
            if middle.setup is not None and not await self._has_model(middle, middle.setup.model)
        ]
        if not lacking and not in_need:
            return {}
        devices = [device.address for device in (*stages, *middles)]
        devices += await find_neighbours(self.device, devices, self.config)
        found: dict[str, pb.WeightSources] = {}
        if lacking:
            name, manifest = await self._share(request.model, checkpoint, report)
            quantised = await self._share_quantised(request, checkpoint, manifest)
            for stage in stages:
                found[stage.address] = self._of(manifest.id, name, stage, devices, quantised)
        for middle in in_need:
            source = middle.setup.model if middle.setup is not None else ""
            opened = await asyncio.to_thread(_open_middle, source)
            name, manifest = await self._share(source, opened, report)
            found[middle.address] = self._of(manifest.id, name, middle, devices)
        return found

    async def open_head(self, model: str, stages: Sequence[str], report: ReportProgress) -> OpenedModel:
        """What the draft node needs of a model that is named by its hash: here, or from other devices.

        Errors as ModelOpener.open, and BadRequestError for a hash that is not known.
        """

        async def run(function: Callable[[], Any]) -> Any:
            return (await self.lane.run(function, self.config.deadlines.load_s))[0]

        others = await find_neighbours(self.device, stages, self.config)
        opener = ModelOpener(
            self.device, self.library, self.config.weights, run, partial(report, self.device)
        )
        needed = ModelRequest(
            model=model,
            name=printable_name(model),
            manifest=self.library.known_models.resolve(model),
            fingerprint="",
            sources=tuple(map(SourceAddress, [*stages, *others])),
            select=_select_head,
            with_tokenizer=True,
        )
        return await opener.open(needed)

    async def _has_model(self, stage: PlannedStage, model: str) -> bool:
        client = WeightsClient(stage.address, self.config.weights)
        try:
            return await client.has_model(model)
        finally:
            await client.close()

    def _of(
        self,
        manifest: str,
        name: str,
        stage: PlannedStage,
        devices: Sequence[str],
        quantised: str = "",
    ) -> pb.WeightSources:
        return pb.WeightSources(
            manifest=manifest,
            name=name,
            draft_node=self.address_for(stage.address),
            peers=[address for address in devices if address != stage.address],
            quantised=quantised,
        )

    async def _share_quantised(
        self, request: pb.DraftNodeRole, checkpoint: Checkpoint, manifest: Manifest
    ) -> str:
        """Give what this device has quantised of a model; returns the id of the list, "" when it is empty."""

        def find() -> str:
            from flowedge.agent.roles.stage_loading import asked_of  # noqa: PLC0415
            from flowedge.models.quant.quant_cache import QuantCache  # noqa: PLC0415
            from flowedge.weights.open.quantised import list_quantised, quantised_keys  # noqa: PLC0415

            layers = int(checkpoint.config.num_hidden_layers)
            block = pb.StageRole(quant=request.quant, dtype=request.dtype, layer_stop=layers)
            keys = quantised_keys(checkpoint, manifest, asked_of(block))
            config = self.config
            cache = QuantCache.configured(config.cache.dir, config.cache.gib)
            listed, ranges = list_quantised(keys.values(), cache)
            if not listed.entries:
                return ""
            self.library.give(listed.content, ranges)
            return listed.id

        return await finish_in_thread(find)

    async def _share(
        self, source: str, checkpoint: Checkpoint, report: ReportProgress
    ) -> tuple[str, Manifest]:
        """Give what is in a checkpoint; returns its name and manifest. All of it is read the first time."""
        if checkpoint.manifest_id:
            return self._known(checkpoint.manifest_id)
        read, called_off = [0, 0], asyncio.Event()

        def on_bytes(done: int, total: int) -> None:
            if called_off.is_set():
                raise CheckpointError("reading the model was called off")
            read[:] = done, total

        def describe() -> Any:
            from flowedge.weights.manifest.describing import describe  # noqa: PLC0415

            return describe(checkpoint, self.library.store.limits.root, on_bytes)

        await report(self.device, f"making the manifest of {checkpoint.directory}")
        described = asyncio.ensure_future(asyncio.to_thread(describe))
        try:
            while not (await asyncio.wait({described}, timeout=REPORT_S))[0]:
                await report(self.device, f"hashed {mib(read[0])} of {mib(read[1])}")
        finally:
            called_off.set()  # a thread cannot be stopped otherwise
        manifest: Manifest = described.result().manifest
        name = model_name(source)
        self.library.share(name, manifest, described.result().ranges)
        return name, manifest

    def _known(self, model: str) -> tuple[str, Manifest]:
        for known in self.library.known_models.models():
            if known.manifest.id == model:
                return known.name, known.manifest
        raise CheckpointError(f"the manifest of {model} is not in the cache any more; fetch it again")


def _select_head(checkpoint: Checkpoint) -> Sequence[str]:
    from flowedge.weights.open.needed_tensors import head_tensors  # noqa: PLC0415

    return head_tensors(checkpoint)


def _open_middle(source: str) -> Checkpoint:
    from flowedge.drafting.middles import open_middle  # noqa: PLC0415

    return open_middle(source)
