"""Objects on disk, named by their SHA-256: each whole or absent, and shared by all agents of a host."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flowedge.core.errors import CapacityError
from flowedge.device.disk_cache.digest import check_digest, digest_of, hash_range, is_digest
from flowedge.device.disk_cache.file_range import FileState
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.lock import try_lock
from flowedge.device.disk_cache.partial import PartialObject
from flowedge.device.disk_cache.pins import Pin
from flowedge.device.disk_cache.space import OBJECTS, PARTIAL, PINS, CacheSpace, remove, touch

_log = logging.getLogger(__name__)


class ObjectStore:
    """The objects below the root of the cache. Damaged objects are deleted when they are verified.

    Any number of threads and processes may use one root.
    """

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self._space = CacheSpace(limits)

    def path(self, digest: str) -> Path:
        """The path of an object, whether it exists or not."""
        return self.limits.root / OBJECTS / check_digest(digest)[:2] / digest

    def size(self, digest: str) -> int | None:
        """Bytes of an object, None if it is absent."""
        state = self._state(digest)
        return None if state is None else state.size

    def missing(self, sizes: Mapping[str, int]) -> list[str]:
        """The digests of objects that are absent or have another size than expected."""
        return [digest for digest, size in sizes.items() if self.size(digest) != size]

    def __iter__(self) -> Iterator[str]:
        for path in (self.limits.root / OBJECTS).glob("*/*"):
            if is_digest(path.name):
                yield path.name

    def begin(self, digest: str, size: int, *, reserved: bool = False) -> PartialObject | None:
        """Start or resume receiving an object.

        Returns None if the object exists already or another process is receiving it.
        reserved: whether a pin has reserved the space for it.

        Raises:
            CapacityError: when the cache or the disk is full; nothing is deleted then.
        """
        path, target = self._partial_path(digest, size), self.path(digest)
        with self._space.lock():
            if target.exists():
                return None
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            received = self.partial_bytes(digest, size)
            if reserved:
                self._space.check_free(size - received)
            else:
                self._reserve(0 if path.exists() else size, size - received)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            if target.exists():  # another process has ended it since the check above
                path.unlink(missing_ok=True)
                os.close(descriptor)
                return None
            touch(path)
        return PartialObject(descriptor, path, target, digest, size)

    def partial_bytes(self, digest: str, size: int) -> int:
        """Bytes on disk of an object that has been received in part."""
        state = FileState.found(self._partial_path(digest, size))
        return 0 if state is None else min(size, state.size)

    def put(self, data: bytes) -> str:
        """Store bytes as an object; return their digest."""
        digest = digest_of(data)
        partial = self.begin(digest, len(data))
        if partial is not None:
            with partial:
                partial.restart()
                partial.append(data)
                partial.commit()
        return digest

    def read(self, digest: str) -> bytes | None:
        """Read and verify an object; return None if it is absent, or damaged and therefore deleted."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the cached object %s cannot be read: %s", path, error)
            data = None
        if data is None or digest_of(data) != digest:
            self._drop_damaged(path)
            return None
        touch(path)
        return data

    def verify(self, digest: str) -> bool:
        """Hash an object and delete it if it is damaged; return whether it is present and intact."""
        state, path = self._state(digest), self.path(digest)
        if state is None:
            return False
        try:
            with path.open("rb") as file:
                found = hash_range(file.fileno(), 0, state.size).hexdigest()
        except FileNotFoundError:  # another process has deleted it
            return False
        except OSError as error:
            _log.warning("the cached object %s cannot be read: %s", path, error)
            found = ""
        if found != digest:
            self._drop_damaged(path)
            return False
        return True

    def touch(self, digests: Iterable[str]) -> None:
        """Mark objects as used now."""
        for digest in digests:
            touch(self.path(digest))

    def pin(self, sizes: Mapping[str, int]) -> Pin:
        """Protect objects from eviction and reserve space for missing ones, until the pin is released.

        sizes: bytes of each object, by digest.

        Raises:
            CapacityError: when there is not enough space; nothing is deleted then.
        """
        with self._space.lock():
            pin = Pin(self.limits.root / PINS, {check_digest(name): size for name, size in sizes.items()})
            try:
                self._reserve(0, 0, sum(sizes.values()))
            except BaseException:
                pin.release()
                raise
            return pin

    def _reserve(self, size: int, written: int, needed: int | None = None) -> None:
        """Make room for `size` bytes more in the cache and `written` on the disk.

        needed: bytes that the error message names, if not `size`.
        """
        if not self._space.free_space(size):
            raise self._too_large(size if needed is None else needed)
        self._space.check_disk(written)

    def remove(self, digests: Iterable[str]) -> int:
        """Delete whole and partial objects that no process uses; return how many bytes that freed."""
        wanted, freed = set(digests), 0
        with self._space.lock():
            for entry in self._space.entries()[0]:
                if entry.path.name.partition(".")[0] in wanted and not entry.in_use:
                    remove(entry.path)
                    freed += entry.written
        return freed

    def taken_bytes(self) -> int:
        """Bytes of all files of the cache, quantised weights included."""
        with self._space.lock():
            return sum(entry.written for entry in self._space.entries()[0])

    def _too_large(self, size: int) -> CapacityError:
        limits = self.limits
        if limits.max_bytes == 0:
            return CapacityError(
                f"the cache {limits.root} is turned off (its limit is 0); set a limit with --cache-gib"
            )
        return CapacityError(
            f"the cache {limits.root} is limited to {limits.max_bytes / 2**30:.2f} GiB, and "
            f"{size / 2**20:.0f} MiB more do not fit beside the files in use; raise it with --cache-gib"
        )

    def _partial_path(self, digest: str, size: int) -> Path:
        return self.limits.root / PARTIAL / f"{check_digest(digest)}.{size}"

    def _state(self, digest: str) -> FileState | None:
        return FileState.found(self.path(digest))

    def _drop_damaged(self, path: Path) -> None:
        _log.warning("the cached object %s is damaged; it is deleted, and fetched again when needed", path)
        remove(path)
