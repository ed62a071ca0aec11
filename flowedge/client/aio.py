"""The client for asyncio, on which the blocking one stands."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc

from flowedge.client.activity import PipelineActivity
from flowedge.client.base_client import BaseClient
from flowedge.client.channel import CHANNEL_OPTIONS, read_replies, stream_ended
from flowedge.client.clock_offset import Exchange, exchange_clocks
from flowedge.client.conversation import BaseConversation
from flowedge.client.device import Device, DraftNodeStatus
from flowedge.client.request import RestOfAnswer
from flowedge.client.transcript import Callbacks, Chunk, StreamedTranscript
from flowedge.cluster.tls.channels import Connection
from flowedge.core.errors import (
    CapacityError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    PipelineNotReadyError,
)
from flowedge.network.address import is_address
from flowedge.network.deadline import within
from flowedge.network.grpc_status import from_status, passed_deadline, says_why
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.agent_pb2_grpc import AgentStub
from flowedge.v1.generation_pb2_grpc import GenerationStub

_FIRST_S, _MOST_S = 0.2, 5.0  # of a pause
_MOST_ALTERNATIVES = 16


@dataclass(eq=False, repr=False)
class AsyncClient(BaseClient["AsyncGeneration"], AbstractAsyncContextManager["AsyncClient"]):
    """`Client` for asyncio, with the same arguments and the same errors; answers are read by `async for`.

    Attributes:
        address: of the draft node that calls go to now.
        connection: to that one.
        pipeline_returns: whether somebody else than the draft node sets its pipeline up after a loss, so
            that answers wait for that.
    """

    connection: Connection = field(init=False)
    pipeline_returns: bool = field(default=False, kw_only=True)
    _answered: bool = field(init=False, default=False)  # whether the agent has ever answered
    _connections: dict[str, Connection] = field(init=False)  # by address

    def __post_init__(self) -> None:
        super().__post_init__()
        self.connection = Connection(self.address, CHANNEL_OPTIONS, name=self.name, security=self.security)
        self._connections = {self.address: self.connection}
        for address in self.alternatives:
            self.learn(address)

    def _start(self, request: pb.GenerateRequest, seconds: float, callbacks: Callbacks) -> AsyncGeneration:
        return AsyncGeneration(RequestEvents(self, request, seconds), request.request_id, callbacks)

    async def describe(self) -> Device:
        """Ask the agent what it is and which role it has."""
        address, connection = self.address, self.connection
        try:
            channel = await connection.channel()
            reply = await AgentStub(channel).Describe(agent_pb2.DescribeRequest(), timeout=self.silence_s)
        except DeviceLostError:
            self.move_on(address)
            raise
        except grpc.aio.AioRpcError as error:
            self.move_on(address)
            if passed_deadline(error):
                connection.note_silent(channel)
                limit = f"after {self.silence_s:g} s, the limit given by silence_s"
                raise DeadlineError(f"device {self.address} had not answered {limit}") from error
            raise self.error_of(error) from error
        self.note_answer()
        for other in (reply.standby, reply.stands_by_for):
            self.learn(other)
        if not reply.stage_addresses and not reply.not_ready:
            self.move_on(address)
        return Device.from_proto(reply)

    async def watch(self) -> AsyncGenerator[PipelineActivity, None]:
        """Watch the draft node's pipeline, as `Client.watch` does; iterate over it with `async for`."""
        channel = await self.connection.channel()
        call = GenerationStub(channel).Watch(pb.WatchRequest())
        try:
            async with aclosing(read_replies(call, self.silence_s)) as messages:
                async for message in messages:
                    yield PipelineActivity.from_proto(message, self.address)
        except grpc.aio.AioRpcError as error:
            raise self.error_of(error) from error
        except DeadlineError:
            raise self.silent(channel) from None
        raise stream_ended(self.address, "the watch was ended")

    async def await_ready(self, timeout_s: float, on_reason: Callable[[str], None] = lambda _: None) -> None:
        """Wait until the draft node's pipeline is ready, as `Client.await_ready` does."""
        channel, reason = await self.connection.channel(), "its pipeline is not ready"
        call = GenerationStub(channel).Watch(pb.WatchRequest(until_ready=True), timeout=timeout_s)
        try:
            async with aclosing(read_replies(call, self.silence_s)) as messages:
                async for message in messages:
                    if message.not_ready != reason:
                        reason = message.not_ready
                        on_reason(reason)
        except grpc.aio.AioRpcError as error:
            if passed_deadline(error):
                late = f"{reason}; it was not ready within {timeout_s:g} s"
                raise PipelineNotReadyError(self.address, late) from error
            raise self.error_of(error) from error
        except DeadlineError:
            raise self.silent(channel) from None

    async def devices(self) -> list[Device]:
        """Ask the draft node and its stages what they are, as `Client.devices` does."""
        first = await self.describe()

        async def describe(address: str) -> Device:
            other = AsyncClient(address, silence_s=self.silence_s, security=self.security)
            async with other:
                return await other.describe()

        return [first, *await asyncio.gather(*map(describe, first.stage_addresses))]

    async def status(self) -> DraftNodeStatus:
        """Ask the draft node what it serves, and for its requests, as `Client.status` does."""
        return DraftNodeStatus.of(await self.describe())

    async def exchange_clocks(self, count: int) -> list[Exchange]:
        """Ask the agent for its clocks, as `Client.exchange_clocks` does."""
        stub = AgentStub(await self.connection.channel())
        return [await exchange_clocks(stub, self.address, self.silence_s) for _ in range(count)]

    async def close(self) -> None:
        """End the connection; requests that are running are cancelled."""
        self._cancel_answers()
        for connection in self._connections.values():
            await connection.close()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def learn(self, address: str) -> None:
        """Take note of another draft node that answers as this one does; what is no address is none."""
        is_new = is_address(address) and address not in self._connections
        if is_new and len(self._connections) <= _MOST_ALTERNATIVES:
            self._connections[address] = Connection(address, CHANNEL_OPTIONS, security=self.security)

    def other_pipelines(self) -> Sequence[AsyncClient]:
        """Return clients of other pipelines that can answer as this one now; this client knows of none."""
        return ()

    @property
    def draft_nodes(self) -> int:
        """How many draft nodes are known."""
        return len(self._connections)

    def move_on(self, lost: str) -> None:
        """Have calls go to the next draft node that is known, if they still go to the one at `lost`."""
        if self.address == lost:
            addresses = list(self._connections)
            self.address = addresses[(addresses.index(lost) + 1) % len(addresses)]
            self.connection = self._connections[self.address]

    def note_answer(self) -> None:
        """Take note that the agent has answered, so that it speaks as this side does."""
        self._answered = True

    def error_of(self, error: grpc.RpcError) -> FlowEdgeError:
        """Take note of a failed call and return the FlowEdge error behind it."""
        self.connection.note(error)
        return from_status(error, self.address, wants_tls=self.connection.is_plaintext and not self._answered)

    def silent(self, channel: grpc.aio.Channel | None) -> DeviceLostError:
        """Return the error for a device that gives no sign of life over a channel; take note of that."""
        for connection in self._connections.values():  # it may have moved on since
            connection.note_silent(channel)
        limit = f"no sign of life for {self.silence_s:g} s, the limit given by silence_s"
        return DeviceLostError(self.address, limit)


class RequestEvents:
    """The events that a draft node streams for one request, which is sent again where that may help.

    Before its first event the request is sent again as often as the client's `retries` say. Afterwards the
    answer goes on behind the tokens that have come, so that nothing is repeated: at once at another pipeline
    that the client knows, else where it was begun, whose draft node, or the connection to it, may be lost for
    up to `recovery_s`.

    It is sent at once; to be made by code that the event loop runs.
    """

    def __init__(self, client: AsyncClient, request: pb.GenerateRequest, timeout_s: float) -> None:
        self._client, self._request, self._timeout_s = client, request, timeout_s
        self._first, self._failed = client, [client]  # the one that began it; those that failed of late
        request.goes_on = client.recovery_s > 0
        self._until = time.monotonic() + timeout_s
        self._retries = Retries(client.retries)
        self._cancelled = False
        self._address = client.address  # of the draft node that was asked last
        self._elsewhere = 0  # how often another draft node was asked before the first event
        self._begun: RestOfAnswer | None = None
        self._said_why = False  # whether the draft node has said itself why the call failed
        self._channel: grpc.aio.Channel | None = None  # of the call
        self.call: asyncio.Future[Any] = asyncio.ensure_future(self._send(0.0))

    async def read(self) -> pb.GenerateEvent | None:
        """Return the next event; None where the request is sent again before it was begun, after a pause.

        Raises the FlowEdgeError for which the answer cannot be completed.
        """
        try:
            event = await self._read()
        except FlowEdgeError as error:
            await self._ask_who_leads(error)
            pause_s = None if self._cancelled else self._pause_s(error)
            if pause_s is None:
                raise
            if self._begun is not None:
                self._begun.ask(self._request)
            self.call = asyncio.ensure_future(self._send(pause_s))
            return None if self._begun is None else self._begun.recovering(error)
        if self._begun is not None:
            return self._begun.take(event)
        if event.HasField("started"):
            self._begun = RestOfAnswer(event.started)
            self._client.learn(event.started.standby)
        return event

    async def _ask_who_leads(self, error: FlowEdgeError) -> None:
        """Have the client learn of the standby that leads in place of the draft node, which says so."""
        if isinstance(error, PipelineNotReadyError) and self._begun is None and not self._elsewhere:
            with contextlib.suppress(FlowEdgeError):
                await self._client.describe()

    def _pause_s(self, error: FlowEdgeError) -> float | None:
        """Return the seconds after which the request is sent again; None if it is not."""
        left_s, client = self._until - time.monotonic(), self._client
        others = client.draft_nodes - 1
        if others and isinstance(error, DeviceError):
            client.move_on(self._address)
        if self._begun is None:
            if isinstance(error, DeviceError) and self._elsewhere < others:
                self._elsewhere += 1
                return 0.0
            return self._retries.pause_s(error, left_s)
        was_elsewhere = client is not self._first
        if self._goes_elsewhere(error):
            return 0.0
        comes_again = was_elsewhere or isinstance(error, DrainingError | PipelineNotReadyError)
        lost = isinstance(error, DeviceLostError) and (not self._said_why or client.pipeline_returns)
        if not (comes_again or lost or (others and isinstance(error, DeviceError))):
            return None
        pause_s = self._begun.pause_s(client.recovery_s)
        return pause_s if pause_s is not None and pause_s < left_s else None

    def _goes_elsewhere(self, error: FlowEdgeError) -> bool:
        """Have another pipeline go on, each once after a loss, then the first one; return if another does."""
        if isinstance(error, DeviceError):
            for other in self._first.other_pipelines():
                if other not in self._failed:
                    self._failed.append(other)
                    self._client = other
                    return True
        self._client, self._failed = self._first, [self._first]
        return False

    async def stream(self) -> AsyncGenerator[pb.GenerateEvent | None, None]:
        """Yield what `read` returns until the answer is complete; leaving the loop ends the call."""
        try:
            while True:
                event = await self.read()
                yield event
                if event is not None and event.HasField("finished"):
                    await within(self._client.silence_s, (await self.call).read(), "the call did not end")
                    return
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the call, and hold nothing of it: the connection lives as long as its last call."""
        self._cancelled, self._channel, call = True, None, self.call
        self.call = call.get_loop().create_future()
        self.call.cancel()
        if not (call.cancel() or call.cancelled()) and call.exception() is None:
            call.result().cancel()

    async def _send(self, pause_s: float) -> Any:
        if pause_s:
            await asyncio.sleep(pause_s)
        self._address = self._client.address
        self._channel = await self._client.connection.channel()
        generate = GenerationStub(self._channel).Generate
        return generate(self._request, timeout=self._until - time.monotonic())

    async def _read(self) -> pb.GenerateEvent:
        self._said_why = False
        reading = (await asyncio.shield(self.call)).read()
        try:
            event = await within(self._client.silence_s, reading, "no sign of life came")
        except DeadlineError:
            raise self._client.silent(self._channel) from None
        except grpc.aio.AioRpcError as error:
            if passed_deadline(error):
                limit = f"after {self._timeout_s:g} s, the limit given by timeout_s"
                late = f"the answer of {self._client.address} was not complete {limit}"
                raise DeadlineError(late) from error.with_traceback(None)
            self._said_why = says_why(error)
            raise self._client.error_of(error) from error.with_traceback(None)  # which holds the call
        self._client.note_answer()
        if not isinstance(event, pb.GenerateEvent):
            raise stream_ended(self._client.address, "the answer was complete")
        return event


@dataclass
class Retries:
    """The further tries that a request has; only a request without any output is sent again.

    A request with any number of tries waits for a pipeline that is being set up, which takes none of them.

    Attributes:
        left: number of further tries.
    """

    left: int
    _pause_s: float = _FIRST_S

    def pause_s(self, error: FlowEdgeError, left_s: float) -> float | None:
        """Take a further try; return the seconds to wait before it, None if there is none.

        Args:
            error: that ended the request before its first event.
            left_s: seconds that the answer may still take.
        """
        if not self.left:
            return None
        if isinstance(error, PipelineNotReadyError):
            return error.retry_after_s if (error.retry_after_s or 0.0) < left_s else None
        if isinstance(error, CapacityError):
            if error.retry_after_s is None:
                return None
            pause_s = error.retry_after_s
        elif isinstance(error, DeviceLostError):
            pause_s = self._pause_s * random.uniform(0.5, 1.0)
        else:
            return None
        if pause_s >= left_s:
            return None
        self.left -= 1
        self._pause_s = min(2 * self._pause_s, _MOST_S)
        return pause_s


class AsyncGeneration(
    StreamedTranscript, AsyncIterator[Chunk], AbstractAsyncContextManager["AsyncGeneration"]
):
    """`Generation` for asyncio."""

    def __init__(self, events: RequestEvents, request_id: str, callbacks: Callbacks) -> None:
        super().__init__(request_id, callbacks)
        self._events = events

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return _AnswerLoop(self)

    async def __anext__(self) -> Chunk:
        self._check_not_failed()
        while self.finish_reason is None:
            try:
                chunk = self._take(await self._events.read())
            except FlowEdgeError as error:
                if self.finish_reason is not None:  # another task has called close() meanwhile
                    break
                raise self._failed(error) from error.__cause__
            except asyncio.CancelledError:
                if self.finish_reason is not None:  # gRPC's way to say that close() has cancelled the call
                    break
                raise
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def result(self) -> AsyncGeneration:
        async for _ in self:
            pass
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def _cancel(self) -> None:
        self._events.cancel()


AsyncConversation = BaseConversation[AsyncGeneration]
"""A conversation of an `AsyncClient`."""


class _AnswerLoop(AsyncIterator[Chunk]):
    """A loop over an answer's chunks; when it is left before the end, the request is cancelled."""

    def __init__(self, answer: AsyncGeneration) -> None:
        self._answer = answer

    async def __anext__(self) -> Chunk:
        return await anext(self._answer)

    def __del__(self) -> None:
        self._answer.close()
