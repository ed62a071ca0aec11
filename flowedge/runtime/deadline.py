"""Waiting, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from flowedge.errors import DeadlineError

T = TypeVar("T")


async def within(seconds: float, awaited: Awaitable[T], what: str) -> T:
    """The result of `awaited`; DeadlineError, which says `what` did not happen, after `seconds`.

    Unlike asyncio.wait_for of Python 3.10 and 3.11 it never swallows a cancellation.
    """
    task = asyncio.ensure_future(awaited)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
    if not done:
        raise DeadlineError(f"{what} within {seconds:g} s")
    return task.result()
