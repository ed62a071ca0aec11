"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from flowedge.client.base_client import BaseClient, OnWaiting, StreamedTranscript
from flowedge.client.channel import CHANNEL_OPTIONS
from flowedge.client.chat.messages import ChatMessage, checked_messages
from flowedge.client.chat.tools import AUTO, ToolOffer
from flowedge.client.conversations.conversation import BaseConversation
from flowedge.client.device import Device
from flowedge.client.request import GenerateArguments, GenerateOptions, chosen_options
from flowedge.client.status import DraftNodeStatus
from flowedge.client.transcript import Chunk
from flowedge.client.watching.activity import PipelineActivity
from flowedge.client.watching.streams import watch_async
from flowedge.cluster.tls.channels import AsyncConnection
from flowedge.core.errors import DeadlineError, FlowEdgeError
from flowedge.network.deadline import within
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.agent_pb2_grpc import AgentStub
from flowedge.v1.generation_pb2_grpc import GenerationStub

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(eq=False, repr=False)
class AsyncClient(BaseClient, AbstractAsyncContextManager["AsyncClient"]):
    """`Client` for asyncio, with the same arguments and the same errors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._connection: AsyncConnection = AsyncConnection(
            self.address, CHANNEL_OPTIONS, name=self.name, security=self.security
        )

    def generate(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        text: str | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        on_waiting: OnWaiting | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> AsyncGeneration:
        """Start an answer, as `Client.generate` does; iterate over it with `async for`."""
        seconds = self.seconds_for(timeout_s)
        request = chosen_options(options, arguments).to_request(prompt, prompt_ids, request_id, text=text)
        return self._start(request, seconds, on_waiting)

    def chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = AUTO,
        parallel_tool_calls: bool = True,
        template_values: Mapping[str, Any] | None = None,
        parse: bool = True,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        on_waiting: OnWaiting | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> AsyncGeneration:
        """Start the next message of a conversation, as `Client.chat` does."""
        seconds = self.seconds_for(timeout_s)
        offer = ToolOffer(tools, tool_choice, parallel_tool_calls, template_values)
        chosen = chosen_options(options, arguments)
        request = chosen.to_chat_request(checked_messages(messages), offer, request_id, parse=parse)
        return self._start(request, seconds, on_waiting)

    def conversation(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        keeps_partial: bool = False,
        **arguments: Any,
    ) -> AsyncConversation:
        """Begin a conversation, which keeps its history.

        Args:
            system: a system message, for models whose chat template takes one.
            tools: what the model may call, as dicts of OpenAI's form.
            keeps_partial: whether an answer that fails or is cancelled is kept, as far as it came.
            arguments: of `chat`, for each question.
        """
        return AsyncConversation(
            self.chat, system=system, tools=tools, keeps_partial=keeps_partial, **arguments
        )

    def _start(
        self, request: pb.GenerateRequest, seconds: float, on_waiting: OnWaiting | None
    ) -> AsyncGeneration:
        async def begin(seconds: float) -> Any:
            return GenerationStub(await self._connection.channel()).Generate(request, timeout=seconds)

        return AsyncGeneration(self, request.request_id, seconds, begin, on_waiting)

    async def describe(self) -> Device:
        stub = AgentStub(await self._connection.channel())
        try:
            reply = await stub.Describe(agent_pb2.DescribeRequest(), timeout=self.silence_s)
        except grpc.aio.AioRpcError as error:
            raise self.description_error(error) from error
        return Device.from_proto(reply)

    def watch(self) -> AsyncIterator[PipelineActivity]:
        """Watch the draft node's pipeline, as `Client.watch` does; iterate over it with `async for`."""

        async def begin() -> Any:
            return GenerationStub(await self._connection.channel()).Watch(pb.WatchRequest())

        return watch_async(begin, self.address, self.silence_s, self.error_of)

    async def devices(self) -> list[Device]:
        """Ask the draft node and its stages what they are, as `Client.devices` does."""
        first = await self.describe()

        async def describe(address: str) -> Device:
            async with AsyncClient(**self.other_client(address)) as client:
                return await client.describe()

        return [first, *await asyncio.gather(*map(describe, first.stage_addresses))]

    async def status(self) -> DraftNodeStatus:
        """Ask the draft node what it serves, and for its requests, as `Client.status` does."""
        return DraftNodeStatus.of(await self.describe())

    async def close(self) -> None:
        """End the connection; requests that are running are cancelled."""
        self.cancel_answers()
        await self._connection.close()

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncGeneration(
    StreamedTranscript, AsyncIterator[Chunk], AbstractAsyncContextManager["AsyncGeneration"]
):
    """`Generation` for asyncio."""

    def __init__(
        self,
        client: AsyncClient,
        request_id: str,
        timeout_s: float,
        begin: Callable[[float], Coroutine[Any, Any, Any]],
        on_waiting: OnWaiting | None = None,
    ) -> None:
        """begin: sends the request, which may take so many seconds; gives the call once it is connected."""
        super().__init__(client, request_id, timeout_s, on_waiting)
        self._begin = begin
        self._beginning = asyncio.ensure_future(begin(timeout_s))

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return _AnswerLoop(self)

    async def __anext__(self) -> Chunk:
        self._check_not_failed()
        while self.finish_reason is None:
            try:
                chunk = self._take(await self._next_event())
            except FlowEdgeError as error:
                if self.finish_reason is not None:  # another task has called close() meanwhile
                    break
                if (pause_s := self._pause_before_retry(error)) is not None:
                    await asyncio.sleep(pause_s)
                    if self.finish_reason is None:
                        self._beginning = asyncio.ensure_future(self._begin(self._left_s()))
                    continue
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
        if self._beginning.cancel() or self._beginning.cancelled():
            return
        if self._beginning.exception() is None:
            self._beginning.result().cancel()

    async def _next_event(self) -> pb.GenerateEvent:
        call = await asyncio.shield(self._beginning)
        try:
            event = await within(self._client.silence_s, call.read(), "no sign of life came")
        except DeadlineError:
            raise self._silent() from None
        except grpc.aio.AioRpcError as error:
            raise self._error_of(error) from error
        if not isinstance(event, pb.GenerateEvent):
            raise self._ended_early()
        return event


class AsyncConversation(BaseConversation[AsyncGeneration]):
    """A conversation of an `AsyncClient`."""


class _AnswerLoop(AsyncIterator[Chunk]):
    """A loop over an answer's chunks; when it is left before the end, the request is cancelled."""

    def __init__(self, answer: AsyncGeneration) -> None:
        self._answer = answer

    async def __anext__(self) -> Chunk:
        return await anext(self._answer)

    def __del__(self) -> None:
        self._answer.close()
