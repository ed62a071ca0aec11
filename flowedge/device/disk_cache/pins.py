"""Pins: lists of objects that a living process uses or is about to receive, one locked file per pin."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from flowedge.device.disk_cache.lock import try_lock


class Pin(AbstractContextManager["Pin"]):
    """Protects objects from eviction and reserves space for missing ones while its process lives.

    As a context manager it is released at the end.
    """

    def __init__(self, directory: Path, sizes: Mapping[str, int]) -> None:
        """Write the pin's file. The caller holds the lock of the cache.

        sizes: bytes of each object, by digest.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = directory / uuid.uuid4().hex
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try_lock(self._descriptor)
        with os.fdopen(os.dup(self._descriptor), "w", encoding="ascii") as file:
            file.writelines(f"{digest} {size}\n" for digest, size in sorted(sizes.items()))

    def release(self) -> None:
        """Delete the pin; a second call does nothing."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.release()


def pinned(directory: Path) -> dict[str, int]:
    """Bytes of each pinned object, by digest. The caller holds the lock of the cache."""
    found: dict[str, int] = {}
    for path in directory.glob("*"):
        with suppress(FileNotFoundError), path.open(encoding="ascii") as file:
            if try_lock(file.fileno()):  # its process has ended
                path.unlink(missing_ok=True)
            else:
                found.update(_parse(file.read()))
    return found


def _parse(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
