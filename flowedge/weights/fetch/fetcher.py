"""Fetching a set of objects into the cache, from several devices at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from flowedge.core.errors import CapacityError, DeadlineError, DeviceLostError, FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.device.disk_cache.partial import DamagedError, PartialObject
from flowedge.network.deadline import within
from flowedge.weights.fetch.least_rate import LeastRate
from flowedge.weights.fetch.progress import FetchProgress, RateMeter
from flowedge.weights.fetch.source import (
    Fetch,
    Source,
    SourceAddress,
    choose_trusted,
    fetch_order,
    is_straggler,
)
from flowedge.weights.fetch.weights_client import WeightsClient
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.settings import WeightsSettings
from flowedge.weights.threads import finish_in_thread

T = TypeVar("T")
OnProgress = Callable[[FetchProgress], Awaitable[None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetched:
    """What a fetch has cost.

    Attributes:
        received: bytes received from each device, by address.
        cached_before: bytes that were in the cache at the start.
    """

    received: Mapping[str, int]
    cached_before: int
    seconds: float


class _LocalError(Exception):
    """An error of this device, after which no source can help."""

    def __init__(self, error: FlowEdgeError) -> None:
        super().__init__(str(error))
        self.error = error


class Fetcher:
    """Fetches a set of objects, once."""

    def __init__(
        self,
        device: str,
        local_weights: LocalWeights,
        sizes: Mapping[str, int],
        sources: Sequence[SourceAddress],
        settings: WeightsSettings,
        on_progress: OnProgress,
    ) -> None:
        """sizes: bytes of each object, by digest. on_progress: called a few times a second."""
        self._device, self._local, self._settings = device, local_weights, settings
        self._store = local_weights.store
        self._sizes = dict(sizes)
        self._order = fetch_order(device, sizes)
        self._sources = {source.address: Source(source.address, source.is_draft_node) for source in sources}
        self._clients = {address: WeightsClient(address, settings) for address in self._sources}
        self._on_progress = on_progress
        self._missing: set[str] = set()
        self._active: set[str] = set()
        self._elsewhere: dict[str, float] = {}  # until when an object is left to another process
        self._on_disk: dict[str, int] = {}  # bytes of each object
        self._waited: dict[str, float] = {}  # since when another device has been receiving an object
        self._changed, self._all_asked = asyncio.Event(), asyncio.Event()
        self._senders: dict[str, set[str]] = {}  # addresses that have sent bytes of an object, by digest
        self._idle = 0  # workers that have nothing to receive
        self._last_data = time.monotonic()
        self._fresh = 0  # bytes since then
        self._meter = RateMeter(0, 0, self._last_data)

    async def run(self) -> Fetched:
        """Fetch until all objects are in the cache. Received bytes stay there even after an error.

        Raises:
            CapacityError: when the objects do not fit the cache or the disk.
            DeviceLostError: when no device has sent anything for `give_up_s`.
        """
        started = time.monotonic()
        with await finish_in_thread(lambda: self._store.pin(self._sizes)):
            return await self._run(started)

    async def _run(self, started: float) -> Fetched:
        cached = await finish_in_thread(self._find_missing)
        self._meter, self._last_data = RateMeter(sum(self._sizes.values()), cached, started), started
        tasks = [asyncio.create_task(self._poll(source)) for source in self._sources.values()]
        workers: list[asyncio.Task[None]] = []
        try:
            if tasks:
                with contextlib.suppress(DeadlineError):  # fetching begins; late answers count when they come
                    await within(self._settings.first_s, self._all_asked.wait(), "not all answered")
            workers += [asyncio.create_task(self._work()) for _ in range(self._settings.streams)]
            await self._watch(workers)
        finally:
            for task in [*tasks, *workers]:
                task.cancel()
            await asyncio.gather(*tasks, *workers, return_exceptions=True)
            for client in self._clients.values():
                await client.close()
        await self._on_progress(self._meter.progress(time.monotonic()))
        received = {source.address: source.received for source in self._sources.values() if source.received}
        return Fetched(received, cached, time.monotonic() - started)

    def _find_missing(self) -> int:
        """Fill `_missing` and `_on_disk`; return the bytes on disk, partial objects included."""
        self._missing.update(self._store.missing(self._sizes))
        partial_bytes = {
            digest: self._store.partial_bytes(digest, self._sizes[digest]) for digest in self._missing
        }
        self._on_disk = self._sizes | partial_bytes
        return sum(self._on_disk.values())

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
            if now - self._last_data > settings.give_up_s:
                reasons = "; ".join(source.in_words() for source in self._sources.values())
                raise DeviceLostError(
                    self._device,
                    f"{len(self._missing)} of {len(self._sizes)} objects are missing, and nothing was "
                    f"received for {settings.give_up_s:g} s: "
                    f"{reasons or 'no device is known that may have them'}",
                )

    async def _poll(self, source: Source) -> None:
        """Ask a device again and again which of the missing objects it has."""
        while True:
            asked = [digest for digest in self._order if digest in self._missing]
            try:
                states, sending = await self._clients[source.address].have(asked)
            except FlowEdgeError as error:
                if not source.problem:
                    _log.warning(
                        "fetching goes on without %s until that device answers again: %s",
                        source.address,
                        error,
                    )
                source.fail(str(error))
                pause = self._settings.retry_s
            else:
                if source.take_answer(asked, states, sending):
                    self._changed.set()
                pause = self._settings.poll_s
            source.was_asked = True
            if all(source.was_asked for source in self._sources.values()):
                self._all_asked.set()
            await asyncio.sleep(pause)

    async def _work(self) -> None:
        """Receive one object after the other."""
        while self._missing:
            fetch = self._choose()
            if fetch is not None:
                await self._receive(fetch.digest, self._sources[fetch.address])
                continue
            self._changed.clear()
            self._idle += 1
            try:
                with contextlib.suppress(DeadlineError):
                    await within(self._settings.poll_s, self._changed.wait(), "nothing changed")
            finally:
                self._idle -= 1

    def _choose(self) -> Fetch | None:
        now = time.monotonic()
        usable = [source for source in self._sources.values() if source.is_usable]
        wanted = [
            digest
            for digest in self._order
            if digest in self._missing
            and digest not in self._active
            and self._elsewhere.get(digest, 0.0) <= now
        ]
        receiving = {digest for source in usable for digest in source.receiving}
        self._waited = {digest: self._waited.get(digest, now) for digest in wanted if digest in receiving}
        may_wait = {
            digest for digest, since in self._waited.items() if now - since < self._settings.wait_for_peer_s
        }
        return choose_trusted(wanted, usable, self._settings.source_streams, may_wait, now)

    async def _receive(self, digest: str, source: Source) -> None:
        self._active.add(digest)
        source.ours += 1
        try:
            begin = partial(self._store.begin, digest, self._sizes[digest], reserved=True)
            partial_object = await _local(begin)
            if partial_object is None:
                self._note_other_process(digest)
                return
            with partial_object, self._local.receiving(digest):
                await self._receive_rest(partial_object, source)
            self._note_whole(digest)
        except DamagedError as error:
            fields = about(event="weights_damaged", peer=source.address)
            _log.warning("from %s: %s; it is fetched again", source.address, error, extra=fields)
        except FlowEdgeError as error:
            fields = about(event="weights_cut", peer=source.address, reason=str(error))
            _log.warning("%s from %s was cut off: %s", digest, source.address, error, extra=fields)
            source.fail(str(error))
            source.put_aside(str(error), time.monotonic())
        finally:
            source.ours -= 1
            self._active.discard(digest)
            self._changed.set()

    async def _receive_rest(self, partial_object: PartialObject, source: Source) -> None:
        digest, size = partial_object.digest, partial_object.size
        resumed = await _local(partial_object.resume)
        self._note_on_disk(digest, resumed)
        if resumed:
            _log.info("%s goes on from byte %d of %d", digest, resumed, size)
        rate = self._clients[source.address].least_rate()
        try:
            stream = self._clients[source.address].read(digest, resumed, rate, doubted=source.damaged > 0)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    await _local(partial(partial_object.append, chunk))
                    self._note_on_disk(digest, partial_object.length)
                    self._senders.setdefault(digest, set()).add(source.address)
                    source.received += len(chunk)
                    self._local.traffic.received += len(chunk)
                    self._note_data(len(chunk))
                    if partial_object.length < size:
                        self._check_straggler(digest, source, rate)
            if partial_object.length < size:
                raise DeviceLostError(source.address, f"it sent {partial_object.length} of {size} bytes")
            await _local(partial_object.commit)
        except DamagedError:
            self._note_on_disk(digest, 0)
            self._blame(digest, source, resumed)
            raise
        source.delivered(rate.total_bytes, rate.total_s)

    def _blame(self, digest: str, source: Source, resumed: int) -> None:
        """Take note of an object with another SHA-256, whose last bytes came from `source`.

        resumed: the number of bytes that were there before.
        """
        for address in self._senders.pop(digest, set()) - {source.address}:
            self._sources[address].put_aside("an object with bytes of it was damaged", time.monotonic())
        if resumed == 0:
            source.held = source.held - {digest}
            source.damaged += 1

    def _note_data(self, count: int) -> None:
        """Put off the end of fetching, but not for a few bytes."""
        self._fresh += count
        if self._fresh >= self._settings.least_bytes_s:
            self._last_data, self._fresh = time.monotonic(), 0

    def _check_straggler(self, digest: str, source: Source, rate: LeastRate) -> None:
        """Raise DeviceLostError if a worker is idle, and another device would send the rest much faster."""
        settings = self._settings
        if not self._idle or rate.total_s < settings.straggler_s:
            return
        bytes_s = rate.total_bytes / rate.total_s
        others, now = self._sources.values(), time.monotonic()
        if is_straggler(digest, source, bytes_s, others, settings.straggler, now):
            reason = f"it sends {bytes_s / 1024:.3g} KiB/s, and another device is much faster"
            raise DeviceLostError(source.address, reason)

    def _note_on_disk(self, digest: str, count: int) -> None:
        self._meter.add(count - self._on_disk[digest])
        self._on_disk[digest] = count

    def _note_other_process(self, digest: str) -> None:
        """Take note that another process of this host has received an object, or is receiving it."""
        now, size = time.monotonic(), self._sizes[digest]
        is_whole = self._store.size(digest) == size
        on_disk = size if is_whole else self._store.partial_bytes(digest, size)
        if on_disk != self._on_disk[digest]:
            self._last_data = now
            self._note_on_disk(digest, on_disk)
        if is_whole:
            self._note_whole(digest)
        else:
            self._elsewhere[digest] = now + self._settings.poll_s

    def _note_whole(self, digest: str) -> None:
        self._last_data, self._fresh = time.monotonic(), 0
        self._missing.discard(digest)
        self._elsewhere.pop(digest, None)


async def _local(function: Callable[[], T]) -> T:
    """Run disk work of this device in a thread. No other source can help after its failure."""
    try:
        return await finish_in_thread(function)
    except (CapacityError, DeadlineError) as error:
        raise _LocalError(error) from error
    except OSError as error:
        raise _LocalError(CapacityError(f"the cache cannot be written: {error}")) from error
