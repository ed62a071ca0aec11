"""Bytes of a file that hold an object, in a checkpoint or in the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileState:
    """What tells that a file has not changed since it was looked at."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """OSError when the file is gone."""
        return cls._from(path.stat())

    @classmethod
    def of_open(cls, descriptor: int) -> FileState:
        return cls._from(os.fstat(descriptor))

    @classmethod
    def _from(cls, found: os.stat_result) -> FileState:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Location:
    """`size` bytes of a file from `offset`, as long as the file is in this state."""

    path: Path
    offset: int
    size: int
    state: FileState

    def open(self) -> int:
        """A descriptor to read it from. OSError when the file is gone or has changed."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if FileState.of_open(descriptor) != self.state:
            os.close(descriptor)
            raise OSError(f"{self.path} has changed")
        return descriptor
