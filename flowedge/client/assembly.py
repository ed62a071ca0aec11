"""Making a pipeline of agents."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from flowedge.client.channel import CHANNEL_OPTIONS, check_address
from flowedge.client.device import Device
from flowedge.client.failure import ended_early
from flowedge.client.stubs import agent_stub
from flowedge.client.transfer import OnTransfer, Transfer
from flowedge.core.errors import BadRequestError, DeadlineError
from flowedge.drafting.choice import drafter_label
from flowedge.net.grpc_status import from_status
from flowedge.net.watchdog import Watchdog
from flowedge.security.tls.channels import open_sync_channel
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

OnProgress = Callable[[str, str], None]  # device, what it is doing
LOAD_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class PipelineSpec:
    """Which agents do what.

    Attributes:
        stages: addresses in the order of the layers.
        model: a directory or hub id that the devices can read, or "bundled".
        drafter: names of the drafters to join (see drafter_names); empty for none.
        split: layers per stage; empty for as even as possible.
        middles: middle models of a hierarchy, smallest first: each the name of a model, and the address of
            its agent.
    """

    draft_node: str
    stages: tuple[str, ...]
    model: str
    drafter: tuple[str, ...]
    quant: str = "none"
    split: tuple[int, ...] = ()
    middles: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """BadRequestError when the addresses cannot make a pipeline."""
        every = [self.draft_node, *self.stages, *(address for _, address in self.middles)]
        for address in every:
            check_address(address)
        if not self.stages:
            raise BadRequestError("a pipeline needs a draft node and at least one stage")
        repeated = sorted({address for address in every if every.count(address) > 1})
        if repeated:
            raise BadRequestError(f"{', '.join(repeated)} is named twice; an agent takes one role")

    def is_served_by(self, device: Device) -> bool:
        """Whether the device is the draft node of just this pipeline, of any split where none is given."""
        return (
            (device.stage_addresses, device.middles) == (self.stages, self.middles)
            and (device.model, device.quant) == (self.model, self.quant)
            and device.drafter == drafter_label(self.drafter)
            and self.split in ((), device.stage_layers)
        )


def assemble(
    spec: PipelineSpec,
    report: OnProgress,
    timeout_s: float = LOAD_TIMEOUT_S,
    on_transfer: OnTransfer = lambda *_: None,
) -> str:
    """Has the draft node set up its pipeline; returns the pipeline's id when all devices have loaded.

    report: told what each device is doing; on_transfer: how far it is with fetching weights, again and again.
    Raises the error of the device that failed, DeadlineError when nothing is heard for `timeout_s`.
    """
    pipeline = uuid.uuid4().hex
    role = pb.DraftNodeRole(
        pipeline=pipeline,
        model=spec.model,
        drafter=drafter_label(spec.drafter),
        drafters=spec.drafter,
        quant=spec.quant,
        stages=spec.stages,
        split=spec.split,
        protocol_version=PROTOCOL_VERSION,
        middles=[pb.Middle(model=model, address=address) for model, address in spec.middles],
    )
    ready = False
    with open_sync_channel(spec.draft_node, CHANNEL_OPTIONS) as channel:
        call = agent_stub(channel).BecomeDraftNode(role)
        with Watchdog(timeout_s, call.cancel) as watchdog:
            try:
                for progress in call:
                    watchdog.extend()
                    if progress.message:
                        report(progress.device, progress.message)
                    if progress.HasField("transfer"):
                        on_transfer(progress.device, Transfer.from_proto(progress.transfer))
                    ready = progress.ready
            except grpc.RpcError as error:
                if watchdog.expired:
                    raise DeadlineError(f"nothing was heard of the pipeline for {timeout_s:g} s") from error
                raise from_status(error, spec.draft_node) from error
    if not ready:
        raise ended_early(spec.draft_node, "all devices were ready")
    return pipeline


def release(addresses: Sequence[str], pipeline: str, timeout_s: float = 10.0) -> None:
    """Has the agents give up their roles in a pipeline and free the memory."""
    for address in addresses:
        with open_sync_channel(check_address(address), CHANNEL_OPTIONS) as channel:
            stub = agent_stub(channel)
            try:
                stub.Release(pb.ReleaseRequest(pipeline=pipeline), timeout=timeout_s)
            except grpc.RpcError as error:
                raise from_status(error, address) from error
