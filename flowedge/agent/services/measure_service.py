"""The Measure service: measures the speed of this device and of its links."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from flowedge.agent.holding.device_speed import MEASURE_S
from flowedge.agent.roles.agent import Agent
from flowedge.agent.services.agent_service import check_version
from flowedge.core.errors import BadRequestError, DeadlineError, FlowEdgeError
from flowedge.drafting.choice import drafters_of
from flowedge.network.deadline import within
from flowedge.network.grpc_handlers import Context
from flowedge.network.replies import send_reply
from flowedge.planning.measuring.link_sender import ACCEPTED_KEY, LinkLimits, LinkSender
from flowedge.planning.profile.measurement import DeviceMeasurement, MeasureOptions, read_sizes
from flowedge.v1 import measure_pb2 as pb
from flowedge.v1 import measure_pb2_grpc as rpc

T = TypeVar("T")
PROGRESS_S = 0.2  # between two reports
TAKING_PART = "taking part in measuring a link"

_log = logging.getLogger(__name__)


class MeasureProgress:
    """Takes texts from the compute thread to the event loop, and ends the work when it must not go on."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._stopped = threading.Event()
        self._text: str | None = None

    def report(self, text: str) -> None:
        """Set the latest text; called by the work between two timings.

        Raises:
            DeadlineError: when the work has taken too long, or nobody waits for it any more.
        """
        if self._stopped.is_set():
            raise DeadlineError("the caller no longer waits for the measurement")
        if time.monotonic() > self._deadline:
            raise DeadlineError(f"the device was not measured within {self._limit_s:g} s; use fewer repeats")
        self._text = text

    def latest(self) -> str | None:
        text, self._text = self._text, None
        return text

    def stop(self) -> None:
        """Have the work end at its next call of `report`."""
        self._stopped.set()


class MeasureService(rpc.MeasureServicer):
    """Measures one device, one thing at a time, and only while it has no role."""

    def __init__(
        self,
        agent: Agent,
        limits: LinkLimits = LinkLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self._agent = agent
        self._limits = limits

    async def MeasureDevice(self, request: pb.MeasureDeviceRequest, context: Context) -> None:
        options = self._options(request)
        found = self._agent.speed.stored(options)

        async def measure() -> DeviceMeasurement:
            return await self._measure(options, context)

        if found is None and not request.only_stored:
            found = await self._alone("being measured", measure)
        if found is not None:
            await self._send(context, pb.MeasureDeviceReply(measurement_json=found.model_dump_json()))

    async def MeasureLink(self, request: pb.MeasureLinkRequest, context: Context) -> pb.MeasureLinkReply:
        """Send data to another agent, whose id has to be the one that the caller gives."""

        async def measure() -> pb.MeasureLinkReply:
            check_version(request.protocol_version)
            self._limits.check(request.bytes, request.round_trips)
            sender = LinkSender(request.peer, request.peer_id, self._agent.config.link, self._limits)
            measuring = sender.measure(request.bytes, request.round_trips)
            return await within(
                2 * self._limits.total_s, measuring, f"the link to {request.peer} was not measured"
            )

        return await self._alone("measuring a link", measure)

    async def Sink(self, requests: AsyncIterator[pb.SinkChunk], context: Context) -> pb.SinkReply:
        async def receive() -> pb.SinkReply:
            await context.send_initial_metadata(((ACCEPTED_KEY, "yes"),))
            return await within(self._limits.total_s, self._receive(context), "not all data arrived")

        return await self._alone(TAKING_PART, receive)

    async def Ping(self, requests: AsyncIterator[pb.Probe], context: Context) -> None:
        await self._alone(TAKING_PART, lambda: self._answer(context))

    async def _alone(self, purpose: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work while no role may be taken."""
        try:
            with self._agent.roles.refuse_roles(purpose):
                return await work()
        except FlowEdgeError as error:
            _log.warning("%s was refused or failed: %s", purpose, error)
            raise

    async def _send(self, context: Context, reply: pb.MeasureDeviceReply) -> None:
        await send_reply(context, reply, self._agent.config.deadlines.read_s)

    def _options(self, request: pb.MeasureDeviceRequest) -> MeasureOptions:
        """Return what is asked for, on this device's compute. Raises BadRequestError when it is malformed."""
        check_version(request.protocol_version)
        asked: dict[str, Any] = {
            "model": request.model,
            "drafters": drafters_of(request),
            "quant": request.quant or "none",
            "dtype": request.dtype or "float32",
            "repeats": request.repeats,
            "stack_mib": request.stack_mib,
        }
        sizes = read_sizes(request.sizes) if request.sizes else None
        return self._agent.speed.options(**asked, sizes=sizes)

    async def _measure(self, options: MeasureOptions, context: Context) -> DeviceMeasurement:
        load_s, progress = self._agent.config.deadlines.load_s, MeasureProgress(MEASURE_S)
        work = asyncio.ensure_future(self._agent.speed.measure(options, progress.report))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=PROGRESS_S)
                text = progress.latest()
                if text is not None:
                    await self._send(context, pb.MeasureDeviceReply(progress=text))
        finally:
            progress.stop()
            # The device may be given a role only when the last timing has ended.
            await within(load_s, asyncio.wait({work}), "the last timing did not end")
            if not work.cancelled():
                work.exception()  # retrieved, so that asyncio does not complain when the caller went away
        return work.result()

    async def _answer(self, context: Context) -> None:
        limits = self._limits
        await context.send_initial_metadata(((ACCEPTED_KEY, "yes"),))
        for _ in range(limits.warm_up_round_trips + limits.max_round_trips + 1):
            probe: Any = await within(limits.step_s, context.read(), "no probe arrived")
            if not isinstance(probe, pb.Probe):
                return
            if len(probe.data) > limits.max_probe_bytes:
                raise BadRequestError(f"a probe has at most {limits.max_probe_bytes} bytes")
            await send_reply(context, probe, limits.step_s)
        raise BadRequestError(f"a latency is measured with at most {limits.max_round_trips} round trips")

    async def _receive(self, context: Context) -> pb.SinkReply:
        limits = self._limits
        received = counted = 0
        started = last = time.perf_counter()
        while True:
            chunk: Any = await within(limits.step_s, context.read(), "no data arrived")
            if not isinstance(chunk, pb.SinkChunk):
                return pb.SinkReply(bytes=counted, seconds=last - started)
            last = time.perf_counter()
            received += len(chunk.data)
            if received > limits.most_received:
                raise BadRequestError(f"a link is measured with at most {limits.max_bytes} bytes")
            if chunk.warm_up:
                started, counted = last, 0
            else:
                counted += len(chunk.data)
