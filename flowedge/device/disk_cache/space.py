"""The disk space that objects, partial objects and quantised weights share, and eviction when it is full."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import CapacityError
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.lock import locked, try_lock
from flowedge.device.disk_cache.pins import pinned

OBJECTS, PARTIAL, QUANTISED, PINS = "objects", "partial", "quantised", "pins"
WRITING = ".partial"  # suffix of a quantised weight that is still being written
ABANDONED_S = 3600.0  # a file with this suffix has no writer any more when it was last modified so long ago
DISK_MARGIN = 16 << 20  # bytes of the disk that are left free

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache."""

    path: Path
    size: int  # bytes when it is complete
    written: int  # bytes on disk
    used_s: float  # time of the last use, seconds since the epoch
    in_use: bool  # by a living process, so that it must not be deleted


class CacheSpace:
    """All files below one cache directory, whose sizes together stay within one limit.

    The caller holds `lock` while it calls any other method.
    """

    def __init__(self, limits: CacheLimits, quantised: Path | None = None) -> None:
        """quantised: the directory of quantised weights, if it is not the default one below the root."""
        self.limits = limits
        self._quantised = quantised or limits.root / QUANTISED

    def lock(self) -> AbstractContextManager[None]:
        self.limits.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return locked(self.limits.root / ".lock")

    def entries(self) -> tuple[list[CacheFile], int]:
        """All files, and the bytes that pins reserve for objects of which nothing is on disk."""
        root = self.limits.root
        used = pinned(root / PINS)
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
        present = {entry.path.name.partition(".")[0] for entry in found}
        return found, sum(size for digest, size in used.items() if digest not in present)

    def free_space(self, size: int) -> bool:
        """Delete the least recently used files until `size` bytes more fit; return False if they cannot fit.

        Space that a pin reserves for missing objects counts as taken.
        """
        return self.free_and_count(size) is not None

    def free_and_count(self, size: int) -> int | None:
        """Do the same as `free_space`; return how many bytes fit beside `size`, None if those cannot fit."""
        entries, reserved = self.entries()
        excess = sum(entry.size for entry in entries) + reserved + size - self.limits.max_bytes
        chosen = _choose_evicted(entries, excess)
        if size > self.limits.max_bytes or sum(entry.size for entry in chosen) < excess:
            return None
        for entry in chosen:
            _log.info("deleting %s (%d bytes), the least recently used file", entry.path, entry.size)
            remove(entry.path)
        return sum(entry.size for entry in chosen) - excess

    def check_disk(self, size: int) -> None:
        """`check_free` for `size` bytes and for all bytes that are still to be received."""
        entries, reserved = self.entries()
        promised = sum(entry.size - entry.written for entry in entries if entry.in_use)
        self.check_free(size + promised + reserved)

    def check_free(self, size: int) -> None:
        """Raise CapacityError unless the disk has `size` bytes free. This reads no directory."""
        free = shutil.disk_usage(self.limits.root).free
        if size > free - DISK_MARGIN:
            raise CapacityError(
                f"the disk of the cache {self.limits.root} is full: {_shown(size)} are needed, and of the "
                f"{_shown(free)} that are free, {_shown(DISK_MARGIN)} are left to other programs; nothing "
                "in the cache was changed. Free some space, or choose another disk with --cache-dir"
            )


def _shown(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size} bytes"


def _choose_evicted(entries: Iterable[CacheFile], excess: int) -> list[CacheFile]:
    """The least recently used files whose deletion frees `excess` bytes, or fewer if the rest is in use."""
    chosen: list[CacheFile] = []
    for entry in sorted(entries, key=lambda entry: (entry.used_s, str(entry.path))):
        if excess <= 0:
            break
        if not entry.in_use:
            chosen.append(entry)
            excess -= entry.size
    return chosen


def _files(directory: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    for path in directory.glob(pattern):
        try:
            yield path, path.stat()
        except FileNotFoundError:  # another process has deleted it
            continue


def _is_being_written(path: Path, modified_s: float) -> bool:
    if not path.name.endswith(WRITING):
        return False
    if time.time() - modified_s > ABANDONED_S:
        remove(path)
    return True


def _is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError), path.open("rb") as file:
        return not try_lock(file.fileno())
    return False


def touch(path: Path) -> None:
    """Mark a file as used now; a failure, as on a read-only disk, is only logged."""
    try:
        os.utime(path)
    except OSError as error:
        _log.debug("%s was not marked as used: %s", path, error)


def remove(path: Path) -> None:
    """Delete a file; a failure is only logged."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s cannot be deleted: %s", path, error)
