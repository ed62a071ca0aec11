"""The page cache of a file, as the kernel tells it."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest


def cached_pages(path: Path) -> int:
    """Return the number of a file's pages in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), found) == 0
        return sum(page & 1 for page in found)


def leave_page_cache(path: Path) -> None:
    """Write a file's pages and drop them; skip the test where the file system keeps them, as tmpfs does."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("only Linux drops pages when it is asked to")
    with path.open("rb+") as file:
        os.fsync(file.fileno())  # pages that are not written yet are not dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path):
        pytest.skip("the file system has no page cache to drop")
