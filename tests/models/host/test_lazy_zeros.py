"""Zeros that take memory as they are written, and give it back."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.models.host.lazy_zeros import LEAST_BYTES, lazy_zeros

MIB = 1 << 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float32])
def test_memory_is_taken_where_rows_are_written_and_given_back(dtype: torch.dtype) -> None:
    """Of 1,024 rows in each of many heads, 64 are written."""
    size = 128 // dtype.itemsize
    cache = lazy_zeros((16, 2, 128, 1024, size), dtype, "cpu")  # 512 MiB
    start = cache.data_ptr()
    assert cache.nbytes == 512 * MIB
    assert not cache[3, 1, 5, 1000].any(), "reading takes no memory"
    assert _resident(start, cache.nbytes) < MIB
    cache[:, :, :, :64] = 1
    assert 32 * MIB <= _resident(start, cache.nbytes) < 33 * MIB
    assert not cache[:, :, :, 64:128].any() and bool(cache[:, :, :, :64].all())
    del cache
    assert _resident(start, 512 * MIB) < 16 * MIB


def test_little_memory_is_taken_at_once() -> None:
    small = lazy_zeros((4, 4), torch.float32, "cpu")
    assert small.nbytes < LEAST_BYTES and not small.any()


def _resident(start: int, num_bytes: int) -> int:
    """Return how much memory is held at these addresses, whatever else this process takes and gives back."""
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(start // mmap.PAGESIZE * 8)
        entries = np.frombuffer(pages.read(num_bytes // mmap.PAGESIZE * 8), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(62))) * mmap.PAGESIZE  # in memory, or swapped out
