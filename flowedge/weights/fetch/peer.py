"""Asking one other device for what it has. All channels of fetching are made here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
import grpc.aio

from flowedge.core.errors import DeadlineError, FlowEdgeError, ProtocolError
from flowedge.net.deadline import within
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.security.tls.connection import AsyncConnection
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.settings import WeightsSettings

MAX_CHUNK_BYTES = 8 << 20


class Peer:
    """A connection of its own to the Weights service of a device."""

    def __init__(self, address: str, settings: WeightsSettings) -> None:
        self.address = address
        self._settings = settings
        self._connection = AsyncConnection(address, _OPTIONS)

    async def close(self) -> None:
        """End what is going on."""
        await self._connection.close()

    async def have(self, digests: Sequence[str]) -> tuple[bytes, int]:
        """A byte for each object as in HaveReply, and how many streams it sends. FlowEdgeError."""
        request = pb.HaveRequest(objects=[bytes.fromhex(digest) for digest in digests])
        reply: pb.HaveReply = await self._ask("Have", request)
        if len(reply.held) != len(digests):
            raise ProtocolError(f"{self.address} answered for {len(reply.held)} objects of {len(digests)}")
        return reply.held, reply.sending

    async def catalogue(self) -> pb.CatalogueReply:
        """What models it has. FlowEdgeError."""
        reply: pb.CatalogueReply = await self._ask("Catalogue", pb.CatalogueRequest())
        return reply

    async def looks(self, model: str) -> bool:
        """Whether it can open a model without fetching. FlowEdgeError."""
        reply: pb.LookReply = await self._ask("Look", pb.LookRequest(model=model))
        return reply.here

    async def read(self, digest: str, offset: int, *, doubted: bool = False) -> AsyncGenerator[bytes, None]:
        """The bytes of an object from an offset. FlowEdgeError when it stops, or brings nothing for long.

        doubted: the device is to check its copy before.
        """
        request = pb.ReadRequest(object=bytes.fromhex(digest), offset=offset, doubted=doubted)
        stub: Any = rpc.WeightsStub(await self._connection.channel())
        call = stub.Read(request)
        try:
            while True:
                what = f"{self.address} sent nothing"
                chunk: Any = await within(self._settings.stall_s, call.read(), what)
                if chunk is grpc.aio.EOF:
                    return
                if len(chunk.data) > MAX_CHUNK_BYTES:
                    raise ProtocolError(f"{self.address} sent a chunk of {len(chunk.data)} bytes")
                yield chunk.data
        except grpc.aio.AioRpcError as error:
            self._connection.note(error)
            raise from_status(error, self.address) from error
        finally:
            call.cancel()

    async def read_all(self, digest: str, most: int) -> bytes:
        """An object as a whole, of at most so many bytes; it is not checked. FlowEdgeError."""
        data = bytearray()
        async for chunk in self.read(digest, 0):
            data += chunk
            if len(data) > most:
                raise ProtocolError(f"{self.address} sent more than {most} bytes")
        return bytes(data)

    async def _ask(self, method: str, request: Any) -> Any:
        seconds = self._settings.answer_s
        stub = rpc.WeightsStub(await self._connection.channel())
        call = getattr(stub, method)(request, timeout=seconds)
        try:
            return await within(seconds + 1, call, "no answer")
        except grpc.aio.AioRpcError as error:
            self._connection.note(error)
            raise from_status(error, self.address) from error
        except DeadlineError as error:
            raise FlowEdgeError(f"{self.address}: {error}") from error


# A device that was away is asked again soon.
_OPTIONS = [
    *LinkSettings().channel_options,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
