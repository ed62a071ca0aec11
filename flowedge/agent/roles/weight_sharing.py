"""The draft node's part in giving the devices of its pipeline their weights."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.roles.coordinator import PlannedRoute, ReportProgress
from flowedge.agent.roles.other_agents import all_or_none
from flowedge.cluster.process import current
from flowedge.core.errors import CheckpointError, DeviceError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.network.address import is_loopback
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.fetch.progress import mib
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import WeightsClient
from flowedge.weights.known_models import printable_name
from flowedge.weights.manifest import Manifest
from flowedge.weights.model_directory import model_name
from flowedge.weights.model_opener import ModelOpener
from flowedge.weights.model_request import ModelRequest, OpenedModel
from flowedge.weights.threads import finish_in_thread

if TYPE_CHECKING:
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide


REPORT_S = 2.0  # between two reports on the progress of hashing
LOOK_S = 1.0  # for neighbours to answer by zeroconf
MOST = 16  # neighbours; more are left out

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightSharing:
    """Tells the devices of a pipeline which devices have their weights."""

    agent: Agent
    side: ComputeSide
    report: ReportProgress

    async def sources(self, routes: Sequence[PlannedRoute]) -> dict[str, pb.WeightSources]:
        """Return where devices get their weights, by address. A route whose devices have them is left out.

        Raises:
            CheckpointError: when a model cannot be shared.
            DeviceLostError: when a device is lost.
        """
        lacking = [route for route in routes if not await self._has_model(route)]
        if not lacking:
            return {}
        devices = [stage.address for route in routes for stage in route.stages]
        devices += await find_neighbours(self.agent.name, devices, self.agent.config)
        found: dict[str, pb.WeightSources] = {}
        for route in lacking:
            found |= await self._sources(route, [stage.address for stage in route.stages], devices)
        return found

    async def for_spare(self, route: PlannedRoute, address: str) -> pb.WeightSources | None:
        """Return where an agent gets the weights of a route's stages; None if it has the model.

        Raises as `sources`.
        """
        if await self._agent_has(address, route.model):
            return None
        found = await self._sources(route, [address], [stage.address for stage in route.stages])
        return found[address]

    async def _sources(
        self, route: PlannedRoute, takers: Sequence[str], devices: Sequence[str]
    ) -> dict[str, pb.WeightSources]:
        """Share a route's model; return for the agents at `takers` where they get it.

        devices: addresses of those that may have parts of it.
        """
        name, manifest = await self._share(route)
        share = partial(self.side.share_quantised, route, manifest, self.agent.local_weights)
        quantised = await finish_in_thread(share)
        return {
            taker: pb.WeightSources(
                manifest=manifest.id,
                name=name,
                draft_node=await asyncio.to_thread(self.agent.info.address_for, taker),
                peers=[address for address in devices if address != taker],
                quantised=quantised,
            )
            for taker in takers
        }

    async def open_head(self, config: PipelineConfig, stages: Sequence[str]) -> OpenedModel:
        """Open the model of a pipeline, named by its hash, with the tensors that the draft node needs of it.

        Raises BadRequestError for an unknown hash, and what ModelOpener.open raises.
        """
        agent, model = self.agent, config.model
        others = await find_neighbours(agent.name, stages, agent.config)
        report = partial(self.report, agent.name)
        opener = ModelOpener(agent.name, agent.local_weights, agent.config.weights, agent.run, report)
        return await opener.open(
            ModelRequest(
                model=model,
                name=printable_name(model),
                manifest=await finish_in_thread(partial(agent.local_weights.known_models.resolve, model)),
                fingerprint="",
                sources=tuple(map(SourceAddress, [*stages, *others])),
                select=partial(self.side.head_tensors, drafters=config.drafters),
                with_tokenizer=True,
            )
        )

    async def _has_model(self, route: PlannedRoute) -> bool:
        """Return whether every device of a route has its model."""
        return all(await all_or_none(self._agent_has(stage.address, route.model) for stage in route.stages))

    async def _agent_has(self, address: str, model: str) -> bool:
        async with WeightsClient(address, self.agent.config.weights) as client:
            return await client.has_model(model)

    async def _share(self, route: PlannedRoute) -> tuple[str, Manifest]:
        """Have the library give a route's model, which is hashed once; return its name and its manifest."""
        agent, checkpoint = self.agent, route.checkpoint
        if checkpoint.manifest_id:
            return await finish_in_thread(partial(self._known, checkpoint.manifest_id))
        read, called_off = [0, 0], asyncio.Event()

        def on_bytes(done: int, total: int) -> None:
            if called_off.is_set():
                raise CheckpointError("reading the model was cancelled")
            read[:] = done, total

        await self.report(agent.name, f"making the manifest of {checkpoint.place}")
        describing = asyncio.to_thread(
            self.side.describe, checkpoint, agent.local_weights.store.limits.root, on_bytes
        )
        described = asyncio.ensure_future(describing)
        try:
            while not (await asyncio.wait({described}, timeout=REPORT_S))[0]:
                await self.report(agent.name, f"hashed {mib(read[0])} of {mib(read[1])}")
        finally:
            called_off.set()  # a thread cannot be stopped in another way
        manifest = described.result().manifest
        name = model_name(route.model)
        agent.local_weights.share(name, manifest, described.result().ranges)
        return name, manifest

    def _known(self, model: str) -> tuple[str, Manifest]:
        for known in self.agent.local_weights.known_models.models():
            if known.manifest.id == model:
                return known.name, known.manifest
        raise CheckpointError(f"the manifest of {model} is no longer in the cache; fetch it again")


async def find_neighbours(device: str, pipeline: Collection[str], config: AgentConfig) -> list[str]:
    """Return the addresses of other agents: those of the configuration, and those that zeroconf finds.

    An agent that does not advertise itself does not look for others by zeroconf either.

    Args:
        device: the name of this one.
        pipeline: addresses of the devices of the pipeline, one or more.
    """
    found = list(config.discovery.peers)
    if config.agent.advertise:
        try:
            found += usable(await discover(LOOK_S, settings=config.discovery), device, pipeline)
        except DeviceError as error:
            _log.info("no other devices are asked for weights: %s", error)
    return [address for address in dict.fromkeys(found) if address not in pipeline][:MOST]


def usable(records: Sequence[AdvertisedDevice], device: str, pipeline: Collection[str]) -> list[str]:
    """Return the addresses of other devices of this cluster that the pipeline's devices can reach.

    Their order is random: announced names must not decide who is asked.
    """
    local, security = all(map(is_loopback, pipeline)), current()
    found = [
        record.address
        for record in records
        if not record.mismatch
        and record.name != device
        and is_loopback(record.address) == local
        and security.foreign(record.name, record.cluster) is None
    ]
    random.shuffle(found)
    return found
