"""Zeros that take memory only where they are written: the caches of sessions, which may become long."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

LEAST_BYTES = 1 << 20  # below which memory is taken at once


def takes_memory_as_written(device: torch.device | str) -> bool:
    """Return whether zeros on a device take memory as they are written."""
    return torch.device(device).type == "cpu"


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Return zeros, which on a CPU take memory page by page as they are written.

    The kernel keeps the table of pages (as in vAttention, Prabhu et al. 2025), so what reads a cache sees one
    range of rows.

    Raises:
        MemoryError: when the operating system refuses so much address space.
    """
    memory = lazy_memory(math.prod(shape) * dtype.itemsize, device)
    if memory is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def lazy_memory(num_bytes: int, device: torch.device | str) -> mmap.mmap | None:
    """Return memory for `lazy_zeros`; None where memory is taken at once. Raises MemoryError as it does."""
    if not takes_memory_as_written(device) or num_bytes < LEAST_BYTES:
        return None
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes of address space: {error}") from error
    with contextlib.suppress(OSError):  # of a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # one of them would take the rows of many pages
    return memory
