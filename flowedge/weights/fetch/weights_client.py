"""Calling the Weights service of another device, and fetching a document from the first that gives it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from flowedge.cluster.tls.channels import Connection
from flowedge.core.errors import DeadlineError, DeviceLostError, FlowEdgeError, ProtocolError
from flowedge.network.deadline import within
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetch.least_rate import LeastRate
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.manifest_document import MAX_DOCUMENT_BYTES
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread

MAX_CHUNK_BYTES = 8 << 20
MAX_ASKED = 16_384  # objects in one question; their request has 0.6 MB
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
        self._connection = Connection(address, _OPTIONS)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def have(self, digests: Sequence[str]) -> tuple[bytes, int]:
        """Ask which objects the device has.

        Returns HELD, RECEIVING or ABSENT for each, and the number of streams that the device is sending.
        """
        held, sending = b"", 0
        for start in range(0, max(len(digests), 1), MAX_ASKED):
            asked = digests[start : start + MAX_ASKED]
            request = pb.HaveRequest(objects=[bytes.fromhex(digest) for digest in asked])
            reply: pb.HaveReply = await self._ask("Have", request)
            if len(reply.held) != len(asked):
                raise ProtocolError(f"{self.address} answered for {len(reply.held)} objects of {len(asked)}")
            held, sending = held + reply.held, reply.sending
        return held, sending

    async def catalogue(self) -> pb.CatalogueReply:
        """Ask which models the device has."""
        reply: pb.CatalogueReply = await self._ask("Catalogue", pb.CatalogueRequest())
        return reply

    async def has_model(self, model: str) -> bool:
        """Ask whether the device can open a model without fetching anything."""
        reply: pb.LookReply = await self._ask("Look", pb.LookRequest(model=model))
        return reply.here

    def least_rate(self) -> LeastRate:
        """Return the judge of a new stream."""
        return LeastRate(self._settings.least_bytes_s, self._settings.rate_window_s)

    async def read(
        self, digest: str, offset: int, rate: LeastRate, *, doubted: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Receive the bytes of an object from `offset` on.

        rate: of this stream. doubted: whether the device shall verify the object before it sends it.

        Raises:
            ProtocolError: when the device sends messages that are empty or too large.
            DeviceLostError: when the device sends more slowly than it has to.
            DeadlineError: when the device sends nothing for `stall_s`.
            FlowEdgeError: when the device cannot be reached, or refuses.
        """
        request = pb.ReadRequest(object=bytes.fromhex(digest), offset=offset, doubted=doubted)
        stub: Any = rpc.WeightsStub(await self._connection.channel())
        call = stub.Read(request)
        try:
            while True:
                what, asked = f"{self.address} sent nothing", time.monotonic()
                chunk: Any = await within(self._settings.stall_s, call.read(), what)
                if chunk is grpc.aio.EOF:
                    return
                if not 0 < len(chunk.data) <= MAX_CHUNK_BYTES:
                    raise ProtocolError(f"{self.address} sent a chunk of {len(chunk.data)} bytes")
                if not rate.suffices(len(chunk.data), time.monotonic() - asked):
                    least = f"{self._settings.least_kib_s:g} KiB/s"
                    raise DeviceLostError(self.address, f"it sends less than {least} (weights.least_kib_s)")
                yield chunk.data
        except grpc.aio.AioRpcError as error:
            self._connection.note(error)
            raise from_status(error, self.address) from error
        finally:
            call.cancel()

    async def read_all(self, digest: str, most: int) -> bytes:
        """Receive an object of at most `most` bytes. Its SHA-256 is not checked.

        Raises:
            ProtocolError: when the object is larger.
            DeadlineError: when the object has not come within `document_s`.
            FlowEdgeError: what `read` raises.
        """

        async def receive() -> bytes:
            data = bytearray()
            async with aclosing(self.read(digest, 0, self.least_rate())) as chunks:
                async for chunk in chunks:
                    data += chunk
                    if len(data) > most:
                        raise ProtocolError(f"{self.address} sent more than {most} bytes for {digest}")
            return bytes(data)

        return await within(self._settings.document_s, receive(), f"{self.address} did not send {digest}")

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
    problems: dict[str, str] = {}  # the latest of each source
    asked = [source.address for source in sources]
    while True:
        async with aclosing(_documents(digest, parse, asked, settings, problems)) as documents:
            async for document in documents:
                return document
        if not asked or time.monotonic() > deadline:
            reasons = "; ".join(f"{address}: {problem}" for address, problem in problems.items())
            reasons = reasons or "no device is known that may have it"
            raise DeviceLostError(device, f"no device gave the manifest of the model: {reasons}")
        await asyncio.sleep(RETRY_S)


async def _documents(
    digest: str,
    parse: Callable[[bytes, str], T],
    asked: list[str],
    settings: WeightsSettings,
    problems: dict[str, str],
) -> AsyncGenerator[T, None]:
    """Ask one source after the other, the next also when a source takes long; yield documents as they come.

    Args:
        asked: addresses; a source that sends another document than it should is removed.
        problems: takes up, by address, why a source did not give it.
    """
    waiting = list(asked)
    running: dict[asyncio.Task[T], str] = {}
    try:
        while waiting or running:
            if waiting:
                address = waiting.pop(0)
                running[asyncio.create_task(_document(digest, parse, address, settings))] = address
            pause = settings.hedge_s if waiting else None
            done, _ = await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address = running.pop(task)
                try:
                    yield task.result()
                except FlowEdgeError as error:
                    if address not in problems:
                        _log.warning("%s did not give %s: %s", address, digest, error)
                    problems[address] = str(error)
                    if isinstance(error, ProtocolError):
                        asked.remove(address)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _document(
    digest: str, parse: Callable[[bytes, str], T], address: str, settings: WeightsSettings
) -> T:
    async with WeightsClient(address, settings) as client:
        data = await client.read_all(digest, MAX_DOCUMENT_BYTES)
    return await finish_in_thread(partial(parse, data, digest))
