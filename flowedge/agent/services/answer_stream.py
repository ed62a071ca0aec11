"""One answer on its way to a client, over as many pipelines as it takes."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from flowedge.agent.metrics import AgentMetrics
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.pipeline_role import BEING_STOPPED
from flowedge.agent.services.begun_answer import BegunAnswer
from flowedge.agent.services.request_log import RequestLog
from flowedge.core.errors import (
    CapacityError,
    DeviceError,
    DeviceLostError,
    DrainingError,
    OtherModelError,
    PipelineNotReadyError,
)
from flowedge.core.ids import request_of, session_of
from flowedge.core.log_fields import about
from flowedge.core.request import DecodeCounters, Failed, Finished, Opened, StageReport, Tokens, Waiting
from flowedge.engine.draft_node.session_admission import OutgrownError, PreemptedError
from flowedge.engine.statistics import RequestClock
from flowedge.live.running_request import RunningRequest
from flowedge.network.device_state import DeviceLoss, loss_of, state_of
from flowedge.network.replies import send_reply
from flowedge.v1 import generation_pb2 as pb

MAX_WAITING_OUTPUTS = 1024  # of one request, for a client that does not read
HAND_OVER_S = (
    2.0  # for answers to end when the device is stopped; what lasts longer goes on elsewhere, or later
)
FULL_S = 1.0  # before an answer that gave way asks again where the queue is full
LOOK_S = 0.05  # between two looks at a pipeline that is being set up again
KEEP_ALIVE = pb.GenerateEvent(keep_alive=pb.KeepAlive())

_log = logging.getLogger(__name__)


class AnswerStream:
    """Serves one request until its answer is complete.

    When its pipeline is lost, the answer goes on with the next one, behind the tokens that were put out. When
    it gives way to another request, it goes on with the same one in the same manner.
    A row depends on no neighbour and a draw on seed and position alone, so the rest of the answer is the one
    that it would have had.
    """

    def __init__(
        self,
        agent: Agent,
        metrics: AgentMetrics,
        role: DraftNodeRole,
        begun: BegunAnswer,
        context: Any,
        log: RequestLog,
        arrived: float,
        *,
        goes_on: bool = False,
    ) -> None:
        """
        role: of the first pipeline; context: gRPC's, of the call.
        arrived: when the request arrived, on time.monotonic().
        goes_on: whether the client asks for the rest by itself if the stream is broken off.
        """
        self._agent = agent
        self._goes_on = goes_on
        self._metrics = metrics
        self._role = role
        self._begun = begun
        self._request = begun.request  # goes on behind the tokens that were put out
        self._context = context
        self._log = log
        self._arrived = arrived
        self._clock = RequestClock(arrived)
        self._told_start = False
        self._gave_way = False  # its room, to another request or to its own rest
        self._moved = arrived  # when a token was put out the last time

    async def serve(self) -> None:
        """Stream the answer.

        Raises the error for which it cannot be completed; the loss of a device only if no pipeline has taken
        its place within `deadlines.recovery_s`.
        """
        if self._begun.ended is not None:
            await self._send_start()
            own = StageReport(self._agent.name)
            reports = (own, *(StageReport(name) for name in self._role.stage_names))
            request, reason = self._request, self._begun.ended
            await self._finish(Finished(request.session, reason, "", DecodeCounters(), reports), 0)
            return None
        while True:
            try:
                return await self._over(self._role)
            except (DeviceLostError, PipelineNotReadyError) as lost:
                self._role = await self._next_role(lost)
            except OutgrownError as error:
                self._begin_again("answer_outgrown", "an answer goes on in larger caches", error)
            except PreemptedError as error:
                self._begin_again("answer_paused", "an answer pauses, for others need its cache rows", error)
                waits = pb.Recovering(device=error.device, reason=error.reason)
                await self._send(pb.GenerateEvent(recovering=waits))
            except CapacityError as error:
                if not self._gave_way or error.retry_after_s is None:
                    raise
                await self._send(KEEP_ALIVE)
                await asyncio.sleep(min(error.retry_after_s, FULL_S))

    def _begin_again(self, event: str, what: str, error: DeviceError) -> None:
        """Have the rest of the answer be another session, for the one that it was has ended."""
        self._gave_way = True
        _log.info(what, extra=about(event=event, session=self._request.session, reason=error.reason))
        # Reports of the session that has ended may still be on their way.
        name = session_of(request_of(self._request.session))
        self._request = replace(self._request, session=name)

    async def _over(self, role: DraftNodeRole) -> None:
        """Stream the rest of the answer over one pipeline. Raises the error by which it is broken off."""
        live, _ = role.serving()
        running = role.start(self._request, time.monotonic() if self._gave_way else self._arrived)
        self._request = running.request
        try:
            await self._wait_until_open(running)
            with self._log.session(self._request, role.label, self._clock):
                await self._send_start(running)
                await self._stream(running)
        finally:
            live.end(running)

    async def _next_role(self, lost: DeviceError) -> DraftNodeRole:
        """Return the role of the pipeline that takes the place of one that was lost.

        Raises the loss when this device is being stopped or sets up no other pipeline, and what
        `await_role` raises.
        """
        if self._agent.roles.draining or not self._agent.keeps_pipeline:
            raise lost
        fields = about(
            event="answer_recovering", session=self._request.session, peer=lost.device, reason=lost.reason
        )
        _log.warning("an answer is broken off, and goes on with the next pipeline", extra=fields)
        until = max(self._moved, self._arrived) + self._agent.config.deadlines.recovery_s
        role = await await_role(self._agent, lost, until, self._context, self._begun.answers_as, self._role)
        self._clock.recoveries += 1
        self._metrics.recovered()
        fields = about(
            event="answer_recovered",
            session=self._request.session,
            pipeline=role.label,
            seconds=time.monotonic() - self._moved,
        )
        _log.info("an answer goes on with another pipeline", extra=fields)
        return role

    async def _send_start(self, running: RunningRequest | None = None) -> None:
        if self._told_start:
            return
        request, begun = self._request, self._begun
        started = pb.Started(
            session=request.session,
            seed=request.sampling.seed,
            prompt_ids=request.prompt,
            waited_s=self._clock.queue_s,
            prompt_text=begun.prompt_text,
            system_folded=begun.system_folded,
            answers_as=begun.answers_as,
            standby=self._role.request.standby,
        )
        self._told_start = True
        await self._send(pb.GenerateEvent(started=started), running)

    async def _wait_until_open(self, running: RunningRequest) -> None:
        """Return when the request is open; meanwhile the client hears of its place in the queue.

        Raises the error that ends the wait.
        """
        if not running.waiting:
            return
        while True:  # `running.waiting` ends before its output is read, which says how long it waited
            output = await running.next_output(self._agent.config.deadlines.keep_alive_s)
            match output:
                case Waiting() if not self._told_start:
                    waiting = pb.Waiting(position=output.position, expected_s=output.expected_s)
                    await self._send(pb.GenerateEvent(waiting=waiting), running)
                case Opened():
                    self._clock.queue_s += output.waited_s
                    return
                case Failed():
                    raise output.error
                case _:
                    await self._send(KEEP_ALIVE, running)

    async def _stream(self, running: RunningRequest) -> None:
        outgoing = self._begun.outgoing
        while True:
            self._check_not_stopped()
            outputs = await running.next_outputs(self._agent.config.deadlines.keep_alive_s)
            if not outputs:
                await self._send(KEEP_ALIVE, running)
                continue
            drawn = [output for output in outputs if isinstance(output, Tokens)]
            for tokens in drawn:
                self._count(tokens)
            for event in outgoing.of_prompt(self._begun.request, drawn):
                await self._send(event, running)
            if drawn:
                # Before they are sent, so that none is drawn again if the pipeline is lost meanwhile.
                self._request = self._request.behind([token for each in drawn for token in each.token_ids])
                self._moved = time.monotonic()
                await self._send(outgoing.chunk(drawn), running)
            output = outputs[-1]
            if isinstance(output, Failed):
                raise output.error
            if isinstance(output, Finished):
                return await self._finish(output, running.express_bytes, running)

    def _check_not_stopped(self) -> None:
        """Raise a DrainingError once the client is to go on without this device, which is being stopped."""
        roles = self._agent.roles
        least_s = 0.0 if self._role.request.standby else HAND_OVER_S
        if self._goes_on and roles.draining and roles.drained_s >= least_s:
            raise DrainingError(self._agent.name, BEING_STOPPED)

    async def _finish(
        self, output: Finished, express_bytes: int, running: RunningRequest | None = None
    ) -> None:
        outgoing = self._begun.outgoing
        rest = outgoing.rest(output.text, cut=output.reason == "length")
        if rest is not None:
            await self._send(rest, running)
        output = replace(output, reason=outgoing.reason(output.reason))
        statistics = self._clock.statistics(time.monotonic(), self._request, output, express_bytes)
        finished = pb.Finished(reason=output.reason, statistics_json=statistics.to_json())
        self._log.finished(output.reason)
        await self._send(pb.GenerateEvent(finished=finished), running)

    def _count(self, tokens: Tokens) -> None:
        number, first = len(tokens.token_ids), self._clock.num_tokens == 0
        seconds = self._clock.count(number, tokens.drawn)
        if number:
            self._metrics.tokens(number, seconds, first=first)

    async def _send(self, event: pb.GenerateEvent, running: RunningRequest | None = None) -> None:
        """Send an event to the client.

        Raises:
            UnreadReplyError: when the client does not take it in time, or too many outputs wait meanwhile.
        """

        def is_full() -> bool:
            return running is not None and running.outputs.qsize() > MAX_WAITING_OUTPUTS

        await send_reply(self._context, event, self._agent.config.deadlines.read_s, is_full)


async def await_role(
    agent: Agent,
    lost: DeviceError,
    until: float,
    context: Any,
    answers_as: str,
    left: DraftNodeRole | None = None,
) -> DraftNodeRole:
    """Return the role by which an answer goes on, once its pipeline is ready; the client hears that it waits.

    Args:
        lost: why it waits; until: how long, on time.monotonic().
        answers_as: that of the pipeline with which the answer was begun.
        left: the role that has lost its pipeline, if it was of this process.

    Raises:
        DeviceLostError: when no pipeline is ready in time.
        DrainingError: when this device is being stopped.
        PipelineNotReadyError: when another device leads the pipeline.
        OtherModelError: when the pipeline would answer otherwise.
    """
    deadlines, said = agent.config.deadlines, 0.0
    told: DeviceLoss | None = None
    while True:
        agent.roles.check_open()
        role = agent.roles.role
        if role is not left and isinstance(role, DraftNodeRole) and role.ready:
            break
        check_leads(agent)
        if left is not None and not agent.keeps_pipeline:  # it was given up meanwhile
            raise lost
        now = time.monotonic()
        if now > until:
            reason = f"{lost.reason}; no pipeline has taken over within {deadlines.recovery_s:g} s"
            raise DeviceLostError(lost.device, f"{reason}: {agent.not_ready or 'none is set up'}")
        loss = agent.loss or told or loss_of(lost.device, state_of(lost, None), lost.reason)
        if loss != told or now - said >= deadlines.keep_alive_s:
            said, told = now, loss
            recovering = pb.Recovering(
                device=loss.device,
                reason=loss.reason,
                state=loss.state,
                expected_s=agent.last_set_up_s or 0.0,
            )
            await send_reply(context, pb.GenerateEvent(recovering=recovering), deadlines.read_s)
        await asyncio.sleep(LOOK_S)
    if role.answers_as != answers_as:
        raise OtherModelError(
            agent.name,
            f"its pipeline is of {role.answers_as} now, the answer was begun with {answers_as}; ask again",
        )
    return role


def check_leads(agent: Agent) -> None:
    """Raise PipelineNotReadyError while the device stands by for a draft node that is there."""
    if agent.stands_by is not None and not agent.recovering:
        raise PipelineNotReadyError(agent.name, f"the draft node at {agent.stands_by.address} leads it")
