"""Opening the model of a role from the cache, a directory, other devices or the hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flowedge.core.errors import CheckpointError, DeviceLostError, FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.models.host.libraries import import_libraries
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.fetch.fetcher import Fetched, Fetcher
from flowedge.weights.fetch.progress import FetchProgress, mib
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import fetch_document
from flowedge.weights.known_models import is_reference
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest import (
    CONFIG,
    Manifest,
    QuantisedList,
    parse_manifest,
    parse_quantised,
)
from flowedge.weights.model_directory import is_on_disk
from flowedge.weights.model_request import ModelRequest, OpenedModel
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread, hashing_threads

if TYPE_CHECKING:
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.weights.checkpoint_opener import CheckpointOpener


class Verification:
    """The objects that were found intact while one model is opened.

    Nothing is remembered beyond that: size and time of a file stay the same when a disk returns other bytes.

    Attributes:
        damaged: the number of objects that were deleted.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.damaged = 0
        self._store = store
        self._intact: set[str] = set()

    def delete_damaged(self, digests: Iterable[str]) -> list[str]:
        """Hash the cached objects among `digests` that were not found intact before; delete damaged objects.

        Returns the digests of the deleted objects.
        """
        cached = [
            digest
            for digest in dict.fromkeys(digests)
            if digest not in self._intact and self._store.size(digest) is not None
        ]
        with ThreadPoolExecutor(hashing_threads()) as threads:
            intact = list(threads.map(self._store.verify, cached))
        self._intact.update(digest for digest, good in zip(cached, intact, strict=True) if good)
        damaged = [digest for digest, good in zip(cached, intact, strict=True) if not good]
        self.damaged += len(damaged)
        return damaged

    def note_received(self, digests: Iterable[str]) -> None:
        """Note objects that were hashed while they were received."""
        self._intact.update(digests)


T = TypeVar("T")

_log = logging.getLogger(__name__)


class ReportFetch(Protocol):
    """Reports a step, or with an empty text the progress of fetching."""

    async def __call__(self, text: str, transfer: pb.Transfer | None = None) -> None: ...


class ModelOpener:
    """Opens a model from the first source that has it, in the order: cache, directory, devices, hub."""

    def __init__(
        self,
        device: str,
        local_weights: LocalWeights,
        settings: WeightsSettings,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        report: ReportFetch,
    ) -> None:
        """run: runs a function in the thread that imports torch; returns its result."""
        self._device, self._local, self._settings = device, local_weights, settings
        self._store = local_weights.store
        self._run, self._report = run, report

    async def open(self, request: ModelRequest) -> OpenedModel:
        """Open a model; first fetch what is missing. Errors of `request.admit` are raised too.

        Raises:
            CapacityError: when the objects do not fit the cache.
            CheckpointError: when the model cannot be read.
            DeviceLostError: when no source sends the missing objects.
        """
        known = {source.address for source in request.sources}
        others = tuple(SourceAddress(peer) for peer in self._settings.peers if peer not in known)
        request = replace(request, sources=(*request.sources, *others))
        with await finish_in_thread(lambda: self._store.pin({request.manifest: 0})):
            return await self._open(request, Verification(self._store))

    async def _open(self, request: ModelRequest, verification: Verification) -> OpenedModel:
        manifest = await finish_in_thread(lambda: self._local.known_models.manifest(request.manifest))
        if manifest is not None:
            opened = await self._from_cache(request, manifest, verification)
            if opened is not None:
                return opened
        if await asyncio.to_thread(is_on_disk, request.model, self._settings):
            checkpoint = await self._run_opener(request, lambda opener: opener.from_directory())
            if checkpoint is not None:
                await self._report(f"reading {request.name} from {checkpoint.place}")
                await self._share(request, manifest, checkpoint)
                return OpenedModel(checkpoint)
        try:
            return await self._from_devices(request, manifest, verification)
        except DeviceLostError as error:
            if not self._settings.hub or is_reference(request.model):
                if not verification.damaged:
                    raise
                raise _after_damage(error, verification.damaged) from error
            await self._report(f"{error}; asking the hub for {request.model}")
            return OpenedModel(await self._run_opener(request, lambda opener: opener.from_hub()))

    async def _run_opener(self, request: ModelRequest, function: Callable[[CheckpointOpener], T]) -> T:
        def run() -> T:
            import_libraries()
            from flowedge.weights.checkpoint_opener import CheckpointOpener  # noqa: PLC0415

            return function(CheckpointOpener(self._local, request))

        result: T = await self._run(run)
        return result

    async def _from_cache(
        self, request: ModelRequest, manifest: Manifest, verification: Verification
    ) -> OpenedModel | None:
        """Open a model without asking other devices; None if an object is missing or was damaged."""
        if self._store.missing(self._files(request, manifest)):
            return None
        # The config is about to be read.
        if await self._delete_damaged(request, verification, self._files(request, manifest)):
            return None
        quantised = await finish_in_thread(lambda: self._cached_quantised(request))
        opened, sizes = await self._select(request, manifest, quantised)
        with ExitStack() as unless_opened:
            unless_opened.callback(opened.release)
            await self._delete_damaged(request, verification, sizes)
            if await finish_in_thread(lambda: self._store.missing(sizes)):
                return None
            await finish_in_thread(lambda: self._store.touch(sizes))
            fields = about(event="weights_cached", model=request.manifest)
            _log.info("%s is opened from the cache", request.name, extra=fields)
            await self._report(f"reading {request.name} from the cache, {mib(sum(sizes.values()))}")
            unless_opened.pop_all()
        return opened

    async def _from_devices(
        self, request: ModelRequest, manifest: Manifest | None, verification: Verification
    ) -> OpenedModel:
        if manifest is None:
            manifest = await self._fetch_manifest(request)
        files = self._files(request, manifest)
        with await finish_in_thread(lambda: self._store.pin({request.manifest: 0} | files)):
            await self._fetch(request, files, "the config", verification, quiet=True)
            quantised = await finish_in_thread(lambda: self._cached_quantised(request))
            if request.quantised and quantised is None:
                quantised = await fetch_document(
                    self._device, request.quantised, parse_quantised, request.sources, self._settings
                )
                await finish_in_thread(partial(self._store.put, quantised.content))
            opened, sizes = await self._select(request, manifest, quantised)
        with ExitStack() as unless_opened:
            unless_opened.callback(opened.release)
            await self._fetch(request, sizes, f"{len(sizes)} objects of {request.name}", verification)
            unless_opened.pop_all()
        return opened

    def _cached_quantised(self, request: ModelRequest) -> QuantisedList | None:
        data = self._store.read(request.quantised) if request.quantised else None
        return None if data is None else parse_quantised(data, request.quantised)

    def _files(self, request: ModelRequest, manifest: Manifest) -> dict[str, int]:
        """Bytes of the small files that the request needs, by digest."""
        if CONFIG not in manifest.files_by_name:
            raise CheckpointError(f"{request.name}: its manifest has no {CONFIG}")
        return {
            entry.sha256: entry.bytes
            for entry in manifest.files
            if request.with_tokenizer or entry.name == CONFIG
        }

    async def _select(
        self, request: ModelRequest, manifest: Manifest, quantised: QuantisedList | None
    ) -> tuple[OpenedModel, dict[str, int]]:
        """The checkpoint, and bytes by digest of the objects that it needs. They are pinned."""
        opened, sizes = await self._run_opener(request, lambda opener: opener.from_cache(manifest, quantised))
        sizes = sizes | self._files(request, manifest)
        documents = {request.manifest: 0} | ({request.quantised: 0} if quantised is not None else {})
        pin = await finish_in_thread(lambda: self._store.pin(documents | sizes))
        return replace(opened, pin=pin), sizes

    async def _delete_damaged(
        self, request: ModelRequest, verification: Verification, sizes: Mapping[str, int]
    ) -> bool:
        """Delete the cached objects that differ from their digests; return whether there were any."""
        damaged = await finish_in_thread(lambda: verification.delete_damaged(sizes))
        if damaged:
            await self._report(
                f"damaged objects of {request.name} in the cache {self._store.limits.root}: {len(damaged)} "
                f"of {len(sizes)}, the first is {damaged[0]}; deleted, to be fetched again"
            )
        return bool(damaged)

    async def _share(self, request: ModelRequest, manifest: Manifest | None, checkpoint: Checkpoint) -> None:
        try:
            known = manifest or await self._fetch_manifest(request)
            await self._run_opener(request, lambda opener: opener.share(checkpoint, known))
        except FlowEdgeError as error:
            _log.warning("%s is not given to other devices: %s", request.name, error)

    async def _fetch_manifest(self, request: ModelRequest) -> Manifest:
        manifest = await fetch_document(
            self._device, request.manifest, parse_manifest, request.sources, self._settings
        )
        await finish_in_thread(lambda: self._store.put(manifest.content))
        return manifest

    async def _fetch(
        self,
        request: ModelRequest,
        sizes: Mapping[str, int],
        what: str,
        verification: Verification,
        *,
        quiet: bool = False,
    ) -> None:
        await self._delete_damaged(request, verification, sizes)
        missing = await finish_in_thread(lambda: self._store.missing(sizes))
        if not missing:
            return
        left = sum(sizes[digest] for digest in missing)
        names = ", ".join(f"{s.address}{' (draft node)' if s.is_draft_node else ''}" for s in request.sources)
        text = f"fetching {what}: {mib(left)} of {mib(sum(sizes.values()))}, from {names}"
        _log.info(text, extra=about(event="weights_fetching", model=request.manifest, bytes=left))
        if not quiet:
            await self._report(text)

        async def on_progress(progress: FetchProgress) -> None:
            _log.debug("%s: %s", request.name, progress)
            if not quiet:
                await self._report("", progress.to_proto())

        fetcher = Fetcher(self._device, self._local, sizes, request.sources, self._settings, on_progress)
        fetched = await fetcher.run()
        verification.note_received(missing)
        count = sum(fetched.received.values())
        fields = about(event="weights_fetched", model=request.manifest, bytes=count, seconds=fetched.seconds)
        _log.info("%s: %s", what, _summary(fetched), extra=fields)
        if not quiet:
            await self._report(_summary(fetched))
        await asyncio.to_thread(self._store.touch, sizes)


def _after_damage(error: DeviceLostError, damaged: int) -> DeviceLostError:
    """Return the error of objects that no device sends, with what to do where damaged ones were deleted."""
    return DeviceLostError(
        error.device,
        f"{error.reason}; {damaged} objects in its cache were damaged and are deleted: `flowedge models "
        "pull` with the model's directory or hub id puts them there again",
    )


def _summary(fetched: Fetched) -> str:
    total = sum(fetched.received.values())
    parts = ", ".join(f"{mib(count)} from {address}" for address, count in sorted(fetched.received.items()))
    return f"fetched {mib(total)} in {fetched.seconds:.1f} s" + (f": {parts}" if parts else "")
