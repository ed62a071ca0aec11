"""Who uses what: a file a user, locked for as long as the user lives."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from flowedge.storage.lock import try_lock


class Pin:
    """Keeps objects from being dropped until it is released, or its process ends."""

    def __init__(self, directory: Path, digests: Iterable[str]) -> None:
        """To be made while the lock of the cache is held. OSError when the disk takes no file."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = directory / uuid.uuid4().hex
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try_lock(self._descriptor)
        with os.fdopen(os.dup(self._descriptor), "w", encoding="ascii") as file:
            file.write("\n".join(digests))

    def release(self) -> None:
        """Let go; nothing happens the second time."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def pinned(directory: Path) -> set[str]:
    """What living processes use. To be asked while the lock of the cache is held."""
    found: set[str] = set()
    for path in directory.glob("*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if try_lock(descriptor):  # its owner is gone
                path.unlink(missing_ok=True)
            else:
                found.update(path.read_text(encoding="ascii").split())
        finally:
            os.close(descriptor)
    return found
