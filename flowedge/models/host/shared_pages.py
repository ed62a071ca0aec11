"""Rows in pages of memory that tensors share: those of a common prefix are stored once.

A range is the rows of one head, keys or values, of one layer. They follow each other in memory, as whatever
reads them expects. To share them, the whole pages of each range move to a file in memory, which both tensors
map in their place, copied on write. So pages are shared beneath the tensors, and no reader of rows sees it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import threading
import weakref
from functools import cache
from pathlib import Path

import torch

from flowedge.models.host.lazy_zeros import lazy_memory

_RANGE_BYTES = 1 << 32  # of a file for one range; what is not written takes no memory
_MAPS_SHARE = 0.75  # of the mappings that Linux grants a process
_USUAL_MAPS = 65530
_MAP_FIXED, _MAP_NORESERVE, _PUNCH_HOLE, _KEEP_SIZE = 0x10, 0x4000, 0x02, 0x01  # as Linux has them
_lock = threading.RLock()  # memory may be freed in any thread, and while pages are shared
_mapped = 0  # mappings that ranges are divided into, in this process


def rows_of_pages(row_bytes: int) -> int:
    """Return the least number of rows of a range that fill whole pages."""
    return math.lcm(row_bytes, mmap.PAGESIZE) // row_bytes


def most_sharing(ranges: int) -> int:
    """Return how many tensors of so many ranges can share pages at once; 0 where memory cannot be shared."""
    return _most_maps() // (3 * ranges)


@cache
def _most_maps() -> int:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return 0
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        most = _USUAL_MAPS
    return int(most * _MAPS_SHARE)


class _PageFile:
    """Pages in a file in memory, which takes as much of it as the tensors that map it have in common.

    Attributes:
        stop: bytes of each range up to which pages are in the file.
        stops: bytes of each range up to which tensors map it, by tensor.
    """

    def __init__(self, ranges: int) -> None:
        self.file = os.memfd_create("flowedge-rows", os.MFD_CLOEXEC)
        os.ftruncate(self.file, ranges * _RANGE_BYTES)
        self.stop = 0
        self.stops: dict[_Ranges, int] = {}
        self._ranges = ranges

    def write(self, number: int, start: int, address: int, num_bytes: int) -> None:
        """Copy bytes of a range from memory."""
        source = memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")
        done = 0
        while done < num_bytes:
            done += os.pwrite(self.file, source[done:], number * _RANGE_BYTES + start + done)

    def map(self, number: int, start: int, address: int, num_bytes: int) -> None:
        """Have memory be the pages of a range from `start` on. Raises OSError when it cannot be."""
        place = number * _RANGE_BYTES + start
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        if _libc().mmap(address, num_bytes, protection, flags, self.file, place) != address:
            raise OSError(ctypes.get_errno(), "pages of rows cannot be mapped")

    def release(self, ranges: _Ranges) -> None:
        """Free the pages that no other tensor maps."""
        del self.stops[ranges]
        if not self.stops:
            os.close(self.file)
            return
        stop = max(self.stops.values())
        for number in range(self._ranges if stop < self.stop else 0):
            place = number * _RANGE_BYTES + stop
            _libc().fallocate(self.file, _PUNCH_HOLE | _KEEP_SIZE, place, self.stop - stop)
        self.stop = stop


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    number, offset = ctypes.c_int, ctypes.c_int64
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, offset]
    libc.fallocate.argtypes = [number, number, offset, offset]
    return libc


class _Ranges:
    """The ranges of a tensor, and what of them lies in files: the first bytes of each, file after file.

    Attributes:
        in_files: whether these bytes are in the files.
    """

    def __init__(self, address: int, count: int, num_bytes: int) -> None:
        """num_bytes: of a range, whole pages."""
        self.address, self.count, self.num_bytes = address, count, num_bytes
        self.files: list[_PageFile] = []
        self.in_files = True

    @property
    def stop(self) -> int:
        return self.files[-1].stops[self] if self.files else 0

    def release(self) -> None:
        global _mapped  # noqa: PLW0603 (Linux counts by process)
        with _lock:
            _mapped -= self._maps(len(self.files))
            while self.files:
                self.files.pop().release(self)

    def move_to_file(self, stop: int) -> None:
        """Move the bytes up to `stop` of each range to a file, as far as they are in none.

        Range after range, so that little memory is taken twice.

        Raises:
            OSError: when a part of them cannot be moved; they are as they were, but are shared no more.
        """
        start = self.stop
        if stop <= start:
            return
        if not self.files or self.files[-1].stop > start:  # others have gone on from there
            self._add(_PageFile(self.count), start)
        file = self.files[-1]
        self.in_files = False
        file.stop = file.stops[self] = stop
        for number in range(self.count):
            address = self.address + number * self.num_bytes + start
            file.write(number, start, address, stop - start)
            file.map(number, start, address, stop - start)
        self.in_files = True

    def begin_as(self, other: _Ranges, stop: int) -> None:
        """Map the first bytes of each range of another tensor, which lie in its files. Raises OSError."""
        start = 0
        for file in other.files:
            until = min(file.stops[other], stop)
            if start >= until:
                break
            self._add(file, until)
            for number in range(self.count):
                file.map(number, start, self.address + number * self.num_bytes + start, until - start)
            start = until

    def has_maps(self, more: int) -> bool:
        """Return whether the process may have the mappings of so many further files."""
        return _mapped + self._maps(len(self.files) + more) - self._maps(len(self.files)) <= _most_maps()

    def _add(self, file: _PageFile, stop: int) -> None:
        global _mapped  # noqa: PLW0603
        _mapped += self._maps(len(self.files) + 1) - self._maps(len(self.files))
        file.stops[self] = stop
        self.files.append(file)

    def _maps(self, files: int) -> int:
        return self.count * (files + 1) if files else 0


class SharedRows:
    """Rows of zeros, whose first ones may be made those of other rows of the same kind.

    Attributes:
        tensor: [.., rows, size].
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> None:
        """Allocate zeros as `lazy_zeros` does."""
        memory = lazy_memory(math.prod(shape) * dtype.itemsize, device)
        self._row_bytes, self._ranges = shape[-1] * dtype.itemsize, None
        if memory is None:
            self.tensor = torch.zeros(shape, dtype=dtype, device=device)
            return
        self.tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
        if not shape[-2] % rows_of_pages(self._row_bytes):
            count = math.prod(shape[:-2])
            self._ranges = _Ranges(self.tensor.data_ptr(), count, shape[-2] * self._row_bytes)
            weakref.finalize(memory, self._ranges.release).atexit = False

    @property
    def takes_memory_at_once(self) -> bool:
        return self._ranges is None

    def begin_as(self, other: SharedRows, rows: int) -> int:
        """Make the first rows those of another tensor, in its pages; return how many rows that are.

        Nothing may have been written before. Rows that do not fill whole pages are left out, and all of them
        where the process has no more mappings or files.
        """
        own, source = self._ranges, other._ranges
        rows -= rows % rows_of_pages(self._row_bytes)
        stop = rows * self._row_bytes
        if own is None or source is None or own.files or not 0 < stop <= _RANGE_BYTES:
            return 0
        with _lock:
            if not (source.in_files and source.has_maps(1) and own.has_maps(len(source.files) + 2)):
                return 0
            try:
                source.move_to_file(stop)
                own.begin_as(source, stop)
            except OSError:
                return 0
        return rows
