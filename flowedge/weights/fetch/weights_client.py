"""Calling the Weights service of another device, and fetching a document from the first that gives it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import grpc
import grpc.aio

from flowedge.core.errors import DeadlineError, DeviceLostError, FlowEdgeError, ProtocolError
from flowedge.net.deadline import within
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.security.tls.channels import AsyncConnection
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.manifest.document import MAX_DOCUMENT_BYTES
from flowedge.weights.settings import WeightsSettings

MAX_CHUNK_BYTES = 8 << 20
# A dict, because gRPC takes the first of two values of an option.
_OPTIONS = list(
    {
        **dict(LinkSettings().channel_options),
        "grpc.max_receive_message_length": MAX_CHUNK_BYTES + (1 << 20),  # of this client alone
        # A device that was away is asked again soon.
        "grpc.initial_reconnect_backoff_ms": 200,
        "grpc.min_reconnect_backoff_ms": 200,
        "grpc.max_reconnect_backoff_ms": 1000,
    }.items()
)
T = TypeVar("T")
RETRY_S = 0.5

_log = logging.getLogger(__name__)


class WeightsClient(AbstractAsyncContextManager["WeightsClient"]):
    """A connection to the Weights service of one device. Failed calls raise FlowEdgeError."""

    def __init__(self, address: str, settings: WeightsSettings) -> None:
        self.address = address
        self._settings = settings
        self._connection = AsyncConnection(address, _OPTIONS)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def have(self, digests: Sequence[str]) -> tuple[bytes, int]:
        """Ask which objects the device has.

        Returns HELD, RECEIVING or ABSENT for each, and the number of streams that the device is sending.
        """
        request = pb.HaveRequest(objects=[bytes.fromhex(digest) for digest in digests])
        reply: pb.HaveReply = await self._ask("Have", request)
        if len(reply.held) != len(digests):
            raise ProtocolError(f"{self.address} answered for {len(reply.held)} objects of {len(digests)}")
        return reply.held, reply.sending

    async def catalogue(self) -> pb.CatalogueReply:
        """Ask which models the device has."""
        reply: pb.CatalogueReply = await self._ask("Catalogue", pb.CatalogueRequest())
        return reply

    async def has_model(self, model: str) -> bool:
        """Ask whether the device can open a model without fetching anything."""
        reply: pb.LookReply = await self._ask("Look", pb.LookRequest(model=model))
        return reply.here

    async def read(self, digest: str, offset: int, *, doubted: bool = False) -> AsyncGenerator[bytes, None]:
        """Receive the bytes of an object from `offset` on.

        doubted: whether the device shall verify the object before it sends it.
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
        """Receive an object of at most `most` bytes. Its SHA-256 is not checked."""
        data = bytearray()
        async for chunk in self.read(digest, 0):
            data += chunk
            if len(data) > most:
                raise ProtocolError(f"{self.address} sent more than {most} bytes for {digest}")
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


async def fetch_document(
    device: str,
    digest: str,
    parse: Callable[[bytes, str], T],
    sources: Sequence[SourceAddress],
    settings: WeightsSettings,
) -> T:
    """Fetch and parse the document of a digest.

    parse: turns bytes and the expected digest into the document, or raises ProtocolError.

    Raises:
        DeviceLostError: when no source gives it within `settings.give_up_s`; it names `device`.
    """
    deadline = time.monotonic() + settings.give_up_s
    while True:
        problems = []
        for source in sources:
            try:
                async with WeightsClient(source.address, settings) as client:
                    return parse(await client.read_all(digest, MAX_DOCUMENT_BYTES), digest)
            except FlowEdgeError as error:
                _log.warning("%s did not give %s: %s", source.address, digest, error)
                problems.append(f"{source.address}: {error}")
        if not sources or time.monotonic() > deadline:
            reasons = "; ".join(problems) or "no device is known that may have it"
            raise DeviceLostError(device, f"no device gave the manifest of the model: {reasons}")
        await asyncio.sleep(RETRY_S)
