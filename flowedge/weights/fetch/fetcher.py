"""Fetching objects into the cache from several devices at once, until all are here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from flowedge.core.errors import CapacityError, DeadlineError, DeviceLostError, FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.net.deadline import within
from flowedge.storage.partial import DamagedError, PartialObject
from flowedge.weights.fetch.choice import Fetch, choose, in_order
from flowedge.weights.fetch.peer import Peer
from flowedge.weights.fetch.progress import FetchProgress, RateMeter
from flowedge.weights.fetch.source_state import SourceState
from flowedge.weights.library import Library
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread

T = TypeVar("T")
OnProgress = Callable[[FetchProgress], Awaitable[None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceAddress:
    """A device that may have something; the draft node is asked last."""

    address: str
    is_draft_node: bool = False


@dataclass(frozen=True)
class Fetched:
    """What it took: the bytes that came from each device, by address, and those that were here before."""

    received: Mapping[str, int]
    here_before: int
    seconds: float


class _LocalError(Exception):
    """This device cannot go on, whatever the others do."""

    def __init__(self, error: FlowEdgeError) -> None:
        super().__init__(str(error))
        self.error = error


class Fetcher:
    """Brings a set of objects here, once. Use `fetch`."""

    def __init__(
        self,
        device: str,
        library: Library,
        sizes: Mapping[str, int],
        sources: Sequence[SourceAddress],
        settings: WeightsSettings,
        on_progress: OnProgress,
    ) -> None:
        """sizes: bytes of each object, by digest; on_progress: told a few times a second."""
        self._device, self._library, self._settings = device, library, settings
        self._store = library.store
        self._sizes = dict(sizes)
        self._order = in_order(device, sizes)
        self._sources = {
            source.address: SourceState(Peer(source.address, settings), source.is_draft_node)
            for source in sources
        }
        self._on_progress = on_progress
        self._missing: set[str] = set()
        self._active: set[str] = set()
        self._elsewhere: dict[str, float] = {}  # until when an object is left to another process
        self._here: dict[str, int] = {}  # bytes of each object that are on the disk
        self._waited: dict[str, float] = {}  # since when another device is receiving it
        self._changed, self._all_asked = asyncio.Event(), asyncio.Event()
        self._heard = time.monotonic()
        self._meter = RateMeter(0, 0, self._heard)

    async def run(self) -> Fetched:
        """Until all objects are here. CapacityError when they do not fit, DeviceLostError when nothing comes.

        What was received stays in the cache in any case.
        """
        started = time.monotonic()
        pin = await finish_in_thread(lambda: self._store.pin(self._sizes))
        try:
            return await self._run(started)
        finally:
            pin.release()

    async def _run(self, started: float) -> Fetched:
        here = await finish_in_thread(self._look)
        self._meter, self._heard = RateMeter(sum(self._sizes.values()), here, started), started
        tasks = [asyncio.create_task(self._poll(source)) for source in self._sources.values()]
        workers: list[asyncio.Task[None]] = []
        try:
            if tasks:
                with contextlib.suppress(DeadlineError):  # who is slow to answer is asked on meanwhile
                    await within(self._settings.first_s, self._all_asked.wait(), "not all answered")
            workers += [asyncio.create_task(self._work()) for _ in range(self._settings.streams)]
            await self._watch(workers)
        finally:
            for task in [*tasks, *workers]:
                task.cancel()
            await asyncio.gather(*tasks, *workers, return_exceptions=True)
            for source in self._sources.values():
                await source.peer.close()
        await self._on_progress(self._meter.progress(time.monotonic()))
        received = {state.address: state.received for state in self._sources.values() if state.received}
        return Fetched(received, here, time.monotonic() - started)

    def _look(self) -> int:
        """Finds out what is missing; returns the bytes that are here, in parts of objects too."""
        for digest, size in self._sizes.items():
            is_here = self._store.size(digest) == size
            if not is_here:
                self._missing.add(digest)
            self._here[digest] = size if is_here else self._store.partial_bytes(digest, size)
        return sum(self._here.values())

    async def _watch(self, workers: list[asyncio.Task[None]]) -> None:
        settings = self._settings
        while self._missing:
            done, _ = await asyncio.wait(
                workers, timeout=settings.progress_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    task.result()
                except _LocalError as error:
                    raise error.error from error
            if not self._missing:
                break
            now = time.monotonic()
            await self._on_progress(self._meter.progress(now))
            if now - self._heard > settings.give_up_s:
                reasons = "; ".join(state.in_words() for state in self._sources.values())
                raise DeviceLostError(
                    self._device,
                    f"{len(self._missing)} of {len(self._sizes)} objects are missing, and nothing came for "
                    f"{settings.give_up_s:g} s: {reasons or 'no device is known that may have them'}",
                )

    async def _poll(self, state: SourceState) -> None:
        """Ask a device again and again what it has by now."""
        while True:
            asked = [digest for digest in self._order if digest in self._missing]
            try:
                held, sending = await state.peer.have(asked)
            except FlowEdgeError as error:
                if not state.problem:
                    _log.warning("%s is not asked for now: %s", state.address, error)
                state.failed(str(error))
                pause = self._settings.retry_s
            else:
                if state.answered(asked, held, sending):
                    self._changed.set()
                pause = self._settings.poll_s
            state.was_asked = True
            if all(source.was_asked for source in self._sources.values()):
                self._all_asked.set()
            await asyncio.sleep(pause)

    async def _work(self) -> None:
        """One stream after the other."""
        while self._missing:
            fetch = self._choose()
            if fetch is not None:
                await self._receive(fetch.digest, self._sources[fetch.address])
                continue
            self._changed.clear()
            with contextlib.suppress(DeadlineError):
                await within(self._settings.poll_s, self._changed.wait(), "nothing changed")

    def _choose(self) -> Fetch | None:
        now = time.monotonic()
        usable = [state for state in self._sources.values() if state.is_usable]
        wanted = [
            digest
            for digest in self._order
            if digest in self._missing
            and digest not in self._active
            and self._elsewhere.get(digest, 0.0) <= now
        ]
        receiving = {digest for state in usable for digest in state.receiving}
        self._waited = {digest: self._waited.get(digest, now) for digest in wanted if digest in receiving}
        may_wait = {
            digest for digest, since in self._waited.items() if now - since < self._settings.wait_for_peer_s
        }
        return choose(
            wanted, [state.as_source() for state in usable], self._settings.source_streams, may_wait
        )

    async def _receive(self, digest: str, source: SourceState) -> None:
        self._active.add(digest)
        source.ours += 1
        try:
            partial = await _local(lambda: self._store.begin(digest, self._sizes[digest], reserved=True))
            if partial is None:
                self._taken(digest)
                return
            with partial, self._library.receiving(digest):
                await self._take(partial, source)
            self._arrived(digest)
        except DamagedError as error:
            fields = about(event="weights_damaged", peer=source.address)
            _log.warning("from %s: %s; it is fetched again", source.address, error, extra=fields)
        except FlowEdgeError as error:
            fields = about(event="weights_cut", peer=source.address, reason=str(error))
            _log.warning("%s from %s was cut off: %s", digest, source.address, error, extra=fields)
            source.failed(str(error))
        finally:
            source.ours -= 1
            self._active.discard(digest)
            self._changed.set()

    async def _take(self, partial: PartialObject, source: SourceState) -> None:
        here = await _local(partial.resume)
        self._is_here(partial.digest, here)
        if here:
            _log.info("%s goes on from byte %d of %d", partial.digest, here, partial.size)
        try:
            async with aclosing(source.peer.read(partial.digest, here, doubted=source.damaged > 0)) as chunks:
                async for chunk in chunks:
                    await _local(functools.partial(partial.append, chunk))
                    self._is_here(partial.digest, partial.length)
                    source.received += len(chunk)
                    self._library.traffic.received += len(chunk)
                    self._heard = time.monotonic()
            if partial.length < partial.size:
                raise DeviceLostError(source.address, f"it sent {partial.length} of {partial.size} bytes")
            await _local(partial.commit)
        except DamagedError:
            self._is_here(partial.digest, 0)
            source.held.discard(partial.digest)
            source.damaged += int(here == 0)  # else it may be what was here before that is wrong
            raise
        self._store.mark_verified(partial.digest)

    def _is_here(self, digest: str, count: int) -> None:
        """So many bytes of an object are on the disk now."""
        self._meter.add(count - self._here[digest])
        self._here[digest] = count

    def _taken(self, digest: str) -> None:
        """Another process of this host has received an object, or is receiving it."""
        now, size = time.monotonic(), self._sizes[digest]
        is_whole = self._store.size(digest) == size
        here = size if is_whole else self._store.partial_bytes(digest, size)
        if here != self._here[digest]:
            self._heard = now
            self._is_here(digest, here)
        if is_whole:
            self._arrived(digest)
        else:
            self._elsewhere[digest] = now + self._settings.poll_s

    def _arrived(self, digest: str) -> None:
        self._missing.discard(digest)
        self._elsewhere.pop(digest, None)


async def fetch(
    device: str,
    library: Library,
    sizes: Mapping[str, int],
    sources: Sequence[SourceAddress],
    settings: WeightsSettings,
    on_progress: OnProgress,
) -> Fetched:
    """Brings objects here. Errors as Fetcher.run."""
    return await Fetcher(device, library, sizes, sources, settings, on_progress).run()


async def _local(function: Callable[[], T]) -> T:
    """Work on the disk of this device, whose failure no other source can mend."""
    try:
        return await finish_in_thread(function)
    except (CapacityError, DeadlineError) as error:
        raise _LocalError(error) from error
    except OSError as error:
        raise _LocalError(CapacityError(f"the cache cannot be written: {error}")) from error
