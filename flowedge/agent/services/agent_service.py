"""The Agent service: what a device is, and the role it takes."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc.aio

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.failed_load import release_frames
from flowedge.agent.roles.reporting import ReportProgress
from flowedge.agent.roles.role import PipelineRole, RoleHolder
from flowedge.agent.roles.stage_role import MakePacing, StageRole
from flowedge.core.errors import BadRequestError, DeviceError, FlowEdgeError, ProtocolError
from flowedge.core.log_fields import Fields, about
from flowedge.live import timeline_wire as timelines
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.net.grpc_status import abort
from flowedge.security.process import current
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION
from flowedge.weights.local_weights import LocalWeights

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

MAX_STAGES = 256  # of one pipeline, middle models included

_log = logging.getLogger(__name__)


class AgentService(rpc.AgentServicer):
    """Answers for one device."""

    def __init__(
        self,
        identity: DeviceInfo,
        roles: RoleHolder,
        config: AgentConfig,
        lane: ComputeThread,
        library: LocalWeights,
        observer: LiveObserver = UNOBSERVED,
        pacing: MakePacing | None = None,
    ) -> None:
        self._identity = identity
        self._roles = roles
        self._config = config
        self._lane = lane
        self._observer = observer
        self._library = library
        self._pacing = pacing

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Device:
        """The device and its role."""
        device = self._identity.describe()
        if self._roles.role is not None:
            self._roles.role.describe(device)
        return device

    async def BecomeStage(self, request: pb.StageRole, context: Context) -> None:
        """Take the role of a stage."""
        name = self._identity.name
        role = StageRole(
            name,
            request,
            self._config,
            self._lane,
            self._library,
            self._roles.drop_soon,
            self._observer,
            self._pacing,
        )
        await self._become(
            context, lambda report: self._take(role, request, lambda: role.load(partial(report, name)))
        )

    async def BecomeDraftNode(self, request: pb.DraftNodeRole, context: Context) -> None:
        """Take the role of a draft node, and give the stages theirs."""
        await self._become(context, lambda report: self.lead(request, report))

    async def lead(self, request: pb.DraftNodeRole, report: ReportProgress) -> None:
        """The same without a caller; returns when the pipeline is ready, or raises the FlowEdgeError."""
        current().check_leads()
        identity = self._identity
        role = DraftNodeRole(
            identity.name,
            identity.address_for,
            request,
            self._config,
            self._lane,
            self._library,
            observer=self._observer,
            pacing=self._pacing,
        )
        await self._take(role, request, lambda: role.load(report))

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        """Give the role up."""
        await self._roles.release(request.pipeline)
        return pb.ReleaseReply()

    async def Timeline(self, request: pb.TimelineRequest, context: Context) -> pb.TimelineReply:
        """What the device did for a session."""
        role = self._roles.role
        try:
            if role is None:
                raise DeviceError(self._identity.name, "it has no role, and so no timeline")
            events, dropped = role.timeline().of(request.session)
        except FlowEdgeError as error:
            await abort(context, error)
        return timelines.encode(events, dropped)

    async def Clock(self, request: pb.ClockRequest, context: Context) -> pb.ClockReply:
        """The clock of the timelines, and that on the wall."""
        return pb.ClockReply(now_s=time.monotonic(), wall_s=time.time())

    async def _become(self, context: Context, take: Callable[[ReportProgress], Awaitable[None]]) -> None:
        writing = asyncio.Lock()

        async def report(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
            async with writing:
                await context.write(pb.RoleProgress(device=device, message=text, transfer=transfer))

        try:
            await take(report)
        except FlowEdgeError as error:
            await abort(context, error)
        await context.write(pb.RoleProgress(device=self._identity.name, message="ready", ready=True))

    async def _take(
        self,
        role: PipelineRole,
        request: pb.StageRole | pb.DraftNodeRole,
        load: Callable[[], Awaitable[None]],
    ) -> None:
        started, fields = time.monotonic(), _role_fields(request)
        try:
            _check(request)
            await self._roles.take(role)
            _log.info("a role is being taken", extra=about(**(fields | {"event": "role_taken"})))
            try:
                await load()
            except BaseException as error:
                await self._roles.drop(role, f"it could not be loaded: {error}")
                release_frames(error)
                raise
        except FlowEdgeError as error:
            refused = about(**(fields | {"event": "role_refused", "code": error.code}))
            _log.warning("the role was refused: %s", error, extra=refused)
            raise
        loaded = about(**(fields | {"event": "role_loaded", "seconds": time.monotonic() - started}))
        _log.info("the role is ready", extra=loaded)


def _check(request: pb.StageRole | pb.DraftNodeRole) -> None:
    if request.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the request is of protocol {request.protocol_version}, this device speaks {PROTOCOL_VERSION}; "
            "install the same version on both"
        )
    if not 0 < len(request.pipeline) <= 64 or not (
        request.pipeline.isascii() and request.pipeline.isprintable()
    ):
        raise BadRequestError("a pipeline id is 1 to 64 printable ASCII characters")
    if isinstance(request, pb.DraftNodeRole) and len(request.stages) + len(request.middles) > MAX_STAGES:
        raise BadRequestError(f"a pipeline has at most {MAX_STAGES} stages and middle models")


def _role_fields(request: pb.StageRole | pb.DraftNodeRole) -> Fields:
    fields = Fields(pipeline=request.pipeline, model=request.model, quant=request.quant or "none")
    if isinstance(request, pb.DraftNodeRole):
        fields["role"] = "draft node"
    else:
        fields["role"] = "middle model" if request.route else "stage"
        fields["layers"] = f"{request.layer_start}-{request.layer_stop - 1}"
    return fields
