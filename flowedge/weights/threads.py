"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def finish_in_thread(function: Callable[[], T]) -> T:
    """The result of a function that runs in a thread; it has ended when this has, also when it is cancelled.

    So a file that it uses can be closed afterwards.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # looked at, so that nothing complains
        raise
