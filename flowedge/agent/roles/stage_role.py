"""The role of a stage: it holds a part of a model, between two other devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.agent.roles.stage_weights import StageWeights
from flowedge.core.errors import AccessError, DeviceLostError, FlowEdgeError, ProtocolError
from flowedge.core.ids import stage_name
from flowedge.core.pipeline_config import AUTO, OFF, ON
from flowedge.engine.stage.stage import Stage
from flowedge.live.live_stage import LiveStage
from flowedge.live.permitted_members import PermittedMembers
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.link import OutLink
from flowedge.network.deadline import within
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.model_opener import ReportFetch
from flowedge.weights.model_request import OpenedModel

if TYPE_CHECKING:
    from flowedge.agent.holding.stage_content import StageContent
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide
    from flowedge.engine.executors.block_executor import BlockExecutor

T = TypeVar("T")
MAX_URI = 256  # characters of a member's URI
RETRY_S = 0.1  # the next device may still be loading
UNREACHED = 2.0  # times connect_s for which the next device may be out of reach


class StageRole(PipelineRole):
    """Loads its content, opens the link to the next device, then works until the pipeline ends.

    Attributes:
        room: the sessions that it has room for; empty before it is loaded.
    """

    _live: LiveStage | None
    _executor: BlockExecutor | None

    def __init__(self, agent: Agent, request: pb.StageRole, caller: str | None = None) -> None:
        """caller: URI of the draft node that gives the role (see Member.uri); None in plaintext."""
        super().__init__(agent.name, agent.compute, agent.left, request, caller)
        self._agent = agent
        self._permitted: PermittedMembers | None = None
        self._request = request
        # A draft node that is a stage as well has two names, so that reports tell which of them is meant.
        self._name = stage_name(agent.name) if agent.roles.leads(request.pipeline) else agent.name
        self._ready_at = 0.0
        self.room = pb.StageRoom()

    @property
    def in_use(self) -> bool:
        if self._stopped or self._live is None or not self._loaded:
            return not self._stopped
        waiting = time.monotonic() - self._ready_at < self._agent.config.deadlines.claim_s
        return self._live.in_use or (waiting and self._live.alive)

    @property
    def recovers(self) -> bool:
        return self._request.recovers

    @property
    def exact(self) -> bool:
        """Whether the bits of a row do not depend on the rows beside it; False before it is loaded."""
        executor = self._executor
        if executor is None or not executor.block.exact:
            return False
        return executor.head is None or executor.head.exact

    @property
    def draws(self) -> bool:
        """Whether the stage has the LM head, to draw tokens; False before it is loaded."""
        return self._executor is not None and self._executor.head is not None

    async def take_up(self, report: ReportFetch) -> None:
        """Take the role up. Raises FlowEdgeError, DeadlineError when it takes too long."""
        await self._until_stopped(self._load(report))

    async def _load(self, report: ReportFetch) -> None:
        agent, request = self._agent, self._request
        self._permitted = None if self.owner is None else permitted_members(request, self.owner)
        layers = f"layers {request.layer_start} to {request.layer_stop - 1}"
        await report(f"loading {layers}{f' of middle model {self.config.model}' if request.route else ''}")
        side = await agent.compute_side()
        content = side.content_of(request, self.config)
        self._content = content, request.fingerprint
        left = agent.left.take(self._content)
        if left is None:
            executor, opened = await self._load_content(side, content, report)
        else:
            await report(f"{layers} are loaded still")
            executor, opened = cast("BlockExecutor", left.executor), cast("OpenedModel", left.opened)
        self._executor, self._opened = executor, opened
        spec = side.stage_spec(executor, opened.checkpoint)
        if executor.block.inexact_reason:
            await report(f"rows are not exact: {executor.block.inexact_reason}")
        self.cache_budget = spec.max_total_capacity * executor.cache_row_bytes
        self.room = pb.StageRoom(
            total_rows=spec.max_total_capacity,
            session_rows=spec.max_capacity,
            sessions=spec.max_sessions,
            on_demand=spec.on_demand,
            state_rows=spec.state_rows,
            page_saving=spec.page_saving,
            sharing=spec.sharing,
        )
        self._live = LiveStage(
            Stage(self._name, spec),
            executor,
            agent.make_timing(agent.compute),
            lambda reason: agent.roles.drop_soon(self, reason),
            agent.observer,
            pipeline=self.label,
            permitted=self._permitted,
        )
        await report(f"connecting to {request.downstream}")
        await self._live.connect(self._open_downstream)
        self._check_not_stopped()
        self._ready_at, self._loaded = time.monotonic(), True

    async def _load_content(
        self, side: ComputeSide, content: StageContent, report: ReportFetch
    ) -> tuple[BlockExecutor, OpenedModel]:
        request = self._request
        if request.HasField("weights"):
            weights = StageWeights(self._agent, request, self.config)
            opened = self._opened = await weights.open(side, content, report)
        else:
            opened = self._opened = await self._run(lambda: side.open_here(content, request.fingerprint))
        self._check_not_stopped()
        executor = self._executor = await self._run(lambda: side.load_stage(content, opened))
        self._check_not_stopped()
        if self.config.verification == AUTO:
            seconds = request.draft_node_s
            await report(await self._run(lambda: side.choose_head(executor, content, opened, seconds)))
        return executor, opened

    async def _run(self, function: Callable[[], T]) -> T:
        """Run a function in the compute thread. Raises DeadlineError when it takes too long."""
        agent = self._agent
        what = f"device {agent.name} did not load"
        return await within(agent.config.deadlines.load_s, agent.run(function), what)

    def describe(self, device: pb.Device) -> None:
        request = self._request
        device.role = role_name(request)
        device.pipeline = self.label
        device.layer_start, device.layer_stop = request.layer_start, request.layer_stop
        device.config = self.config.changed(exact=ON if self.exact else OFF).to_json()
        if self._executor is not None:
            device.weight_bytes = self._executor.weight_bytes
            device.cache_bytes = self._executor.cache_bytes

    async def _open_downstream(self, events: LinkEvents) -> OutLink:
        """Try until the next device, which is set up at the same time, takes the stream.

        Raises DeviceLostError also when that device could not be reached for a while, though it may load yet.
        """
        agent, request = self._agent, self._request
        reached = time.monotonic()
        deadline = reached + agent.config.deadlines.load_s
        while True:
            self._check_not_stopped()
            try:
                return await agent.open_link(
                    self.pipeline,
                    request.downstream,
                    LinkKind.IN_BAND,
                    events,
                    route=request.route,
                    to_stage=request.before_stage,
                    member=self._permitted.downstream if self._permitted is not None else None,
                )
            except AccessError:  # another member is there, which no wait changes
                raise
            except FlowEdgeError as error:
                now = time.monotonic()
                if not isinstance(error, DeviceLostError):
                    reached = now
                if now > min(deadline, reached + UNREACHED * agent.config.link.connect_s):
                    raise
            await asyncio.sleep(RETRY_S)


def role_name(request: pb.StageRole) -> str:
    """Return the name of a stage's role in descriptions and in the log."""
    return "middle model" if request.route else "stage"


def permitted_members(request: pb.StageRole, caller: str) -> PermittedMembers:
    """Return the members that a request of the draft node `caller` names.

    Raises:
        ProtocolError: when one is missing or malformed, or another draft node is named.
    """
    named = request.members
    for place, uri in (("upstream", named.upstream), ("downstream", named.downstream)):
        if not (0 < len(uri) <= MAX_URI and uri.isascii() and uri.isprintable()):
            raise ProtocolError(f"the role does not name the member that is {place} of the stage")
    if named.draft_node != caller:
        raise ProtocolError("the role names another draft node than its caller")
    return PermittedMembers(named.upstream, named.draft_node, named.downstream)
