"""Setting up the stages of a pipeline, from the draft node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc.aio

from flowedge.agent.roles.reporting import ReportProgress
from flowedge.core.errors import DeviceError, FlowEdgeError, ProtocolError
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.placement.split import check_split, even_split, layer_ranges
from flowedge.security.tls.channels import open_channel
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION

RELEASE_S = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedStage:
    """A device and the layers [start, stop) it is to hold; memory_available in bytes, before it loads."""

    name: str
    address: str
    start: int
    stop: int
    memory_available: int
    setup: MiddleSetup | None = None  # of a middle model, which is whole

    @property
    def num_layers(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class MiddleSetup:
    """A middle model of the hierarchy.

    Attributes:
        route: its number, from 1 on; vocab_size: the target's number of token ids.
        row_bytes: of its cache.
    """

    route: int
    model: str
    fingerprint: str
    num_layers: int
    vocab_size: int
    row_bytes: int


async def plan_middles(
    addresses: Sequence[str], setups: Sequence[MiddleSetup], settings: LinkSettings
) -> list[PlannedStage]:
    """The devices of the middle models. DeviceLostError for one that is not there."""
    devices = await asyncio.gather(*(describe(address, settings) for address in addresses))
    return [
        PlannedStage(device.name, address, 0, setup.num_layers, device.memory_available, setup)
        for device, address, setup in zip(devices, addresses, setups, strict=True)
    ]


async def plan_stages(
    addresses: Sequence[str], split: Sequence[int], num_layers: int, settings: LinkSettings
) -> list[PlannedStage]:
    """Who holds what: as even as possible, unless `split` has the layers of each stage.

    Raises BadRequestError for a split that does not add up, DeviceLostError for a device that is not there.
    """
    count = len(addresses)
    counts = check_split(list(split), num_layers, count) if split else even_split(num_layers, count)
    devices = await asyncio.gather(*(describe(address, settings) for address in addresses))
    return [
        PlannedStage(device.name, address, start, stop, device.memory_available)
        for device, address, (start, stop) in zip(devices, addresses, layer_ranges(counts), strict=True)
    ]


@dataclass(frozen=True)
class StageSetup:
    """What all stages of a pipeline are told.

    Attributes:
        last_downstream: the draft node's own address, as the last stage reaches it; address_for: the same
            for any device, given by its own.
        taps: layers whose inputs the drafter is given (see models/layers/taps.py).
        weights: where a device that does not have its model gets it, by the device's address.
    """

    pipeline: str
    model: str
    quant: str
    dtype: str
    fingerprint: str
    last_downstream: str
    address_for: Callable[[str], str]
    taps: tuple[int, ...] = ()
    weights: Mapping[str, pb.WeightSources] = field(default_factory=dict)

    def start(
        self, stages: Sequence[PlannedStage], middles: Sequence[PlannedStage], report: ReportProgress
    ) -> RunningSetup:
        """Have all stages and middle models load at once."""
        downstream = [*(stage.address for stage in stages[1:]), self.last_downstream]
        roles = [self._stage_role(stage, to) for stage, to in zip(stages, downstream, strict=True)]
        roles += [self._middle_role(middle) for middle in middles]
        return RunningSetup(
            [
                asyncio.create_task(self._set_up(device, role, report))
                for device, role in zip([*stages, *middles], roles, strict=True)
            ]
        )

    def _stage_role(self, stage: PlannedStage, downstream: str) -> pb.StageRole:
        return pb.StageRole(
            pipeline=self.pipeline,
            model=self.model,
            layer_start=stage.start,
            layer_stop=stage.stop,
            quant=self.quant,
            downstream=downstream,
            protocol_version=PROTOCOL_VERSION,
            fingerprint=self.fingerprint,
            dtype=self.dtype,
            taps=self.taps,
            weights=self.weights.get(stage.address),
        )

    def _middle_role(self, middle: PlannedStage) -> pb.StageRole:
        setup = middle.setup
        if setup is None:
            raise ValueError(f"{middle.name} is planned as a stage")
        return pb.StageRole(
            pipeline=self.pipeline,
            model=setup.model,
            layer_start=middle.start,
            layer_stop=middle.stop,
            downstream=self.address_for(middle.address),
            protocol_version=PROTOCOL_VERSION,
            fingerprint=setup.fingerprint,
            dtype=self.dtype,
            route=setup.route,
            vocab_size=setup.vocab_size,
            weights=self.weights.get(middle.address),
        )

    async def _set_up(self, stage: PlannedStage, role: pb.StageRole, report: ReportProgress) -> None:
        ready = False
        try:
            async with await open_channel(stage.address, _OPTIONS) as channel:
                async for progress in rpc.AgentStub(channel).BecomeStage(role):
                    transfer = progress.transfer if progress.HasField("transfer") else None
                    await report(stage.name, progress.message, transfer)
                    ready = progress.ready
        except grpc.aio.AioRpcError as error:
            raise from_status(error, stage.name) from error
        if not ready:
            raise DeviceError(stage.name, "it ended its set-up without being ready")


class RunningSetup:
    """The stages that are loading."""

    def __init__(self, tasks: list[asyncio.Task[None]]) -> None:
        self._tasks = tasks

    async def wait(self) -> None:
        """Until all are ready; raises the error of the first that fails. The caller has the deadline."""
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        """Call off what is still going on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def release_stages(stages: Sequence[PlannedStage], pipeline: str) -> None:
    """Have the stages give up their roles, as far as they can be reached."""

    async def release(stage: PlannedStage) -> None:
        try:
            async with await open_channel(stage.address, _OPTIONS) as channel:
                await rpc.AgentStub(channel).Release(pb.ReleaseRequest(pipeline=pipeline), timeout=RELEASE_S)
        except grpc.aio.AioRpcError as error:
            _log.info("%s was not released: %s", stage.name, from_status(error, stage.address))
        except FlowEdgeError as error:
            _log.info("%s was not released: %s", stage.name, error)

    await asyncio.gather(*(release(stage) for stage in stages))


async def describe(address: str, settings: LinkSettings) -> pb.Device:
    """What the agent at an address says of itself. DeviceLostError or ProtocolError for one of no use."""
    try:
        async with await open_channel(address, _OPTIONS) as channel:
            device: pb.Device = await rpc.AgentStub(channel).Describe(
                pb.DescribeRequest(), timeout=settings.connect_s
            )
    except grpc.aio.AioRpcError as error:
        raise from_status(error, address) from error
    if device.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"device {device.name} speaks protocol {device.protocol_version}, this one {PROTOCOL_VERSION}; "
            "install the same version on both"
        )
    return device


_OPTIONS = LinkSettings().channel_options
