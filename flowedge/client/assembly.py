"""Setting up a pipeline of agents, and releasing its agents."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio

from flowedge.client.channel import open_stub, stream_ended
from flowedge.client.device import Device
from flowedge.client.loop_thread import ReadAhead, run
from flowedge.core.errors import BadRequestError, DeadlineError
from flowedge.core.ids import new_pipeline_id
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.network.address import checked_address
from flowedge.network.deadline import within
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION
from flowedge.weights.fetch.progress import FetchProgress, OnTransfer

OnProgress = Callable[[str, str], None]  # name of a device, what it is doing
LOAD_TIMEOUT_S = 900.0


class PipelineSpec(PipelineConfig):
    """The settings of a pipeline, and which agents do what.

    Attributes:
        draft_node: its address.
        stages: addresses in the order of the layers.
        middles: (model, addresses of its agents) of each middle model of a hierarchy, the smallest first;
            its layers are divided over these agents as evenly as possible.
        standby: address of an agent that leads the pipeline when the draft node is lost; "" for none.
        chooses: whether the draft node chooses among the stages: which take part, and in which order.
        hands_on: whether it also names another device as the draft node, if answers are clearly faster so.

    Raises:
        BadRequestError: when an address is malformed or used twice, there is no stage, or a setting is wrong.
            The draft node may be one of the stages as well.
    """

    draft_node: str
    stages: tuple[str, ...]
    middles: tuple[tuple[str, tuple[str, ...]], ...] = ()
    standby: str = ""
    chooses: bool = False
    hands_on: bool = False

    def model_post_init(self, _: Any, /) -> None:
        addresses = [*self.stages, *self.middle_addresses]
        for address in (self.draft_node, *addresses, *filter(None, [self.standby])):
            checked_address(address)
        if not self.stages or not all(agents for _, agents in self.middles):
            raise BadRequestError(
                "a pipeline needs a draft node, at least one stage, and an agent for each middle model"
            )
        repeated = sorted({address for address in addresses if addresses.count(address) > 1})
        if self.draft_node in self.middle_addresses:
            repeated.append(self.draft_node)
        if self.standby == self.draft_node:
            raise BadRequestError(f"{self.standby} is the draft node; its standby must be another agent")
        if repeated:
            raise BadRequestError(f"{', '.join(repeated)} is named twice; an agent is one stage at most")

    @property
    def middle_addresses(self) -> tuple[str, ...]:
        """The addresses of the agents of all middle models, the smallest model's first."""
        return tuple(address for _, addresses in self.middles for address in addresses)

    def led_by(self, draft_node: str) -> PipelineSpec:
        """Return the pipeline with another of its devices as the draft node for good."""
        stages = dict.fromkeys((self.draft_node, *self.stages))
        stages.pop(draft_node, None)
        return self.changed(draft_node=draft_node, stages=tuple(stages), hands_on=False)

    def is_served_by(self, device: Device) -> bool:
        """Return whether the device is the draft node of this pipeline (see `is_met_by`).

        A pipeline that has lost a device may have fewer stages.
        """
        met = device.config is not None and self.is_met_by(device.config)
        there = set(device.stage_addresses)
        return met and bool(there) and there <= set(self.stages) and device.middles == self.middles


def assemble(
    spec: PipelineSpec,
    report: OnProgress,
    timeout_s: float = LOAD_TIMEOUT_S,
    on_transfer: OnTransfer = lambda *_: None,
    limit_s: float | None = None,
    on_leader: Callable[[PipelineSpec], None] = lambda _: None,
) -> str:
    """Have the draft node set up its pipeline; return the pipeline's id when all devices have loaded.

    Args:
        report: called with what each device is doing.
        timeout_s: seconds without any news after which the call is given up.
        on_transfer: called again and again while a device fetches weights.
        limit_s: seconds after which the call is given up in any case; None: as long as there is news.
        on_leader: called with the pipeline as it is to be when a device hands on (see PipelineSpec.hands_on).

    Raises:
        DeadlineError: when nothing was heard for `timeout_s` seconds, or after `limit_s`.
        FlowEdgeError: the error of the device that failed.
    """
    while True:
        pipeline, leader = new_pipeline_id(), ""
        with ReadAhead(_set_up(spec, pipeline, timeout_s, limit_s)) as progresses:
            for progress in progresses:
                _report(progress, report, on_transfer)
                leader = progress.draft_node
        if not leader:
            return pipeline
        spec = spec.led_by(leader)
        on_leader(spec)


async def assemble_async(
    spec: PipelineSpec,
    report: OnProgress,
    timeout_s: float = LOAD_TIMEOUT_S,
    on_transfer: OnTransfer = lambda *_: None,
) -> str:
    """`assemble` for asyncio, with the draft node that is named."""
    pipeline, spec = new_pipeline_id(), spec.changed(hands_on=False)
    async with aclosing(_set_up(spec, pipeline, timeout_s)) as progresses:
        async for progress in progresses:
            _report(progress, report, on_transfer)
    return pipeline


async def _set_up(
    spec: PipelineSpec, pipeline: str, timeout_s: float, limit_s: float | None = None
) -> AsyncGenerator[pb.RoleProgress, None]:
    """Have the draft node set up its pipeline, and yield what it tells; errors are those of `assemble`."""
    role = pb.DraftNodeRole(
        pipeline=pipeline,
        stages=spec.stages,
        protocol_version=PROTOCOL_VERSION,
        middles=[pb.Middle(model=model, addresses=addresses) for model, addresses in spec.middles],
        config=spec.to_json(),
        standby=spec.standby,
        chooses=spec.chooses,
        hands_on=spec.hands_on,
    )
    ready, news = False, "none"
    until = None if limit_s is None else time.monotonic() + limit_s
    async with open_stub(spec.draft_node) as stub:
        call = stub.BecomeDraftNode(role)
        try:
            while True:
                left_s = timeout_s if until is None else min(timeout_s, until - time.monotonic())
                progress = await within(left_s, call.read(), "no reply came")
                if progress is grpc.aio.EOF:
                    break
                yield progress
                ready = progress.ready or bool(progress.draft_node)
                news = f"{progress.device}: {progress.message}" if progress.message else news
        except DeadlineError as error:
            if until is not None and time.monotonic() >= until:
                late = f"the pipeline was not set up within {limit_s:g} s; the last news: {news}"
                raise DeadlineError(late) from error
            raise DeadlineError(f"no news of the pipeline for {timeout_s:g} s; the last: {news}") from error
        finally:
            call.cancel()
    if not ready:
        raise stream_ended(spec.draft_node, "all devices were ready")


def _report(progress: pb.RoleProgress, report: OnProgress, on_transfer: OnTransfer) -> None:
    if progress.message:
        report(progress.device, progress.message)
    if progress.HasField("transfer"):
        on_transfer(progress.device, FetchProgress.from_proto(progress.transfer))


def release(addresses: Sequence[str], pipeline: str, timeout_s: float = 10.0) -> None:
    """Have agents give up their roles in a pipeline and free the memory.

    Args:
        pipeline: id of the pipeline; "" for whatever pipeline an agent is part of.

    Raises:
        FlowEdgeError: the error of the first agent that fails; the agents after it are not asked.
    """

    async def release_all() -> None:
        for address in addresses:
            async with open_stub(address) as stub:
                await stub.Release(pb.ReleaseRequest(pipeline=pipeline), timeout=timeout_s)

    run(release_all())
