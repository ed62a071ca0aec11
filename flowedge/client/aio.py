"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc

from flowedge.client.channel import CHANNEL_OPTIONS, SILENCE_S, check_address
from flowedge.client.device import Device
from flowedge.client.request import GenerateArguments, GenerateOptions
from flowedge.client.transcript import Chunk, StreamedTranscript
from flowedge.net.grpc_status import from_status
from flowedge.security.tls.channels import AsyncConnection
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.agent_pb2_grpc import AgentStub
from flowedge.v1.generation_pb2_grpc import GenerationStub

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from flowedge.security.process import Security


class AsyncClient:
    """`Client` for asyncio, with the same arguments and the same errors."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 600.0,
        silence_s: float = SILENCE_S,
        name: str | None = None,
        security: Security | None = None,
    ) -> None:
        self.address = check_address(address)
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._connection = AsyncConnection(address, CHANNEL_OPTIONS, name=name, security=security)

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
        seconds = self._timeout_s if timeout_s is None else timeout_s

        async def begin() -> Any:
            return GenerationStub(await self._connection.channel()).Generate(request, timeout=seconds)

        beginning = asyncio.ensure_future(begin())
        note = self._connection.note
        return AsyncGeneration(beginning, self.address, self._silence_s, request.request_id, note)

    async def describe(self) -> Device:
        """Ask the agent what it is and which role it has."""
        stub = AgentStub(await self._connection.channel())
        try:
            reply = await stub.Describe(agent_pb2.DescribeRequest(), timeout=self._silence_s)
        except grpc.aio.AioRpcError as error:
            self._connection.note(error)
            raise from_status(error, self.address) from error
        return Device.from_proto(reply)

    async def close(self) -> None:
        """End the connection and every generation on it."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncGeneration(StreamedTranscript, AsyncIterator[Chunk]):
    """`Generation` for asyncio."""

    def __init__(
        self,
        beginning: asyncio.Future[Any],
        address: str,
        silence_s: float,
        request_id: str,
        on_failure: Callable[[Any], None],
    ) -> None:
        """beginning: gives the call once the channel is connected."""
        super().__init__(address, silence_s, request_id, on_failure)
        self._beginning = beginning

    async def __anext__(self) -> Chunk:
        while self.finish_reason is None:
            chunk = self.apply(await self._next_event())
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def result(self) -> AsyncGeneration:
        """Wait for the end of the answer and return it."""
        async for _ in self:
            pass
        return self

    def close(self) -> None:
        """End the request; has no effect when it has ended."""
        if not self._beginning.cancel() and self._beginning.exception() is None:
            self._beginning.result().cancel()

    async def _next_event(self) -> pb.GenerateEvent:
        call = await asyncio.shield(self._beginning)
        try:
            event = await asyncio.wait_for(call.read(), self._silence_s)
        except asyncio.TimeoutError:
            call.cancel()
            raise self._silent() from None
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from error
        if not isinstance(event, pb.GenerateEvent):
            raise self._ended_early()
        return event
