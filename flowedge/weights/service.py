"""The Weights service: gives other devices what this one has."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import Any, TypeAlias

import grpc.aio

from flowedge.core.errors import BadRequestError, CapacityError, DeviceError, FlowEdgeError
from flowedge.net.deadline import within
from flowedge.net.grpc_status import abort
from flowedge.storage.digest import DIGEST_BYTES
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.library import Library, read_at
from flowedge.weights.manifest.manifest import MAX_TENSORS
from flowedge.weights.open.here import is_here
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_log = logging.getLogger(__name__)


class WeightsService(rpc.WeightsServicer):
    """Answers for one device. It reads files of the library alone, each by its hash."""

    def __init__(self, device: str, library: Library, settings: WeightsSettings) -> None:
        self._device = device
        self._library = library
        self._settings = settings

    async def Have(self, request: pb.HaveRequest, context: Context) -> pb.HaveReply:
        """What of a list is here."""
        try:
            if len(request.objects) > MAX_TENSORS:
                raise BadRequestError(f"at most {MAX_TENSORS} objects can be asked for at once")
            digests = [_digest(name) for name in request.objects]
        except FlowEdgeError as error:
            await abort(context, error)
        held = await asyncio.to_thread(lambda: bytes(self._library.state_of(name) for name in digests))
        return pb.HaveReply(held=held, sending=self._library.traffic.sending)

    async def Read(self, request: pb.ReadRequest, context: Context) -> None:
        """One object in chunks."""
        traffic = self._library.traffic
        if traffic.sending >= self._settings.max_sending:
            busy = CapacityError(f"device {self._device} sends {traffic.sending} streams already")
            await abort(context, busy)
        traffic.sending += 1
        try:
            await self._send(_digest(request.object), request.offset, request.doubted, context)
        except FlowEdgeError as error:
            await abort(context, error)
        finally:
            traffic.sending -= 1

    async def Catalogue(self, request: pb.CatalogueRequest, context: Context) -> pb.CatalogueReply:
        """The models of the cache and of the directories that are shared."""
        return await asyncio.to_thread(catalogue, self._library)

    async def Look(self, request: pb.LookRequest, context: Context) -> pb.LookReply:
        """Whether a model is on the disk."""
        here = await asyncio.to_thread(is_here, request.model, self._settings)
        return pb.LookReply(here=here)

    async def _send(self, digest: str, offset: int, doubted: bool, context: Context) -> None:
        library = self._library
        content = library.content(digest)
        if content is not None:
            await self._write(content[offset:], context)
            return
        if doubted and library.store.size(digest) is not None:
            await finish_in_thread(lambda: library.store.verify(digest))
        location = library.locate(digest)
        if location is None or offset > location.size:
            raise DeviceError(self._device, f"it does not have {digest} from byte {offset}")
        try:
            descriptor = location.open()
        except OSError as error:
            library.lost(location, digest)
            raise DeviceError(self._device, f"it does not have {digest} any more: {error}") from error
        try:
            while offset < location.size:
                size = min(self._settings.chunk_bytes, location.size - offset)
                data = await finish_in_thread(partial(read_at, descriptor, size, location.offset + offset))
                await self._write(data, context)
                offset += len(data)
        except OSError as error:
            library.lost(location, digest)
            raise DeviceError(self._device, f"{digest} cannot be read: {error}") from error
        finally:
            os.close(descriptor)

    async def _write(self, data: bytes, context: Context) -> None:
        for start in range(0, len(data), self._settings.chunk_bytes):
            chunk = data[start : start + self._settings.chunk_bytes]
            what = f"device {self._device} could not send"
            await within(self._settings.give_up_s, context.write(pb.ObjectChunk(data=chunk)), what)
            self._library.traffic.sent += len(chunk)


def catalogue(library: Library) -> pb.CatalogueReply:
    """What the library has, and what has gone through it."""
    models = [
        pb.KnownModel(
            id=bytes.fromhex(model.manifest.id),
            name=model.name,
            quant=model.manifest.quant,
            total_bytes=model.manifest.total_bytes,
            here_bytes=model.here,
        )
        for model in library.shelf.models()
    ]
    models += [
        pb.KnownModel(
            id=bytes.fromhex(model),
            name=name,
            quant=manifest.quant,
            total_bytes=manifest.total_bytes,
            here_bytes=manifest.total_bytes,
            in_directory=True,
        )
        for model, (name, manifest) in list(library.shared.items())
    ]
    return pb.CatalogueReply(
        models=models,
        cache_bytes=library.store.taken_bytes(),
        cache_max_bytes=library.store.limits.max_bytes,
        sent_bytes=library.traffic.sent,
        received_bytes=library.traffic.received,
    )


def _digest(name: bytes) -> str:
    if len(name) != DIGEST_BYTES:
        raise BadRequestError(f"an object goes by the {DIGEST_BYTES} bytes of its SHA-256")
    return name.hex()
