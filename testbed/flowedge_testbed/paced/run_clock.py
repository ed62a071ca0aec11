"""The clock that events of a paced run are counted by, which the benchmark shares with its agents."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BEGAN = struct.Struct("<d")  # a time.monotonic(), which is the same in all processes of a machine
_NOT_BEGUN = float("inf")


class RunClock:
    """A file that holds when the run began that agents carry out now."""

    def __init__(self, path: Path) -> None:
        """Open the file, and make it if it is missing. Until `running`, no run has begun."""
        self._file = os.open(path, os.O_CREAT | os.O_RDWR)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Begin a run; it ends with the context."""
        self._write(time.monotonic())
        try:
            yield
        finally:
            self._write(_NOT_BEGUN)

    def seconds(self) -> float:
        """Return the seconds since the run began; minus infinity if there is none."""
        content = os.pread(self._file, _BEGAN.size, 0)
        began: float = _BEGAN.unpack(content)[0] if content else _NOT_BEGUN
        return time.monotonic() - began

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, began: float) -> None:
        os.pwrite(self._file, _BEGAN.pack(began), 0)
