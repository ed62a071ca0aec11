"""Zeros that take memory as they are written, and give it back."""

from __future__ import annotations

import pytest
import torch

from flowedge.device.memory import resident_bytes
from flowedge.models.host.lazy_zeros import LEAST_BYTES, lazy_zeros

MIB = 1 << 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float32])
def test_memory_is_taken_where_rows_are_written_and_given_back(dtype: torch.dtype) -> None:
    """Of 512 rows in each of many heads, 64 are written."""
    size = 128 // dtype.itemsize
    before = resident_bytes()
    cache = lazy_zeros((16, 2, 128, 1024, size), dtype, "cpu")  # 512 MiB
    assert cache.nbytes == 512 * MIB
    assert not cache[3, 1, 5, 1000].any(), "reading takes no memory"
    assert resident_bytes() - before < 32 * MIB
    cache[:, :, :, :64] = 1
    assert 24 * MIB < resident_bytes() - before < 64 * MIB
    assert not cache[:, :, :, 64:128].any() and bool(cache[:, :, :, :64].all())
    del cache
    assert resident_bytes() - before < 16 * MIB


def test_little_memory_is_taken_at_once() -> None:
    small = lazy_zeros((4, 4), torch.float32, "cpu")
    assert small.nbytes < LEAST_BYTES and not small.any()
