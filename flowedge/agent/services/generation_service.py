"""The Generation service of a draft node: a request in, a stream of text and tokens out."""

# ruff: noqa: N802 (the method name is gRPC's)

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flowedge.agent.metrics import AgentMetrics
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.services.answer_stream import KEEP_ALIVE, AnswerStream, await_role, check_leads
from flowedge.agent.services.begun_answer import BegunAnswer, read_request
from flowedge.agent.services.pipeline_watch import PipelineWatches
from flowedge.agent.services.prompt_encoding import PromptEncoder
from flowedge.agent.services.request_log import RequestLog
from flowedge.cluster.tls.guard import caller_key
from flowedge.core.errors import DeviceError, DeviceLostError, FlowEdgeError, PipelineNotReadyError
from flowedge.core.ids import new_request_id
from flowedge.network.grpc_status import abort
from flowedge.network.log_rate import LogRate
from flowedge.network.replies import send_reply
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1 import generation_pb2_grpc as rpc

if TYPE_CHECKING:
    from flowedge.engine.executors.draft_models import DraftModels

REFUSALS_LOGGED = 10  # requests of one client a minute


class GenerationService(rpc.GenerationServicer):
    """Serves requests with the pipeline of which this device is the draft node."""

    def __init__(self, agent: Agent, metrics: AgentMetrics) -> None:
        self._agent = agent
        self._metrics = metrics
        self._refusals = LogRate(REFUSALS_LOGGED)
        self._encoder = PromptEncoder(agent.config.limits.encodings, agent.config.deadlines.progress_s)
        self._watches = PipelineWatches(agent.name, agent.config.deadlines.read_s)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:
        """Stream one generation; when the client goes away its session is closed."""
        request.request_id = request.request_id or new_request_id()
        log = RequestLog(request.request_id, str(context.peer()), caller_key(context), self._refusals)
        try:
            self._agent.roles.check_open()
            role = await self._role_again(request, context) if request.answers_as else self._role()
            await self._generate(role, request, context, log)
        except FlowEdgeError as error:
            log.failed(error)
            await abort(context, error)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> None:
        """Stream what happens in the pipeline, until the caller ends the call or the pipeline ends.

        A caller that only waits for the pipeline hears why it is not ready, until it is.
        """
        try:
            if request.until_ready:
                await self._watches.await_ready(lambda: self._agent.not_ready, context)
                self._role()  # there may be none
            else:
                await self._watches.serve(self._role(), context)
        except FlowEdgeError as error:
            await abort(context, error)

    def _role(self) -> DraftNodeRole:
        """Return the role of the pipeline that answers requests.

        Raises:
            DeviceError: when the device leads no pipeline.
            PipelineNotReadyError: while its pipeline is being set up, or another device leads it.
        """
        not_ready = self._agent.not_ready
        if not_ready:
            raise PipelineNotReadyError(self._agent.name, not_ready)
        role = self._agent.roles.role
        if not isinstance(role, DraftNodeRole):
            check_leads(self._agent)
            raise DeviceError(self._agent.name, "it is not a draft node; ask the draft node of a pipeline")
        return role

    async def _role_again(self, request: pb.GenerateRequest, context: Any) -> DraftNodeRole:
        """Return the role that goes on with an answer whose caller has lost it.

        Raises what `await_role` raises.
        """
        agent = self._agent
        lost = DeviceLostError(agent.name, "it, or the connection to it, was lost")
        until = time.monotonic() + agent.config.deadlines.recovery_s
        return await await_role(agent, lost, until, context, request.answers_as)

    async def _generate(
        self, role: DraftNodeRole, message: pb.GenerateRequest, context: Any, log: RequestLog
    ) -> None:
        arrived = time.monotonic()
        _, models = role.serving()
        begun = await self._encoded(message, models, context, log.caller)
        begun = replace(begun, answers_as=role.answers_as)
        stream = AnswerStream(
            self._agent, self._metrics, role, begun, context, log, arrived, goes_on=message.goes_on
        )
        await stream.serve()

    async def _encoded(
        self, message: pb.GenerateRequest, models: DraftModels, context: Any, caller: str
    ) -> BegunAnswer:
        """Return the request with its prompt as tokens, and its answer as far as the caller has it.

        Meanwhile the client hears that it is being served.

        Raises what `read_request` and PromptEncoder.run raise.
        """
        config = self._agent.config
        encode = partial(read_request, message, models, config.limits, caller)
        encoding = asyncio.ensure_future(self._encoder.run(caller, encode, message.ByteSize()))
        try:
            while not (await asyncio.wait({encoding}, timeout=config.deadlines.keep_alive_s))[0]:
                await send_reply(context, KEEP_ALIVE, config.deadlines.read_s)
        finally:
            encoding.cancel()  # has an effect only if the client went away
        return encoding.result()
