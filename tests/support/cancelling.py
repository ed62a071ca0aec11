"""Cancellations that come at the moment at which a wait ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LONG_S = 60.0
TURNS = range(8)  # of the loop between what is waited for and the cancellation


async def is_cancelled(wait: Awaitable[object], end: Callable[[], None], turns: int) -> bool:
    """Return whether a wait is cancelled that ends so many turns of the loop before its cancellation."""
    task = asyncio.ensure_future(wait)
    for _ in range(5):
        await asyncio.sleep(0)
    end()
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.done():
        return True  # there was nothing to cancel any more
    task.cancel()
    await asyncio.wait({task}, timeout=LONG_S)
    return task.cancelled()
