"""Blocking work in worker threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MOST_HASHING = 4  # threads that hash at once; each holds a buffer of storage.digest.READ_BYTES or a tensor


def hashing_threads() -> int:
    """Return the number of threads that hash files at once."""
    return min(MOST_HASHING, os.cpu_count() or 1)


async def finish_in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread and wait for its end, even when this is cancelled.

    So the caller can close files that the function uses.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # retrieved, so that asyncio does not warn
        raise
