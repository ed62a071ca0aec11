"""What a draft node asks other agents, beside the set-up of its pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio

from flowedge.cluster.process import security_for
from flowedge.cluster.tls.channels import open_verified
from flowedge.core.errors import ProtocolError
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.network.ports import check_http2
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION

MEET_AT_ONCE = 32  # agents that are asked what they are at the same time
PREPARE_S = 60.0  # for an agent to import what it computes with; seconds on a board
CHANNEL_OPTIONS = LinkSettings().channel_options

T = TypeVar("T")


@dataclass(frozen=True)
class MetMembers:
    """The members of a pipeline, each as the URI in its certificate (see Member.uri).

    Attributes:
        own: the draft node; None without a certificate.
        by_address: the devices that the draft node has spoken to; empty in plaintext.
    """

    own: str | None = None
    by_address: Mapping[str, str] = field(default_factory=dict)

    def neighbours(self, stages: Sequence[str]) -> list[pb.PipelineMembers | None]:
        """Return the neighbours of each stage of a route, given by their addresses; None in plaintext."""
        own = self.own
        if own is None or not all(address in self.by_address for address in stages):
            return [None] * len(stages)
        line = [own, *(self.by_address[address] for address in stages), own]
        return [
            pb.PipelineMembers(upstream=before, draft_node=own, downstream=after)
            for before, after in zip(line, line[2:], strict=False)
        ]


async def meet(
    quants: Mapping[str, str], settings: LinkSettings, own: str | None = None
) -> tuple[dict[str, pb.Device], MetMembers]:
    """Ask the agents of a pipeline what they are; return their answers by address, and who they are.

    Args:
        quants: by address, the quantisation of the layers that the device is to hold.
        own: URI in the certificate of this device (see Member.uri); None without a certificate.

    Raises what `describe` raises.
    """
    at_once = asyncio.Semaphore(MEET_AT_ONCE)

    async def ask(address: str, quant: str) -> tuple[pb.Device, str | None]:
        async with at_once:
            return await _describe(address, settings, quant)

    answers = await all_or_none(ask(address, quant) for address, quant in quants.items())
    devices = {address: device for address, (device, _) in zip(quants, answers, strict=True)}
    members = {address: uri for address, (_, uri) in zip(quants, answers, strict=True) if uri is not None}
    return devices, MetMembers(own, members)


async def all_or_none(awaited: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at the same time; the first error cancels the others.

    No coroutine is running when this returns or raises, so that none holds a socket.
    """
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def describe(address: str, settings: LinkSettings, quant: str = "") -> pb.Device:
    """Return what the agent at an address says of itself.

    quant: the quantisation of the layers that its compute device has to be for; "" for none.

    Raises:
        DeviceLostError: when it does not answer.
        ProtocolError: when it speaks another version of the protocol.
    """
    return (await _describe(address, settings, quant))[0]


async def _describe(address: str, settings: LinkSettings, quant: str) -> tuple[pb.Device, str | None]:
    """Return what `describe` returns, and the URI in the agent's certificate; None in plaintext."""
    async with _agent_at(address, settings) as (stub, member):
        device: pb.Device = await stub.Describe(pb.DescribeRequest(quant=quant), timeout=settings.connect_s)
    if device.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"device {device.name} speaks protocol {device.protocol_version}, this one {PROTOCOL_VERSION}; "
            "install the same version on both"
        )
    return device, member


async def have_stand_by(address: str, request: pb.StandByRequest, settings: LinkSettings) -> None:
    """Have the agent at an address stand by for the pipeline that this device leads.

    Raises:
        AccessError: when its certificate does not allow it to lead a pipeline.
        DeviceError: when it leads one already, or stands by for another one.
        DeviceLostError: when it does not answer.
    """
    async with _agent_at(address, settings) as (stub, _):
        await stub.StandBy(request, timeout=settings.connect_s)


async def prepare(address: str, settings: LinkSettings, stages: Sequence[pb.StageRole] = ()) -> None:
    """Have the agent at an address import what it computes with, so that it takes a role sooner.

    stages: whose weights it fetches, too, after this returns.

    Raises:
        DeviceLostError: when it does not answer.
    """
    async with _agent_at(address, settings) as (stub, _):
        await stub.Prepare(pb.PrepareRequest(stages=stages), timeout=PREPARE_S)


@asynccontextmanager
async def _agent_at(address: str, settings: LinkSettings) -> AsyncIterator[tuple[rpc.AgentStub, str | None]]:
    """Connect to an agent; yield its stub, and the URI in its certificate, None in plaintext.

    A gRPC error inside is raised as a FlowEdgeError.
    """
    security = security_for(address, None)
    if security.store is None:  # a certificate is asked for by a socket of its own as well
        security.check_plaintext(address)
        await check_http2(address, settings.connect_s)
    try:
        channel, peer = await open_verified(address, CHANNEL_OPTIONS, None, security)
        async with channel:
            yield rpc.AgentStub(channel), None if peer is None else peer.holder.member.uri
    except grpc.aio.AioRpcError as error:
        raise from_status(error, address) from error
