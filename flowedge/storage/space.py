"""The room that all of the cache takes together, and making some."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from flowedge.core.errors import CapacityError
from flowedge.storage.eviction import CacheFile, choose_evicted
from flowedge.storage.limits import CacheLimits
from flowedge.storage.lock import locked, try_lock
from flowedge.storage.pins import pinned

OBJECTS, PARTIAL, QUANTISED, PINS = "objects", "partial", "quantised", "pins"
WRITING = ".partial"  # the end of the name of a quantised weight that is still being written
ABANDONED_S = 3600.0  # such a file has no writer any more when it was not written to for so long
DISK_MARGIN = 16 << 20  # bytes of the disk that are left to others

_log = logging.getLogger(__name__)


class CacheSpace:
    """Objects, parts of objects and quantised weights below one root, with one bound.

    Its methods are to be called while `lock` is held.
    """

    def __init__(self, limits: CacheLimits, quantised: Path | None = None) -> None:
        """quantised: the directory of quantised weights, where it is not the root's own."""
        self.limits = limits
        self._quantised = quantised or limits.root / QUANTISED

    def lock(self) -> AbstractContextManager[None]:
        """Hold the cache against other processes. DeadlineError, OSError."""
        self.limits.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return locked(self.limits.root / ".lock")

    def entries(self) -> list[CacheFile]:
        """All that is on the disk."""
        return self._entries(pinned(self.limits.root / PINS))

    def _entries(self, used: Mapping[str, int]) -> list[CacheFile]:
        root = self.limits.root
        found = [
            CacheFile(path, stat.st_size, stat.st_size, stat.st_mtime, path.name in used)
            for path, stat in _files(root / OBJECTS, "*/*")
        ]
        found += [
            CacheFile(path, stat.st_size, stat.st_size, stat.st_mtime, False)
            for path, stat in _files(self._quantised, "*")
            if not _is_being_written(path, stat.st_mtime)
        ]
        for path, stat in _files(root / PARTIAL, "*"):
            size = path.name.rpartition(".")[2]
            whole = int(size) if size.isdigit() else stat.st_size
            found.append(CacheFile(path, whole, stat.st_size, stat.st_mtime, _is_locked(path)))
        return found

    def make_room(self, size: int) -> bool:
        """Drop what was not used for longest until `size` bytes more fit; False when they cannot.

        Room that is kept for what is to come counts as taken.
        """
        used = pinned(self.limits.root / PINS)
        entries = self._entries(used)
        taken = sum(entry.size for entry in entries) + _to_come(used, entries)
        excess = taken + size - self.limits.max_bytes
        chosen = choose_evicted(entries, excess)
        if size > self.limits.max_bytes or sum(entry.size for entry in chosen) < excess:
            return False
        for entry in chosen:
            _log.info("%s, %d bytes, was not used for longest and is dropped", entry.path, entry.size)
            remove(entry.path)
        return True

    def check_disk(self, size: int) -> None:
        """CapacityError when the disk has no room for `size` bytes beside what is to come to it already."""
        used = pinned(self.limits.root / PINS)
        entries = self._entries(used)
        promised = sum(entry.size - entry.written for entry in entries if entry.in_use)
        self.check_free(size + promised + _to_come(used, entries))

    def check_free(self, size: int) -> None:
        """CapacityError when the disk has no room for `size` bytes. It reads no directory."""
        free = shutil.disk_usage(self.limits.root).free - DISK_MARGIN
        if size > free:
            raise CapacityError(
                f"the disk of the cache {self.limits.root} is full: {size / 2**20:.0f} MiB are needed and "
                f"{max(0, free) / 2**20:.0f} MiB are free; nothing of the cache was touched. Free some, or "
                "give another disk with --cache-dir"
            )


def _to_come(used: Mapping[str, int], entries: Iterable[CacheFile]) -> int:
    """Bytes of objects that room is kept for, and nothing of which is here."""
    here = {entry.path.name.partition(".")[0] for entry in entries}
    return sum(size for digest, size in used.items() if digest not in here)


def _files(directory: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    for path in directory.glob(pattern):
        try:
            yield path, path.stat()
        except FileNotFoundError:  # another process dropped it
            continue


def _is_being_written(path: Path, modified_s: float) -> bool:
    if not path.name.endswith(WRITING):
        return False
    if time.time() - modified_s > ABANDONED_S:
        remove(path)
    return True


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def touch(path: Path) -> None:
    """Used now; a directory that is only read is not worth a word."""
    try:
        os.utime(path)
    except OSError as error:
        _log.debug("%s was not marked as used: %s", path, error)


def remove(path: Path) -> None:
    """Drop a file; one that cannot be is logged."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s cannot be removed: %s", path, error)
