"""Setting up the devices of a pipeline, from the draft node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import grpc.aio

from flowedge.core.errors import DeviceError, FlowEdgeError, ProtocolError
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.security.tls.channels import open_channel
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    from flowedge.agent.roles.stage_content import StageContent
    from flowedge.models.checkpoint.checkpoint import Checkpoint

RELEASE_S = 3.0
ON, OFF = "on", "off"  # of DraftNodeRole.exact, beside "auto"
_OPTIONS = LinkSettings().channel_options

_log = logging.getLogger(__name__)


class ReportProgress(Protocol):
    """Tells the caller what a device is doing; `transfer` is its progress in fetching weights."""

    async def __call__(self, device: str, text: str, transfer: pb.Transfer | None = None) -> None: ...


@dataclass(frozen=True)
class PlannedStage:
    """A device and what it is to hold.

    Attributes:
        row_bytes: bytes that one row of a session's cache takes there.
        name: of the device; memory_available: bytes, before it loads.
    """

    address: str
    content: StageContent
    row_bytes: int
    name: str
    memory_available: int


@dataclass(frozen=True)
class PlannedRoute:
    """The stages of one route, in order, and the checkpoint of the model that they hold."""

    number: int
    checkpoint: Checkpoint
    stages: tuple[PlannedStage, ...]

    @property
    def model(self) -> str:
        """The model as the user named it."""
        return self.stages[0].content.model

    @property
    def dtype(self) -> str:
        """The dtype of weights, KV cache and hidden states."""
        return self.stages[0].content.dtype

    @property
    def exact(self) -> bool:
        """Whether the stages are asked to compute exact rows."""
        return self.stages[0].content.exact


@dataclass(frozen=True)
class PipelineSetup:
    """Has the devices of a pipeline take their roles.

    Attributes:
        pipeline: its id.
        address_for: returns the draft node's own address, as the device at an address reaches it.
        weights: by address, where a device gets its weights; a device that has its model is not in it.
        report: is told of the devices' progress.
    """

    pipeline: str
    address_for: Callable[[str], str]
    weights: Mapping[str, pb.WeightSources]
    report: ReportProgress

    @asynccontextmanager
    async def loading(self, routes: Iterable[PlannedRoute]) -> AsyncIterator[Sequence[asyncio.Task[bool]]]:
        """Have all devices load at once; what is still loading when the context is left is called off.

        The result of a task is whether the rows of the stage are exact; the target's stages come first.
        """
        roles = [role for route in routes for role in self._roles(route)]
        tasks = [asyncio.create_task(self._set_up(stage, role)) for stage, role in roles]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _roles(self, route: PlannedRoute) -> Iterator[tuple[PlannedStage, pb.StageRole]]:
        last = self.address_for(route.stages[-1].address)
        downstream = [*(stage.address for stage in route.stages[1:]), last]
        for stage, next_address in zip(route.stages, downstream, strict=True):
            content = stage.content
            yield (
                stage,
                pb.StageRole(
                    pipeline=self.pipeline,
                    model=content.model,
                    layer_start=content.start,
                    layer_stop=content.stop,
                    quant=content.quant,
                    downstream=next_address,
                    protocol_version=PROTOCOL_VERSION,
                    fingerprint=route.checkpoint.fingerprint,
                    dtype=content.dtype,
                    taps=content.taps,
                    route=route.number,
                    vocab_size=content.vocab_size,
                    kv=content.kv,
                    exact=content.exact,
                    weights=self.weights.get(stage.address),
                ),
            )

    async def _set_up(self, stage: PlannedStage, role: pb.StageRole) -> bool:
        """Have a stage load its role; return whether its rows are exact."""
        ready = exact = False
        try:
            async with await open_channel(stage.address, _OPTIONS) as channel:
                async for progress in rpc.AgentStub(channel).BecomeStage(role):
                    transfer = progress.transfer if progress.HasField("transfer") else None
                    await self.report(stage.name, progress.message, transfer)
                    ready, exact = progress.ready, progress.exact
        except grpc.aio.AioRpcError as error:
            raise from_status(error, stage.name) from error
        if not ready:
            raise DeviceError(stage.name, "it ended its set-up without being ready")
        return exact


async def release_stages(stages: Iterable[PlannedStage], pipeline: str) -> None:
    """Have the stages give up their roles in a pipeline; a stage that cannot be reached is left out."""

    async def release(stage: PlannedStage) -> None:
        try:
            async with await open_channel(stage.address, _OPTIONS) as channel:
                await rpc.AgentStub(channel).Release(pb.ReleaseRequest(pipeline=pipeline), timeout=RELEASE_S)
        except (grpc.aio.AioRpcError, FlowEdgeError) as error:
            reason = error if isinstance(error, FlowEdgeError) else from_status(error, stage.address)
            _log.info("%s was not released: %s", stage.name, reason)

    await asyncio.gather(*(release(stage) for stage in stages))


async def meet(quants: Mapping[str, str], settings: LinkSettings) -> dict[str, pb.Device]:
    """Ask the agents of a pipeline what they are; return their answers by address.

    Args:
        quants: by address, the quantisation of the layers that the device is to hold.

    Raises what `describe` raises.
    """
    devices = await asyncio.gather(*(describe(address, settings, quant) for address, quant in quants.items()))
    return dict(zip(quants, devices, strict=True))


async def describe(address: str, settings: LinkSettings, quant: str = "") -> pb.Device:
    """Return what the agent at an address says of itself.

    quant: the quantisation of the layers that its compute device has to be for; "" for none.

    Raises:
        DeviceLostError: when it does not answer.
        ProtocolError: when it speaks another version of the protocol.
    """
    try:
        async with await open_channel(address, _OPTIONS) as channel:
            device: pb.Device = await rpc.AgentStub(channel).Describe(
                pb.DescribeRequest(quant=quant), timeout=settings.connect_s
            )
    except grpc.aio.AioRpcError as error:
        raise from_status(error, address) from error
    if device.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"device {device.name} speaks protocol {device.protocol_version}, this one {PROTOCOL_VERSION}; "
            "install the same version on both"
        )
    return device
