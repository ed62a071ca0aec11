"""Contents on disk that go by their SHA-256: whole or not at all, shared by all agents of a host."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flowedge.core.errors import CapacityError
from flowedge.storage.digest import check_digest, digest_of, hash_range, is_digest
from flowedge.storage.limits import CacheLimits
from flowedge.storage.lock import try_lock
from flowedge.storage.partial import PartialObject
from flowedge.storage.pins import Pin
from flowedge.storage.space import OBJECTS, PARTIAL, PINS, CacheSpace, remove, touch

_log = logging.getLogger(__name__)


class ObjectStore:
    """Objects below the root of the cache. What is damaged is found when it is verified, and dropped.

    Any number of threads and processes may use one root.
    """

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self._space = CacheSpace(limits)
        self._verified: dict[str, tuple[int, int, int]] = {}  # inode, size and time of change, then

    def path(self, digest: str) -> Path:
        """Where an object is, or would be. ProtocolError for what is no digest."""
        check_digest(digest)
        return self.limits.root / OBJECTS / digest[:2] / digest

    def size(self, digest: str) -> int | None:
        """The bytes of an object; None when it is not here."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def __iter__(self) -> Iterator[str]:
        for path in (self.limits.root / OBJECTS).glob("*/*"):
            if is_digest(path.name):
                yield path.name

    def begin(self, digest: str, size: int, *, reserved: bool = False) -> PartialObject | None:
        """What receives an object, with as much of it as was received before.

        reserved: a pin keeps room for it.
        None when somebody else is receiving it, or it is here already. CapacityError when the cache or the
        disk has no room for it; nothing is lost then.
        """
        path, target = self._partial_path(digest, size), self.path(digest)
        with self._space.lock():
            if target.exists():
                return None
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                here = path.stat().st_size
                is_new = False
            except FileNotFoundError:
                here, is_new = 0, True
            if reserved:
                self._space.check_free(size - here)
            else:
                self._reserve(size if is_new else 0, size - here)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            touch(path)
        return PartialObject(descriptor, path, target, digest, size)

    def partial_bytes(self, digest: str, size: int) -> int:
        """How much of an object that is not whole is on the disk."""
        try:
            return min(size, self._partial_path(digest, size).stat().st_size)
        except FileNotFoundError:
            return 0

    def put(self, data: bytes) -> str:
        """Store a content; returns its digest. CapacityError as `begin`."""
        digest = digest_of(data)
        partial = self.begin(digest, len(data))
        if partial is not None:
            with partial:
                partial.restart()
                partial.append(data)
                partial.commit()
        return digest

    def read(self, digest: str) -> bytes | None:
        """An object, checked; None when it is not here, or was damaged and is gone now."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if digest_of(data) != digest:
            self._drop_damaged(path)
            return None
        touch(path)
        return data

    def is_verified(self, digest: str) -> bool:
        """Whether it was verified, or received, by this process, and its file has not changed since."""
        return self._state(digest) is not None and self._verified.get(digest) == self._state(digest)

    def verify(self, digest: str) -> bool:
        """Read all of an object; one that is damaged is logged and dropped, and False as one not here."""
        state, path = self._state(digest), self.path(digest)
        if state is None:
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = hash_range(descriptor, 0, state[1]).hexdigest()
        finally:
            os.close(descriptor)
        if found != digest:
            self._drop_damaged(path)
            return False
        self._verified[digest] = state
        return True

    def mark_verified(self, digest: str) -> None:
        """Its hash was just computed."""
        state = self._state(digest)
        if state is not None:
            self._verified[digest] = state

    def touch(self, digests: Iterable[str]) -> None:
        """They were used now."""
        for digest in digests:
            touch(self.path(digest))

    def pin(self, sizes: Mapping[str, int]) -> Pin:
        """Keep objects from being dropped, and room for those that are not here, until the pin is released.

        sizes: bytes of each, by digest. CapacityError when there is no such room; nothing is lost then.
        """
        with self._space.lock():
            pin = Pin(self.limits.root / PINS, {check_digest(name): size for name, size in sizes.items()})
            try:
                self._reserve(0, 0, sum(sizes.values()))
            except BaseException:
                pin.release()
                raise
            return pin

    def _reserve(self, size: int, written: int, said: int | None = None) -> None:
        """Room in the cache for `size` bytes more, and on the disk for `written`."""
        if not self._space.make_room(size):
            raise self._no_room(size if said is None else said)
        self._space.check_disk(written)

    def remove(self, digests: Iterable[str]) -> int:
        """Drop objects and parts of them, apart from those in use; returns the bytes that were freed."""
        wanted, freed = set(digests), 0
        with self._space.lock():
            for entry in self._space.entries():
                if entry.path.name.partition(".")[0] in wanted and not entry.in_use:
                    remove(entry.path)
                    freed += entry.written
        return freed

    def taken_bytes(self) -> int:
        """What all of the cache takes, quantised weights included."""
        with self._space.lock():
            return sum(entry.written for entry in self._space.entries())

    def _no_room(self, size: int) -> CapacityError:
        limits = self.limits
        if limits.max_bytes == 0:
            return CapacityError(f"the cache {limits.root} is turned off; give it room with --cache-gib")
        return CapacityError(
            f"the cache {limits.root} may take {limits.max_bytes / 2**30:.2f} GiB, and "
            f"{size / 2**20:.0f} MiB more do not fit beside what is in use; give it room with --cache-gib"
        )

    def _partial_path(self, digest: str, size: int) -> Path:
        return self.limits.root / PARTIAL / f"{check_digest(digest)}.{size}"

    def _state(self, digest: str) -> tuple[int, int, int] | None:
        try:
            found = self.path(digest).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _drop_damaged(self, path: Path) -> None:
        _log.warning("the cached %s is damaged; it is dropped and fetched again when it is needed", path)
        remove(path)
