"""Memory that the process has freed, and the C library keeps."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def release_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can do that (glibc); some milliseconds."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
