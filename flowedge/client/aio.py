"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc

from flowedge.client.base_client import BaseClient, StreamedTranscript
from flowedge.client.channel import CHANNEL_OPTIONS
from flowedge.client.device import Device
from flowedge.client.request import GenerateArguments, GenerateOptions
from flowedge.client.transcript import Chunk
from flowedge.security.tls.channels import AsyncConnection
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
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> AsyncGeneration:
        """Start an answer, as `Client.generate` does; iterate over it with `async for`."""
        chosen = replace(options or GenerateOptions(), **arguments)
        request = chosen.to_request(prompt, prompt_ids, request_id)
        seconds = self.timeout_s if timeout_s is None else timeout_s

        async def begin() -> Any:
            return GenerationStub(await self._connection.channel()).Generate(request, timeout=seconds)

        return AsyncGeneration(self, request.request_id, asyncio.ensure_future(begin()))

    async def describe(self) -> Device:
        stub = AgentStub(await self._connection.channel())
        try:
            reply = await stub.Describe(agent_pb2.DescribeRequest(), timeout=self.silence_s)
        except grpc.aio.AioRpcError as error:
            raise self.error_of(error) from error
        return Device.from_proto(reply)

    async def close(self) -> None:
        await self._connection.close()

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncGeneration(StreamedTranscript, AsyncIterator[Chunk]):
    """`Generation` for asyncio."""

    def __init__(self, client: AsyncClient, request_id: str, beginning: asyncio.Future[Any]) -> None:
        """beginning: gives the call once the channel is connected."""
        super().__init__(client, request_id)
        self._beginning = beginning

    async def __anext__(self) -> Chunk:
        while self.finish_reason is None:
            chunk = self.apply(await self._next_event())
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def result(self) -> AsyncGeneration:
        async for _ in self:
            pass
        return self

    def close(self) -> None:
        if not self._beginning.cancel() and self._beginning.exception() is None:
            self._beginning.result().cancel()

    async def _next_event(self) -> pb.GenerateEvent:
        call = await asyncio.shield(self._beginning)
        try:
            event = await asyncio.wait_for(call.read(), self._client.silence_s)
        except asyncio.TimeoutError:
            call.cancel()
            raise self._silent() from None
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from error
        if not isinstance(event, pb.GenerateEvent):
            raise self._ended_early()
        return event
