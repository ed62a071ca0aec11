"""Setting up the devices of a pipeline, from the draft node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc.aio

from flowedge.agent.roles.other_agents import CHANNEL_OPTIONS, MetMembers, all_or_none, describe
from flowedge.cluster.tls.channels import open_channel
from flowedge.core.errors import DeviceError, DeviceLostError, FlowEdgeError
from flowedge.core.ids import pipeline_label
from flowedge.core.pipeline_config import AUTO
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.network.deadline import within
from flowedge.network.device_state import ConnectResult
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.network.ports import try_connect
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    from flowedge.agent.holding.stage_content import StageContent
    from flowedge.models.checkpoint.checkpoint import Checkpoint

RELEASE_S = 3.0
_WATCH_S = 0.5  # between two questions to a stage while the pipeline is set up
_ANSWER_S = 1.0  # for a stage to say what it is, while it is not loading
_MISSED = 3  # answers in succession after which a stage is lost; it may be busy with loading

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ReportProgress(Protocol):
    """Tells the caller what a device is doing; `transfer` is its progress in fetching weights."""

    async def __call__(self, device: str, text: str, transfer: pb.Transfer | None = None) -> None: ...


async def unreported(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
    """Report nothing, where nobody waits: a ReportProgress."""


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

    def content_of(self, stage: PlannedStage, weights: pb.WeightSources | None) -> pb.StageRole:
        """Return the role of a stage as far as it says what the stage holds, and where it gets that."""
        content = stage.content
        return pb.StageRole(
            layer_start=content.start,
            layer_stop=content.stop,
            fingerprint=self.checkpoint.fingerprint,
            taps=content.taps,
            route=self.number,
            vocab_size=content.vocab_size,
            weights=weights,
            config=content.config.to_json(),
        )

    @property
    def model(self) -> str:
        """The model as the user named it."""
        return self.stages[0].content.config.model

    @property
    def dtype(self) -> str:
        """The dtype of weights, KV cache and hidden states."""
        return self.stages[0].content.config.dtype

    @property
    def exact(self) -> bool:
        """Whether the stages are asked to compute exact rows."""
        return self.stages[0].content.exact


@dataclass(frozen=True)
class StageReady:
    """What a stage says of itself when it has loaded.

    Attributes:
        exact: whether its rows are exact; draws: whether it draws tokens.
        room: the sessions that it has room for.
    """

    exact: bool = False
    draws: bool = False
    room: pb.StageRoom = field(default_factory=pb.StageRoom)

    def limit(self, limits: AdmissionLimits) -> AdmissionLimits:
        """Return the limits of a pipeline with this stage."""
        room = self.room
        return limits.within(
            total_rows=room.total_rows,
            session_rows=room.session_rows,
            sessions=room.sessions,
            on_demand=room.on_demand,
            state_rows=room.state_rows,
            page_saving=room.page_saving,
            sharing=room.sharing,
        )


@dataclass(frozen=True)
class StageSetups:
    """The stages of a pipeline while it is set up: their tasks, and a watch over all of them.

    Attributes:
        tasks: have the stages load, those of the target first.
        names: of the stages, by address.
        silent: returns the name of the first stage that does not answer; "" when all do.
    """

    tasks: Sequence[asyncio.Task[StageReady]]
    watches: Sequence[asyncio.Task[None]]
    names: Mapping[str, str]
    silent: Callable[[], Awaitable[str]]

    async def ready(self) -> list[StageReady]:
        """Return what the stages say of themselves when all of them have loaded. Errors as `beside`."""
        return await self.beside(all_or_none(map(_result, self.tasks)))

    async def beside(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Return the result of a step of the set-up, which ends with an error when a stage is lost meanwhile.

        Raises what the step raises, and DeviceLostError with the name of the stage that is lost.
        """
        step = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait({step, *self.watches}, return_when=asyncio.FIRST_COMPLETED)
            for watch in self.watches:
                if watch.done() and not step.done():
                    watch.result()
            return await step
        except DeviceError as error:
            # A stage that has lost a neighbour gives up its role, and refuses what comes next.
            if all(map(_has_result, self.tasks)) and (silent := await self.silent()):
                raise _lost(silent) from error
            if error.device not in self.names:
                raise
            raise type(error)(self.names[error.device], error.reason) from error
        finally:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)


async def _result(task: asyncio.Task[T]) -> T:
    return await task


def _has_result(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _lost(stage: str) -> DeviceLostError:
    return DeviceLostError(stage, "it was lost while the pipeline was set up")


@dataclass(frozen=True)
class PipelineSetup:
    """Has the devices of a pipeline take their roles.

    Attributes:
        pipeline: its id.
        members: the members of the pipeline.
        address_for: returns the draft node's own address, as the device at an address reaches it.
        weights: by address, where a device gets its weights; a device that has its model is not in it.
        report: is told of the devices' progress.
        draft_node_s: seconds in which the draft node draws tokens, for a last stage that is to choose.
        link: the times of links.
        recovers: whether the draft node sets the pipeline up again when it loses a stage.
    """

    pipeline: str
    members: MetMembers
    address_for: Callable[[str], str]
    weights: Mapping[str, pb.WeightSources]
    report: ReportProgress
    draft_node_s: Awaitable[float]
    link: LinkSettings
    recovers: bool

    @asynccontextmanager
    async def loading(self, routes: Iterable[PlannedRoute]) -> AsyncIterator[StageSetups]:
        """Have all devices load at once, and watch them until the context is left.

        What is still loading then is called off.
        """
        # In a thread, since the address for a device may have to be looked up.
        roles = await asyncio.to_thread(lambda: [role for route in routes for role in self._roles(route)])
        stages = [stage for stage, _ in roles]
        tasks = [asyncio.create_task(self._set_up(stage, role)) for stage, role in roles]
        silent = partial(self._silent, stages)
        watches = [
            asyncio.create_task(self._watch(stage, task, silent))
            for stage, task in zip(stages, tasks, strict=True)
        ]
        try:
            yield StageSetups(tasks, watches, {stage.address: stage.name for stage in stages}, silent)
        finally:
            for task in (*tasks, *watches):
                task.cancel()
            await asyncio.gather(*tasks, *watches, return_exceptions=True)

    def _roles(self, route: PlannedRoute) -> Iterator[tuple[PlannedStage, pb.StageRole]]:
        last = self.address_for(route.stages[-1].address)
        downstream = [*(stage.address for stage in route.stages[1:]), last]
        members = self.members.neighbours([stage.address for stage in route.stages])
        for stage, next_address, permitted in zip(route.stages, downstream, members, strict=True):
            role = route.content_of(stage, self.weights.get(stage.address))
            role.MergeFrom(
                pb.StageRole(
                    pipeline=self.pipeline,
                    downstream=next_address,
                    protocol_version=PROTOCOL_VERSION,
                    members=permitted,
                    recovers=self.recovers,
                    before_stage=stage is not route.stages[-1],
                )
            )
            yield stage, role

    async def _set_up(self, stage: PlannedStage, role: pb.StageRole) -> StageReady:
        """Have a stage load its role."""
        ready: StageReady | None = None
        if stage.content.config.verification == AUTO:
            role.draft_node_s = await self.draft_node_s
        try:
            member = self.members.by_address.get(stage.address)
            async with await open_channel(stage.address, CHANNEL_OPTIONS, member=member) as channel:
                async for progress in rpc.AgentStub(channel).BecomeStage(role):
                    transfer = progress.transfer if progress.HasField("transfer") else None
                    await self.report(stage.name, progress.message, transfer)
                    of_stage = StageReady(progress.exact, progress.draws, progress.room)
                    ready = of_stage if progress.ready else None
        except grpc.aio.AioRpcError as error:
            raise from_status(error, stage.name) from error
        if ready is None:
            raise DeviceError(stage.name, "it ended its set-up without being ready")
        return ready

    async def _watch(
        self, stage: PlannedStage, loading: asyncio.Task[StageReady], silent: Callable[[], Awaitable[str]]
    ) -> None:
        """Ask a stage again and again whether it is there, until cancelled.

        A stage that has loaded says nothing more, and the others wait for it: nobody else would find out.

        Raises:
            DeviceLostError: when the stage does not answer, or has lost its role since it was ready, as it
                does when it loses a neighbour. It names the first of all stages that does not answer then.
        """
        missed = 0
        while missed < _MISSED:
            await asyncio.sleep(_WATCH_S)
            ready = loading.done()  # before it is asked
            try:
                device = await describe(stage.address, self.link)
            except FlowEdgeError as error:
                missed, reason = missed + 1, error.reason if isinstance(error, DeviceError) else str(error)
                if await try_connect(stage.address, _WATCH_S) is ConnectResult.REFUSED:
                    break  # its agent has ended
                continue
            missed = 0
            if ready and device.pipeline != pipeline_label(self.pipeline):
                if name := await silent():
                    raise _lost(name)
                raise DeviceLostError(stage.name, "it lost its role while the pipeline was set up")
        raise DeviceLostError(stage.name, f"it does not answer while the pipeline is set up: {reason}")

    async def _silent(self, stages: Sequence[PlannedStage]) -> str:
        """Return the name of the first stage that does not answer; "" when all do."""
        answers = await asyncio.gather(*map(self._answers, stages))
        return next((each.name for each, there in zip(stages, answers, strict=True) if not there), "")

    async def _answers(self, stage: PlannedStage) -> bool:
        try:
            await within(_ANSWER_S, describe(stage.address, self.link), f"{stage.name} did not answer")
        except FlowEdgeError:
            return False
        return True


async def release_stages(stages: Iterable[PlannedStage], pipeline: str, members: MetMembers) -> None:
    """Have the stages give up their roles in a pipeline; a stage that cannot be reached is left out."""

    async def release(stage: PlannedStage) -> None:
        try:
            member = members.by_address.get(stage.address)
            async with await open_channel(stage.address, CHANNEL_OPTIONS, member=member) as channel:
                await rpc.AgentStub(channel).Release(pb.ReleaseRequest(pipeline=pipeline), timeout=RELEASE_S)
        except (grpc.aio.AioRpcError, FlowEdgeError) as error:
            reason = error if isinstance(error, FlowEdgeError) else from_status(error, stage.address)
            _log.info("%s was not released: %s", stage.name, reason)

    await asyncio.gather(*(release(stage) for stage in stages))
