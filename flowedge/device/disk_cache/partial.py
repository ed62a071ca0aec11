"""An object that is being received; what is on disk stays there when the transfer breaks off."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.device.disk_cache.digest import hash_range
from flowedge.device.files import sync


class DamagedError(ProtocolError):
    """Received bytes whose SHA-256 is not the one that was requested. They have been deleted."""


class PartialObject(AbstractContextManager["PartialObject"]):
    """The only writer of one object. Its file is locked until it is closed or its process ends.

    `append` and `commit` delete the file and raise an error when bytes are wrong or the disk is full.

    Attributes:
        length: bytes received so far; bytes of an earlier transfer are included after `resume`.
    """

    def __init__(self, descriptor: int, path: Path, target: Path, digest: str, size: int) -> None:
        """descriptor: `path`, open and locked; owned by this object. target: the path of the whole object."""
        self.digest, self.size = digest, size
        self.length = 0
        self._descriptor, self._path, self._target = descriptor, path, target
        self._hash = hash_range(descriptor, 0, 0)

    def resume(self) -> int:
        """Read and keep the bytes of an earlier transfer; return how many they are."""
        found = os.fstat(self._descriptor).st_size
        if found > self.size:
            self.restart()
            return 0
        self._hash, self.length = hash_range(self._descriptor, 0, found), found
        return found

    def restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._hash, self.length = hash_range(self._descriptor, 0, 0), 0

    def append(self, data: bytes) -> None:
        """Write the next bytes, which must not exceed the size of the object."""
        if self.length + len(data) > self.size:
            self.discard()
            raise DamagedError(f"more than the {self.size} bytes of {self.digest} were received")
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
        """Check the SHA-256 and move the file to its place among the whole objects."""
        if self.length != self.size or self._hash.hexdigest() != self.digest:
            self.discard()
            raise DamagedError(f"the bytes received for {self.digest} have another SHA-256")
        try:
            os.fsync(self._descriptor)
            self._target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.replace(self._target)
            sync(self._target.parent)
        except OSError as error:
            raise self._disk_error(error) from error

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock; the bytes stay on disk for a later `resume`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disk_error(self, error: OSError) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        self.discard()  # its space is free for others again
        return CapacityError(
            f"the disk of the cache {self._path.parent.parent} is full; the other objects are intact. Free "
            "some space, or choose another disk with --cache-dir"
        )
