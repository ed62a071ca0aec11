"""Opening the model of a role: from the cache, from a directory, or with what other devices have of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flowedge.core.errors import CheckpointError, DeviceLostError, FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.models.libraries import import_libraries
from flowedge.storage.pins import Pin
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.fetch.documents import fetch_document, fetch_manifest
from flowedge.weights.fetch.fetcher import Fetched, SourceAddress, fetch
from flowedge.weights.fetch.progress import FetchProgress, in_words, mib
from flowedge.weights.library import Library
from flowedge.weights.manifest.manifest import CONFIG, Manifest
from flowedge.weights.manifest.quantised_list import QuantisedList, parse_quantised
from flowedge.weights.open.here import is_here
from flowedge.weights.open.model_request import ModelRequest, OpenedModel
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread

if TYPE_CHECKING:
    from flowedge.models.checkpoint.checkpoint import Checkpoint

_log = logging.getLogger(__name__)


class ReportFetch(Protocol):
    """Says what is going on; see RoleProgress."""

    async def __call__(self, text: str, transfer: pb.Transfer | None = None) -> None: ...


class ModelOpener:
    """Opens one model, once. Sources are asked in the order: own cache, a directory, devices, the hub."""

    def __init__(
        self,
        device: str,
        library: Library,
        settings: WeightsSettings,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        tell: ReportFetch,
    ) -> None:
        """run: runs what needs torch, where that is imported."""
        self._device, self._library, self._settings = device, library, settings
        self._store = library.store
        self._run, self._tell = run, tell

    async def open(self, wish: ModelRequest) -> OpenedModel:
        """The checkpoint. CapacityError, CheckpointError, DeviceLostError, or what `wish.admit` raises."""
        known = {source.address for source in wish.sources}
        others = tuple(SourceAddress(peer) for peer in self._settings.peers if peer not in known)
        wish = replace(wish, sources=(*wish.sources, *others))
        pin = await finish_in_thread(lambda: self._store.pin({wish.manifest: 0}))
        try:
            return await self._open(wish)
        finally:
            pin.release()

    async def _open(self, wish: ModelRequest) -> OpenedModel:
        manifest = await finish_in_thread(lambda: self._library.shelf.manifest(wish.manifest))
        if manifest is not None:
            whole = await self._from_cache(wish, manifest)
            if whole is not None:
                return whole
        directory = await self._run(lambda: self._in_directory(wish))
        if directory is not None:
            await self._tell(f"reading {wish.name} from {directory.directory}")
            await self._give(wish, manifest, directory)
            return OpenedModel(directory)
        try:
            return await self._from_devices(wish, manifest)
        except DeviceLostError as error:
            if not self._settings.hub:
                raise
            await self._tell(f"{error}; asking the hub for {wish.model}")
            return OpenedModel(await self._run(lambda: self._from_hub(wish)))

    async def _from_cache(self, wish: ModelRequest, manifest: Manifest) -> OpenedModel | None:
        """With nothing but the cache; None when something is missing, or was damaged."""
        if any(self._store.size(digest) is None for digest in self._files(wish, manifest)):
            return None
        listed = await finish_in_thread(lambda: self._list_here(wish))
        pin, opened, sizes = await self._plan(wish, manifest, listed)
        try:
            damaged = await finish_in_thread(lambda: self._verify(sizes))
            if damaged:
                await self._tell(f"{damaged} objects of the cache were damaged and are fetched again")
            if any(self._store.size(digest) is None for digest in sizes):
                pin.release()
                return None
            await finish_in_thread(lambda: self._store.touch(sizes))
        except BaseException:
            pin.release()
            raise
        _log.info(
            "%s is opened from the cache", wish.name, extra=about(event="weights_cached", model=wish.manifest)
        )
        await self._tell(f"reading {wish.name} from the cache, {mib(sum(sizes.values()))}")
        return replace(opened, pin=pin)

    async def _from_devices(self, wish: ModelRequest, manifest: Manifest | None) -> OpenedModel:
        if manifest is None:
            manifest = await self._fetch_manifest(wish)
        files = self._files(wish, manifest)
        first = await finish_in_thread(lambda: self._store.pin({wish.manifest: 0} | files))
        try:
            await self._bring(wish, files, "the config", quiet=True)
            listed = await finish_in_thread(lambda: self._list_here(wish))
            if wish.quantised and listed is None:
                listed = await fetch_document(
                    self._device, wish.quantised, parse_quantised, wish.sources, self._settings
                )
                await finish_in_thread(partial(self._store.put, listed.content))
            pin, opened, sizes = await self._plan(wish, manifest, listed)
        finally:
            first.release()
        try:
            await self._bring(wish, sizes, f"{len(sizes)} objects of {wish.name}")
        except BaseException:
            pin.release()
            raise
        return replace(opened, pin=pin)

    def _list_here(self, wish: ModelRequest) -> QuantisedList | None:
        data = self._store.read(wish.quantised) if wish.quantised else None
        return None if data is None else parse_quantised(data, wish.quantised)

    def _files(self, wish: ModelRequest, manifest: Manifest) -> dict[str, int]:
        if CONFIG not in manifest.files_by_name:
            raise CheckpointError(f"{wish.name}: its manifest has no {CONFIG}")
        return {
            entry.sha256: entry.bytes for entry in manifest.files if wish.every_file or entry.name == CONFIG
        }

    async def _plan(
        self, wish: ModelRequest, manifest: Manifest, listed: QuantisedList | None
    ) -> tuple[Pin, OpenedModel, dict[str, int]]:
        """The checkpoint, and the objects it needs, which are pinned."""
        opened, sizes = await self._run(lambda: self._select(wish, manifest, listed))
        sizes = sizes | self._files(wish, manifest)
        documents = {wish.manifest: 0} | ({wish.quantised: 0} if listed is not None else {})
        pin = await finish_in_thread(lambda: self._store.pin(documents | sizes))
        return pin, opened, sizes

    def _select(
        self, wish: ModelRequest, manifest: Manifest, listed: QuantisedList | None
    ) -> tuple[OpenedModel, dict[str, int]]:
        import_libraries()
        from flowedge.weights.open.kept import open_kept  # noqa: PLC0415
        from flowedge.weights.open.quantised import keys_of, replace_tensors  # noqa: PLC0415

        directory = self._library.shelf.put(manifest, wish.name)
        checkpoint = open_kept(self._store, manifest, directory)
        wish.admit(checkpoint)
        names, given = set(wish.select(checkpoint)), {}
        sizes: dict[str, int] = {}
        if listed is not None and wish.asked is not None:
            keys = keys_of(checkpoint, manifest, wish.asked())
            replaced = replace_tensors(keys, listed, manifest, self._store)
            names -= replaced.names
            sizes |= replaced.sizes
            given = {key: self._store.path(digest) for key, digest in replaced.keys.items()}
        entries = [manifest.tensors_by_name[name] for name in sorted(names)]
        sizes |= {entry.sha256: entry.bytes for entry in entries}
        return OpenedModel(checkpoint, given=given), sizes

    def _verify(self, sizes: Mapping[str, int]) -> int:
        """Reads what this process has not read yet; returns how many were damaged, and are gone."""
        here = [digest for digest in sizes if self._store.size(digest) is not None]
        return sum(not self._store.is_verified(name) and not self._store.verify(name) for name in here)

    def _in_directory(self, wish: ModelRequest) -> Checkpoint | None:
        """The model in a directory here, when it is just this one."""
        if not is_here(wish.model, self._settings):
            return None
        import_libraries()
        from flowedge.models.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415

        try:
            checkpoint = Checkpoint.open(wish.model, hub=False)
            found = checkpoint.fingerprint
        except CheckpointError as error:
            _log.warning("the directory is not used: %s", error)
            return None
        if found != wish.fingerprint:
            _log.warning("%s is another model here than on the draft node; it is not used", wish.model)
            return None
        wish.admit(checkpoint)
        return checkpoint

    async def _give(self, wish: ModelRequest, manifest: Manifest | None, checkpoint: Checkpoint) -> None:
        """Let other devices have what is in the directory."""
        from flowedge.weights.manifest.describing import locate  # noqa: PLC0415

        try:
            known = manifest or await self._fetch_manifest(wish)
            locations = await finish_in_thread(lambda: locate(checkpoint, known))
        except FlowEdgeError as error:
            _log.warning("%s is not given to other devices: %s", wish.name, error)
            return
        self._library.share(wish.name, known, locations)

    def _from_hub(self, wish: ModelRequest) -> Checkpoint:
        from flowedge.models.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415

        checkpoint = Checkpoint.open(wish.model)
        if checkpoint.fingerprint != wish.fingerprint:
            raise CheckpointError(f"{wish.model} is another model on the hub than on the draft node")
        wish.admit(checkpoint)
        return checkpoint

    async def _fetch_manifest(self, wish: ModelRequest) -> Manifest:
        manifest = await fetch_manifest(self._device, wish.manifest, wish.sources, self._settings)
        await finish_in_thread(lambda: self._store.put(manifest.content))
        return manifest

    async def _bring(
        self, wish: ModelRequest, sizes: Mapping[str, int], what: str, *, quiet: bool = False
    ) -> None:
        total = sum(sizes.values())
        here = sum(size for name, size in sizes.items() if self._store.size(name) == size)
        if here == total and all(self._store.size(name) is not None for name in sizes):
            return
        names = ", ".join(f"{s.address}{' (draft node)' if s.is_draft_node else ''}" for s in wish.sources)
        if not quiet:
            await self._tell(f"fetching {what}: {mib(here)} of {mib(total)} are here, the rest from {names}")
        left = total - here
        said = f"{wish.name}: {mib(here)} in the cache, {mib(left)} to fetch from {names}"
        _log.info(said, extra=about(event="weights_fetching", model=wish.manifest, bytes=left))

        async def on_progress(progress: FetchProgress) -> None:
            _log.debug("%s: %s", wish.name, in_words(progress))
            if not quiet:
                await self._tell("", transfer_of(progress))

        fetched = await fetch(self._device, self._library, sizes, wish.sources, self._settings, on_progress)
        count = sum(fetched.received.values())
        fields = about(event="weights_fetched", model=wish.manifest, bytes=count, seconds=fetched.seconds)
        _log.info("%s: %s", what, _summary(fetched), extra=fields)
        if not quiet:
            await self._tell(_summary(fetched))
        await asyncio.to_thread(self._store.touch, sizes)


def transfer_of(progress: FetchProgress) -> pb.Transfer:
    """As it crosses the wire."""
    return pb.Transfer(
        done_bytes=progress.done,
        total_bytes=progress.total,
        bytes_per_s=progress.rate,
        left_s=-1.0 if progress.left_s is None else progress.left_s,
    )


def _summary(fetched: Fetched) -> str:
    total = sum(fetched.received.values())
    parts = ", ".join(f"{mib(count)} from {address}" for address, count in sorted(fetched.received.items()))
    return f"fetched {mib(total)} in {fetched.seconds:.1f} s" + (f": {parts}" if parts else "")
