"""The role of a stage: it holds a part of a model, between two other devices."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.core.errors import AccessError, FlowEdgeError, ProtocolError
from flowedge.core.pipeline_config import AUTO, OFF, ON
from flowedge.engine.stage.stage import Stage
from flowedge.live.live_stage import LiveStage
from flowedge.live.permitted_members import PermittedMembers
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.link import OutLink
from flowedge.network.deadline import within
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.model_opener import ModelOpener, ReportFetch
from flowedge.weights.model_request import ModelRequest, OpenedModel

if TYPE_CHECKING:
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide
    from flowedge.agent.roles.stage_content import StageContent
    from flowedge.engine.executors.block_executor import BlockExecutor

MAX_URI = 256  # characters of a member's URI
RETRY_S = 0.1  # the next device may still be loading


class StageRole(PipelineRole):
    """Loads its content, opens the link to the next device, then works until the pipeline ends.

    Attributes:
        room: the sessions that it has room for; empty before it is loaded.
    """

    _live: LiveStage | None
    _executor: BlockExecutor | None

    def __init__(self, agent: Agent, request: pb.StageRole, caller: str | None = None) -> None:
        """caller: URI of the draft node that gives the role (see Member.uri); None in plaintext."""
        super().__init__(agent.name, agent.compute, request, caller)
        self._permitted: PermittedMembers | None = None
        self._agent = agent
        self._request = request
        self._ready_at = 0.0
        self.room = pb.StageRoom()

    @property
    def in_use(self) -> bool:
        if self._stopped or self._live is None or not self._loaded:
            return not self._stopped
        waiting = time.monotonic() - self._ready_at < self._agent.config.deadlines.claim_s
        return self._live.in_use or (waiting and self._live.alive)

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
        opened = await self._open(side, content, report)
        loading = agent.run(lambda: side.load_stage(content, opened))
        executor = await within(agent.config.deadlines.load_s, loading, f"device {agent.name} did not load")
        self._check_not_stopped()
        self._executor = executor
        if self.config.verification == AUTO:
            choosing = agent.run(lambda: side.choose_head(executor, content, opened, request.draft_node_s))
            await report(
                await within(agent.config.deadlines.load_s, choosing, f"device {agent.name} did not load")
            )
        spec = side.stage_spec(executor, opened.checkpoint)
        if executor.block.inexact_reason:
            await report(f"rows are not exact: {executor.block.inexact_reason}")
        self.cache_budget = spec.max_total_capacity * executor.cache_row_bytes
        self.room = pb.StageRoom(
            total_rows=spec.max_total_capacity, session_rows=spec.max_capacity, sessions=spec.max_sessions
        )
        self._live = LiveStage(
            Stage(agent.name, spec),
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

    def describe(self, device: pb.Device) -> None:
        request = self._request
        device.role = role_name(request)
        device.pipeline = self.label
        device.layer_start, device.layer_stop = request.layer_start, request.layer_stop
        device.config = self.config.changed(exact=ON if self.exact else OFF).to_json()
        if self._executor is not None:
            device.weight_bytes = self._executor.weight_bytes
            device.cache_bytes = self._executor.cache_bytes

    async def _open(self, side: ComputeSide, content: StageContent, report: ReportFetch) -> OpenedModel:
        """Open the model and admit the content; fetch its tensors if the draft node says from whom."""
        agent, request = self._agent, self._request
        if not request.HasField("weights"):
            opening = agent.run(lambda: side.open_here(content, request.fingerprint))
            return await within(agent.config.deadlines.load_s, opening, f"device {agent.name} did not load")
        opener = ModelOpener(agent.name, agent.local_weights, agent.config.weights, agent.run, report)
        self._opened = await opener.open(
            ModelRequest.from_proto(
                request.weights,
                self.config.model,
                request.fingerprint,
                content.tensors,
                lambda: content.quantised,
                admit=lambda checkpoint: side.admit(content, request.fingerprint, checkpoint),
            )
        )
        self._check_not_stopped()
        return self._opened

    async def _open_downstream(self, events: LinkEvents) -> OutLink:
        """Try until the next device, which is set up at the same time, takes the stream."""
        agent, request = self._agent, self._request
        deadline = time.monotonic() + agent.config.deadlines.load_s
        while True:
            self._check_not_stopped()
            try:
                return await agent.open_link(
                    self.pipeline,
                    request.downstream,
                    LinkKind.IN_BAND,
                    events,
                    route=request.route,
                    member=self._permitted.downstream if self._permitted is not None else None,
                )
            except AccessError:  # another member is there, which no wait changes
                raise
            except FlowEdgeError:
                if time.monotonic() > deadline:
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
