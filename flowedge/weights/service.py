"""The Weights service, which gives other devices the objects that this device has."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from flowedge.core.errors import BadRequestError, CapacityError, DeviceError, FlowEdgeError
from flowedge.device.disk_cache.digest import DIGEST_BYTES
from flowedge.network.grpc_handlers import Context
from flowedge.network.grpc_status import abort
from flowedge.network.replies import send_reply
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest import Manifest
from flowedge.weights.manifest_document import MAX_ENTRIES
from flowedge.weights.model_directory import is_on_disk
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread


class WeightsService(rpc.WeightsServicer):
    """Answers for one device. It reads the files of its LocalWeights only, and each by a hash."""

    def __init__(self, device: str, local_weights: LocalWeights, settings: WeightsSettings) -> None:
        self._device = device
        self._local = local_weights
        self._settings = settings

    async def Have(self, request: pb.HaveRequest, context: Context) -> pb.HaveReply:
        try:
            held = await asyncio.to_thread(self._states_of, request.objects)
        except FlowEdgeError as error:
            await abort(context, error)
        return pb.HaveReply(held=held, sending=self._local.traffic.sending)

    def _states_of(self, objects: Sequence[bytes]) -> bytes:
        if len(objects) > MAX_ENTRIES:
            raise BadRequestError(
                f"{len(objects)} objects were asked for at once; at most {MAX_ENTRIES} may be"
            )
        return bytes(self._local.state_of(_digest(name)) for name in objects)

    async def Read(self, request: pb.ReadRequest, context: Context) -> None:
        traffic = self._local.traffic
        if traffic.sending >= self._settings.max_sending:
            busy = CapacityError(f"device {self._device} sends {traffic.sending} streams already")
            await abort(context, busy)
        try:
            traffic.sending += 1
            try:
                await self._send(_digest(request.object), request.offset, request.doubted, context)
            finally:
                # Before the abort, which a caller that reads nothing can put off for ever.
                traffic.sending -= 1
        except FlowEdgeError as error:
            await abort(context, error)

    async def Catalogue(self, request: pb.CatalogueRequest, context: Context) -> pb.CatalogueReply:
        return await asyncio.to_thread(catalogue, self._local)

    async def Look(self, request: pb.LookRequest, context: Context) -> pb.LookReply:
        return pb.LookReply(here=await asyncio.to_thread(is_on_disk, request.model, self._settings))

    async def _send(self, digest: str, offset: int, doubted: bool, context: Context) -> None:
        local = self._local
        document = local.document(digest)
        if document is not None:
            await self._write(document[offset:], context)
            return
        if doubted and local.store.size(digest) is not None:
            await finish_in_thread(lambda: local.store.verify(digest))
        found = local.locate(digest)
        if found is None or offset > found.size:
            raise DeviceError(self._device, f"it does not have {digest} from byte {offset} on")
        try:
            with found.open() as file:
                while offset < found.size:
                    size = min(self._settings.chunk_bytes, found.size - offset)
                    data = await finish_in_thread(partial(found.read, file, offset, size))
                    await self._write(data, context)
                    offset += len(data)
        except OSError as error:
            local.drop_unreadable(digest, found)
            raise DeviceError(self._device, f"it cannot read {digest} any more: {error}") from error

    async def _write(self, data: bytes, context: Context) -> None:
        for start in range(0, len(data), self._settings.chunk_bytes):
            chunk = data[start : start + self._settings.chunk_bytes]
            await send_reply(context, pb.ObjectChunk(data=chunk), self._settings.give_up_s)
            self._local.traffic.sent += len(chunk)


def catalogue(local_weights: LocalWeights) -> pb.CatalogueReply:
    """The models that the device has, the size of its cache, and the bytes that crossed the network."""
    store, traffic = local_weights.store, local_weights.traffic
    models = [
        _known_model(known.name, known.manifest, known.cached_bytes)
        for known in local_weights.known_models.models()
    ]
    models += [
        _known_model(name, manifest, manifest.total_bytes, in_directory=True)
        for name, manifest in list(local_weights.shared.values())
    ]
    return pb.CatalogueReply(
        models=models,
        cache_bytes=store.taken_bytes(),
        cache_max_bytes=store.limits.max_bytes,
        sent_bytes=traffic.sent,
        received_bytes=traffic.received,
    )


def _known_model(name: str, manifest: Manifest, here_bytes: int, in_directory: bool = False) -> pb.KnownModel:
    return pb.KnownModel(
        id=bytes.fromhex(manifest.id),
        name=name,
        quant=manifest.quant,
        total_bytes=manifest.total_bytes,
        here_bytes=here_bytes,
        in_directory=in_directory,
    )


def _digest(name: bytes) -> str:
    if len(name) != DIGEST_BYTES:
        raise BadRequestError(f"an object is named by the {DIGEST_BYTES} bytes of its SHA-256")
    return name.hex()
