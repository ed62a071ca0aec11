"""The bytes of a file that hold an object."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class FileState:
    """Attributes of a file that differ once it has been changed."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, file: Path | int) -> FileState:
        """The state of a path or of an open file descriptor."""
        found = os.stat(file)  # noqa: PTH116 (it takes descriptors too)
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)

    @classmethod
    def found(cls, path: Path) -> FileState | None:
        """The state of a file, None if it is absent."""
        try:
            return cls.of(path)
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class FileRange:
    """`size` bytes from `offset` of a file, valid while the file is in this state."""

    path: Path
    offset: int
    size: int
    state: FileState

    def open(self) -> BinaryIO:
        """Open the file for `read`; raise OSError if it has changed."""
        file = self.path.open("rb")
        if FileState.of(file.fileno()) != self.state:
            file.close()
            raise OSError(f"{self.path} has changed")
        return file

    def read(self, file: BinaryIO, offset: int, size: int) -> bytes:
        """Read `size` bytes, `offset` bytes after the start of the range."""
        data = os.pread(file.fileno(), size, self.offset + offset)
        if len(data) < size:
            raise OSError(f"{self.path} ends before byte {self.offset + offset + size}")
        return data
