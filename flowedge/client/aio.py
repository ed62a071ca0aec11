"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc

from flowedge.client.channel import CHANNEL_OPTIONS, SILENCE_S, check_address
from flowedge.client.device import Device
from flowedge.client.failure import ended_early, silent
from flowedge.client.request import GenerateArguments, GenerateOptions
from flowedge.client.stubs import agent_stub, generation_stub
from flowedge.client.transcript import Chunk, Transcript
from flowedge.runtime.transport.status import from_status
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient:
    """`Client` for asyncio: the same arguments, the same errors."""

    def __init__(self, address: str, *, timeout_s: float = 600.0, silence_s: float = SILENCE_S) -> None:
        self.address = check_address(address)
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

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
        """Starts answering, as `Client.generate` does; iterate with `async for`."""
        chosen = replace(options or GenerateOptions(), **arguments)
        request = chosen.to_request(prompt, prompt_ids, request_id)
        stub = generation_stub(self._channel)
        call = stub.Generate(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        return AsyncGeneration(call, self.address, self._silence_s, request.request_id)

    async def describe(self) -> Device:
        """What the agent is and what it holds."""
        stub = agent_stub(self._channel)
        try:
            reply = await stub.Describe(agent_pb2.DescribeRequest(), timeout=self._silence_s)
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self.address) from error
        return Device.from_proto(reply)

    async def close(self) -> None:
        """Ends the connection and every generation on it."""
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncGeneration(AsyncIterator[Chunk]):
    """`Generation` for asyncio; `transcript` holds the answer so far."""

    def __init__(self, call: Any, address: str, silence_s: float, request_id: str) -> None:
        self.request_id = request_id
        self.transcript = Transcript()
        self._address = address
        self._silence_s = silence_s
        self._call = call

    async def __anext__(self) -> Chunk:
        while self.transcript.finish_reason is None:
            chunk = self.transcript.apply(await self._next_event())
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def result(self) -> Transcript:
        """Waits for the end of the answer and returns it."""
        async for _ in self:
            pass
        return self.transcript

    def close(self) -> None:
        """Ends the request; harmless when it has ended."""
        self._call.cancel()

    async def _next_event(self) -> pb.GenerateEvent:
        try:
            event = await asyncio.wait_for(self._call.read(), self._silence_s)
        except asyncio.TimeoutError:
            self._call.cancel()
            raise silent(self._address, self._silence_s).of_request(self.request_id) from None
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self._address).of_request(self.request_id) from error
        if not isinstance(event, pb.GenerateEvent):
            raise ended_early(self._address, "the answer was complete").of_request(self.request_id)
        return event
