"""The Agent service: the description of a device, and the role it takes."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.coordinator import ReportProgress
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.layer_division import OtherDraftNodeError
from flowedge.agent.roles.led_pipeline import LedPipeline, Standby
from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.agent.roles.stage_role import StageRole, role_name
from flowedge.agent.roles.stage_weights import FetchingAhead
from flowedge.cluster.process import current
from flowedge.cluster.tls.guard import certified_member, only_giver
from flowedge.core.errors import BadRequestError, DeviceError, FlowEdgeError, ProtocolError
from flowedge.core.ids import pipeline_label
from flowedge.core.log_fields import Fields, about
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.live import timeline
from flowedge.network.address import checked_address
from flowedge.network.grpc_handlers import Context
from flowedge.network.replies import send_reply
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION

MAX_STAGES = 256  # of one pipeline, middle models included

RoleRequest: TypeAlias = pb.StageRole | pb.DraftNodeRole
Role = TypeVar("Role", bound=PipelineRole)

_log = logging.getLogger(__name__)


class AgentService(rpc.AgentServicer):
    """The service of one device."""

    def __init__(self, agent: Agent, ahead: FetchingAhead) -> None:
        self._agent = agent
        self._ahead = ahead

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Device:
        device = self._agent.info.describe(request.quant)
        if self._agent.roles.role is not None:
            self._agent.roles.role.describe(device)
        device.not_ready = self._agent.not_ready
        device.computing_s = self._agent.compute.computing_s
        device.throttled = str(self._agent.throttling.state)
        if self._agent.stands_by is not None:
            device.stands_by_for = self._agent.stands_by.address
        return device

    async def Membership(self, request: pb.MembershipRequest, context: Context) -> pb.MembershipReply:
        store = current().store
        if store is None:
            return pb.MembershipReply()
        return pb.MembershipReply(
            certificate=store.credentials.certificate_pem, revocation_lists=store.revoked.pem
        )

    async def BecomeStage(self, request: pb.StageRole, context: Context) -> None:
        role = _made(request, lambda: StageRole(self._agent, request, certified_member(context)))
        name = self._agent.name
        await self._become(
            context,
            lambda report: self._take(role, request, lambda: role.take_up(partial(report, name))),
            lambda: pb.RoleProgress(exact=role.exact, draws=role.draws, room=role.room),
        )

    async def BecomeDraftNode(self, request: pb.DraftNodeRole, context: Context) -> None:
        caller = certified_member(context)

        async def take(report: ReportProgress) -> None:
            await self.lead(request, report, caller, instead=True)

        try:
            await self._become(context, take)
        except OtherDraftNodeError as error:
            progress = pb.RoleProgress(device=error.device, message=error.reason, draft_node=error.address)
            await send_reply(context, progress, self._agent.config.deadlines.read_s)

    async def lead(
        self,
        request: pb.DraftNodeRole,
        report: ReportProgress,
        caller: str | None = None,
        *,
        instead: bool = False,
    ) -> None:
        """Take the role of a draft node; return when the pipeline is ready.

        caller: URI of the member that asks for it (see Member.uri); None in plaintext and without a caller.
        instead: whether it takes the place of a pipeline that is being set up again after a loss.

        Raises the FlowEdgeError for which the role cannot be taken.
        """
        current().check_leads()
        role = _made(request, lambda: DraftNodeRole(self._agent, request, caller=caller))

        async def take_up() -> None:
            if instead:
                self._agent.recovering = ""
            await role.take_up(report)

        await self._take(role, request, take_up)

    async def StandBy(self, request: pb.StandByRequest, context: Context) -> pb.StandByReply:
        agent = self._agent
        _check(request.role)
        checked_address(request.role.standby)
        PipelineConfig.from_json(request.role.config)
        agent.roles.check_open()
        current().check_leads()
        standby = Standby(
            LedPipeline(request.role, request.origin, request.owner or None),
            request.instance,
            time.monotonic(),
        )
        role, before = agent.roles.role, agent.stands_by
        if isinstance(role, DraftNodeRole) and role.in_use:
            raise DeviceError(agent.name, f"it leads pipeline {role.label}, so it stands by for no other")
        if before is not None and before.led.origin != request.origin:
            raise DeviceError(agent.name, f"it stands by for the draft node at {before.address} already")
        if agent.recovering == request.origin:
            agent.recovering = ""  # its draft node is there, and leads it
        agent.stands_by = standby
        return pb.StandByReply()

    async def Prepare(self, request: pb.PrepareRequest, context: Context) -> pb.PrepareReply:
        if len(request.stages) > MAX_STAGES:
            raise ProtocolError(f"a device is to prepare for {len(request.stages)} stages, not {MAX_STAGES}")
        await self._agent.compute_side()
        if request.stages:
            await self._ahead.begin(request.stages)
        return pb.PrepareReply()

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        await self._agent.roles.release(request.pipeline, giver=only_giver(context))
        self._agent.left.free()
        if request.pipeline in ("", self._agent.recovering):
            self._agent.recovering = ""  # nobody wants it any more
        standby = self._agent.stands_by
        if standby is not None and request.pipeline in ("", standby.led.origin):
            self._agent.stands_by = None
        return pb.ReleaseReply()

    async def Timeline(self, request: pb.TimelineRequest, context: Context) -> pb.TimelineReply:
        role = self._agent.roles.role
        if role is None:
            raise DeviceError(self._agent.name, "it has no role, and so no timeline")
        parts = [role.timeline()] if role.stage is None else [role.timeline(), role.stage.timeline()]
        found = [part.of(request.session) for part in parts]
        events = [event for each, _ in found for event in each]
        return timeline.encode(events, sum(dropped for _, dropped in found))

    async def Clock(self, request: pb.ClockRequest, context: Context) -> pb.ClockReply:
        return pb.ClockReply(now_s=time.monotonic(), wall_s=time.time())

    async def _become(
        self,
        context: Context,
        take: Callable[[ReportProgress], Awaitable[None]],
        describe: Callable[[], pb.RoleProgress] = pb.RoleProgress,
    ) -> None:
        """describe: returns what is said of the role once it is taken."""
        writing, read_s = asyncio.Lock(), self._agent.config.deadlines.read_s

        async def report(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
            async with writing:
                progress = pb.RoleProgress(device=device, message=text, transfer=transfer)
                await send_reply(context, progress, read_s)

        await take(report)
        ready = describe()
        ready.device, ready.message, ready.ready = self._agent.name, "ready", True
        await send_reply(context, ready, read_s)

    async def _take(
        self,
        role: PipelineRole,
        request: RoleRequest,
        load: Callable[[], Awaitable[None]],
    ) -> None:
        started = time.monotonic()
        fields = _role_fields(request) | Fields(model=role.config.model, quant=role.config.quant)
        try:
            await self._ahead.end()
            await self._agent.roles.take(role)
            _log.info("a role is being taken", extra=about(**(fields | {"event": "role_taken"})))
            try:
                await load()
            except BaseException as error:
                await self._agent.roles.drop(role, f"it could not be loaded: {error}")
                release_frames(error)
                raise
        except FlowEdgeError as error:
            _log_refusal(fields, error)
            raise
        loaded = about(**(fields | {"event": "role_loaded", "seconds": time.monotonic() - started}))
        _log.info("the role is ready", extra=loaded)


def _made(request: RoleRequest, make: Callable[[], Role]) -> Role:
    """Return the role that a request is for.

    Raises:
        BadRequestError: when the request is wrong.
        ProtocolError: when it is of another version of the protocol.
    """
    try:
        _check(request)
        return make()
    except FlowEdgeError as error:
        _log_refusal(_role_fields(request), error)
        raise


def _log_refusal(fields: Fields, error: FlowEdgeError) -> None:
    refused = about(**(fields | {"event": "role_refused", "code": error.code}))
    _log.warning("the role was refused: %s", error, extra=refused)


def release_frames(error: BaseException) -> None:
    """Free what the frames of an error and of its causes hold; frames that still run keep it.

    An error and its frames hold each other, and the weights in such a cycle must not wait for its collection.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def check_version(version: int) -> None:
    """Raise ProtocolError for a request of another version of the protocol."""
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the request is of protocol {version}, this device speaks {PROTOCOL_VERSION}; "
            "install the same version on both"
        )


def _check(request: RoleRequest) -> None:
    check_version(request.protocol_version)
    if not 0 < len(request.pipeline) <= 64 or not (
        request.pipeline.isascii() and request.pipeline.isprintable()
    ):
        raise BadRequestError("a pipeline id is 1 to 64 printable ASCII characters")
    if isinstance(request, pb.DraftNodeRole):
        of_middles = sum(len(middle.addresses) for middle in request.middles)
        if len(request.stages) + max(of_middles, len(request.middles)) > MAX_STAGES:
            raise BadRequestError(f"a pipeline has at most {MAX_STAGES} stages and devices of middle models")
        if not all(middle.addresses for middle in request.middles):
            raise BadRequestError("a middle model has no agent; name one or more")


def _role_fields(request: RoleRequest) -> Fields:
    fields = Fields(pipeline=pipeline_label(request.pipeline))
    if isinstance(request, pb.DraftNodeRole):
        fields["role"] = "draft node"
    else:
        fields["role"] = role_name(request)
        fields["layers"] = f"{request.layer_start}-{request.layer_stop - 1}"
    return fields
