"""What is dropped when there is too much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache.

    Attributes:
        size: that it takes, or will take when it is whole; bytes.
        written: bytes of it that are on the disk.
        used_s: when it was last used, in seconds since the epoch.
        in_use: by a process that lives, so that it has to stay.
    """

    path: Path
    size: int
    written: int
    used_s: float
    in_use: bool


def choose_evicted(entries: Iterable[CacheFile], excess: int) -> list[CacheFile]:
    """The entries to drop so that `excess` bytes less are taken: what was not used for longest first.

    Nothing in use is among them, so it may be less.
    """
    chosen: list[CacheFile] = []
    for entry in sorted(entries, key=lambda entry: (entry.used_s, str(entry.path))):
        if excess <= 0:
            break
        if not entry.in_use:
            chosen.append(entry)
            excess -= entry.size
    return chosen
