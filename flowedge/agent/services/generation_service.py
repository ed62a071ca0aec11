"""The Generation service of a draft node: a request in, a stream of text and tokens out."""

# ruff: noqa: N802 (the method name is gRPC's)

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.unknown_fields import UnknownFieldSet

from flowedge.agent.agent_config import AgentLimits
from flowedge.agent.metrics import AgentMetrics
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.services.decoding_rules import eos_of, rules_of
from flowedge.agent.services.outgoing_answer import OutgoingAnswer
from flowedge.agent.services.pipeline_watch import PipelineWatches
from flowedge.agent.services.prompt_encoding import PromptEncoder
from flowedge.cluster.tls.guard import caller_key
from flowedge.core.errors import DeviceError, FlowEdgeError, PipelineNotReadyError, ProtocolError
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.ids import check_request_id, new_request_id, session_of
from flowedge.core.log_fields import about
from flowedge.core.request import (
    DEFAULT_STRATEGY,
    Failed,
    Finished,
    Opened,
    Request,
    Tokens,
    Waiting,
)
from flowedge.core.sampling import SamplingParams
from flowedge.engine.statistics import RequestClock
from flowedge.live.running_request import RunningRequest
from flowedge.network.grpc_status import abort
from flowedge.network.log_rate import LogRate, more
from flowedge.network.replies import send_reply
from flowedge.strategies.choice import AUTOREGRESSIVE
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1 import generation_pb2_grpc as rpc

if TYPE_CHECKING:
    from flowedge.agent.services.prompt_preparation import ReadPrompt
    from flowedge.engine.executors.draft_models import DraftModels

REFUSALS_LOGGED = 10  # requests of one client a minute
MAX_WAITING_OUTPUTS = 1024  # of one request, for a client that does not read

_KEEP_ALIVE = pb.GenerateEvent(keep_alive=pb.KeepAlive())

_log = logging.getLogger(__name__)


class RequestLog:
    """The log of one request, beginning at its arrival."""

    def __init__(self, request_id: str, peer: str, caller: str, refusals: LogRate) -> None:
        """
        peer: address of the client.
        caller: what the client's calls are counted by (see Caller.key).
        refusals: the rate of the lines about requests that were refused.
        """
        self.caller = caller
        self._refusals = refusals
        self._request_id = request_id
        self._peer = peer
        self._arrived = time.monotonic()
        self._opened = False
        self._finish_reason = ""

    def finished(self, reason: str) -> None:
        """Record why the answer is complete: "eos", "stop" or "length"."""
        self._finish_reason = reason

    def failed(self, error: FlowEdgeError) -> None:
        """Log a refusal; if a session was opened, its end has been logged already."""
        silent = None if self._opened else self._refusals.due((self.caller, error.code))
        if silent is not None:
            fields = about(
                event="request_refused", request=self._request_id, peer=self._peer, code=error.code
            )
            _log.warning("the request was refused: %s%s", error, more(silent), extra=fields)

    @contextmanager
    def session(self, request: Request, pipeline: str, clock: RequestClock) -> Iterator[None]:
        """Log the opening of a session, and its end when the context is left."""
        self._opened = True
        fields = about(
            event="session_opened",
            pipeline=pipeline,
            session=request.session,
            peer=self._peer,
            strategy=request.strategy,
            prompt_tokens=len(request.prompt),
        )
        _log.info("a session was opened", extra=fields)
        level, reason = logging.WARNING, ""
        try:
            yield
            level, reason = logging.INFO, self._finish_reason
        except asyncio.CancelledError:
            # A client that has the last event may hang up before this side knows that it was sent.
            level, reason = logging.INFO, self._finish_reason or "the client went away"
            raise
        except BaseException as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            fields = about(
                event="session_closed",
                pipeline=pipeline,
                session=request.session,
                reason=reason,
                new_tokens=clock.num_tokens,
                first_token_s=clock.ttft_s,
                seconds=time.monotonic() - self._arrived,
            )
            _log.log(level, "a session has ended", extra=fields)


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
            await self._generate(self._role(), request, context, log)
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
            PipelineNotReadyError: while its pipeline is being set up.
        """
        not_ready = self._agent.not_ready
        if not_ready:
            raise PipelineNotReadyError(self._agent.name, not_ready)
        role = self._agent.roles.role
        if not isinstance(role, DraftNodeRole):
            raise DeviceError(self._agent.name, "it is not a draft node; ask the draft node of a pipeline")
        return role

    async def _generate(
        self, role: DraftNodeRole, message: pb.GenerateRequest, context: Any, log: RequestLog
    ) -> None:
        arrived = time.monotonic()
        live, models = role.serving()
        request, prompt, options = await self._encoded(message, models, context, log.caller)
        running = role.start(request, arrived)
        try:
            clock = RequestClock(arrived)
            await self._wait_until_open(running, clock, context)
            with log.session(request, role.label, clock):
                started = pb.Started(
                    session=request.session,
                    seed=request.sampling.seed,
                    prompt_ids=request.prompt,
                    waited_s=clock.queue_s,
                    prompt_text=prompt.text if options.echo else "",
                    system_folded=prompt.system_folded,
                )
                await self._send(context, pb.GenerateEvent(started=started), running)
                outgoing = OutgoingAnswer(prompt.parser(), models.token_bytes)
                await self._stream(running, request, outgoing, clock, context, log)
        finally:
            live.end(running)

    async def _encoded(
        self, message: pb.GenerateRequest, models: DraftModels, context: Any, caller: str
    ) -> tuple[Request, ReadPrompt, GenerateOptions]:
        """Return the request with its prompt as tokens, the prompt, and the options of the client.

        Meanwhile the client hears that it is being served.

        Raises what `_to_request` and PromptEncoder.run raise.
        """
        config = self._agent.config
        encode = partial(_to_request, message, models, config.limits)
        encoding = asyncio.ensure_future(self._encoder.run(caller, encode, message.ByteSize()))
        try:
            while not (await asyncio.wait({encoding}, timeout=config.deadlines.keep_alive_s))[0]:
                await send_reply(context, _KEEP_ALIVE, config.deadlines.read_s)
        finally:
            encoding.cancel()  # has an effect only if the client went away
        return encoding.result()

    async def _wait_until_open(self, running: RunningRequest, clock: RequestClock, context: Any) -> None:
        """Return when the request is open; meanwhile the client hears of its place in the queue.

        Raises the error that ends the wait.
        """
        if not running.waiting:
            return
        while True:
            output = await running.next_output(self._agent.config.deadlines.keep_alive_s)
            match output:
                case Waiting():
                    waiting = pb.Waiting(position=output.position, expected_s=output.expected_s)
                    await self._send(context, pb.GenerateEvent(waiting=waiting), running)
                case Opened():
                    clock.queue_s = output.waited_s
                    return
                case Failed():
                    raise output.error
                case _:
                    await self._send(context, _KEEP_ALIVE, running)

    async def _stream(
        self,
        running: RunningRequest,
        request: Request,
        outgoing: OutgoingAnswer,
        clock: RequestClock,
        context: Any,
        log: RequestLog,
    ) -> None:
        while True:
            outputs = await running.next_outputs(self._agent.config.deadlines.keep_alive_s)
            if not outputs:
                await self._send(context, _KEEP_ALIVE, running)
                continue
            drawn = [output for output in outputs if isinstance(output, Tokens)]
            for tokens in drawn:
                self._count(tokens, clock)
            for event in outgoing.of_prompt(request, drawn):
                await self._send(context, event, running)
            if drawn:
                await self._send(context, outgoing.chunk(drawn), running)
            output = outputs[-1]
            if isinstance(output, Failed):
                raise output.error
            if isinstance(output, Finished):
                break
        rest = outgoing.rest(output.text, cut=output.reason == "length")
        if rest is not None:
            await self._send(context, rest, running)
        output = replace(output, reason=outgoing.reason(output.reason))
        statistics = clock.statistics(time.monotonic(), request, output, running.express_bytes)
        finished = pb.Finished(reason=output.reason, statistics_json=statistics.to_json())
        log.finished(output.reason)
        await self._send(context, pb.GenerateEvent(finished=finished), running)

    def _count(self, tokens: Tokens, clock: RequestClock) -> None:
        number, first = len(tokens.token_ids), clock.num_tokens == 0
        seconds = clock.count(number, tokens.drawn)
        if number:
            self._metrics.tokens(number, seconds, first=first)

    async def _send(self, context: Any, event: pb.GenerateEvent, running: RunningRequest) -> None:
        """Send an event to the client.

        Raises:
            UnreadReplyError: when the client does not take it in time, or too many outputs wait meanwhile.
        """

        def is_full() -> bool:
            return running.outputs.qsize() > MAX_WAITING_OUTPUTS

        await send_reply(context, event, self._agent.config.deadlines.read_s, is_full)


def _to_request(
    message: pb.GenerateRequest, models: DraftModels, limits: AgentLimits
) -> tuple[Request, ReadPrompt, GenerateOptions]:
    """Return the request with its prompt as tokens and with a seed, the prompt, and the client's options.

    Raises:
        BadRequestError: when it makes no sense.
        CapacityError: when its prompt is longer than the limits.
        ProtocolError: when it is of another version.
    """
    if len(UnknownFieldSet(message)):
        raise ProtocolError(
            "the request has fields that are not known here; install the same version of FlowEdge on both"
        )
    strategy = DEFAULT_STRATEGY if models.has_drafter else AUTOREGRESSIVE
    options = GenerateOptions.from_json(message.options, strategy=strategy).with_sampling(models.sampling)
    from flowedge.agent.services.prompt_preparation import read_prompt  # noqa: PLC0415 (not for idle agents)

    prompt = read_prompt(message, models, limits, options.grammar, echo=options.echo)
    scores_prompt = options.echo and options.logprobs is not None
    rules = rules_of(options, models, prompt.ids, prompt.forced)
    request = Request(
        session=session_of(check_request_id(message.request_id)),
        prompt=prompt.ids,
        sampling=SamplingParams(
            **options.drawing(),
            seed=secrets.randbits(32) if options.seed is None else options.seed,
        ),
        max_new_tokens=options.max_new_tokens,
        eos=eos_of(options, models, rules),
        stop=tuple(options.stop),
        strategy=options.strategy,
        strategy_options=dict(options.strategy_options),
        noise=options.noise,
        priority=options.priority,
        shown_tokens=prompt.shown,
        rules=rules,
        fit_context=options.fit_context,
        min_tokens=options.min_tokens,
        scores_prompt=scores_prompt,
        reuses_prefix=not scores_prompt,
    )
    return request, prompt, options
