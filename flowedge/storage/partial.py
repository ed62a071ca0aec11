"""An object that is being received: what is here is the beginning of it, and stays when it is cut off."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.storage.digest import hash_range


class DamagedError(ProtocolError):
    """What came is not what was asked for; all of it was thrown away."""


class PartialObject:
    """The only writer of one object; the lock on its file ends with it, or with its process.

    Attributes:
        length: bytes that are here; those that were here before count once `resume` has read them.
    """

    def __init__(self, descriptor: int, path: Path, target: Path, digest: str, size: int) -> None:
        """descriptor: of `path`, open and locked; closed with this. target: where it goes at last."""
        self.digest, self.size = digest, size
        self.length = 0
        self._descriptor, self._path, self._target = descriptor, path, target
        self._hash = hash_range(descriptor, 0, 0)

    def resume(self) -> int:
        """Take what is on the disk already; returns how much that is. It reads all of it."""
        here = os.fstat(self._descriptor).st_size
        if here > self.size:
            self.restart()
            return 0
        self._hash, self.length = hash_range(self._descriptor, 0, here), here
        return here

    def restart(self) -> None:
        """Throw away what is here."""
        os.ftruncate(self._descriptor, 0)
        self._hash, self.length = hash_range(self._descriptor, 0, 0), 0

    def append(self, data: bytes) -> None:
        """Add the next bytes. DamagedError as `commit` for too many, CapacityError for a full disk."""
        if self.length + len(data) > self.size:
            self.discard()
            raise DamagedError(f"more than the {self.size} bytes of {self.digest} came")
        view = memoryview(data)
        offset = self.length
        try:
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                offset, view = offset + written, view[written:]
        except OSError as error:
            raise self._disk_error(error) from error
        self._hash.update(data)
        self.length = offset

    def commit(self) -> None:
        """Make it an object. DamagedError when its bytes are others than its name says; none is kept then.

        CapacityError when the disk is full.
        """
        if self.length != self.size or self._hash.hexdigest() != self.digest:
            self.discard()
            raise DamagedError(f"what came for {self.digest} has another SHA-256")
        try:
            os.fsync(self._descriptor)
            self._target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.replace(self._target)
            _sync_directory(self._target.parent)
        except OSError as error:
            raise self._disk_error(error) from error

    def discard(self) -> None:
        """Take it off the disk."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of it; what is here stays for the next one to resume."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> PartialObject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _disk_error(self, error: OSError) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        self.discard()  # what it took is free for others again
        return CapacityError(
            f"the disk of the cache {self._path.parent.parent} is full; the rest of it is intact. Free "
            "some, or give another disk with --cache-dir"
        )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
