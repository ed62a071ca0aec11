"""Waiting, but not for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from flowedge.core.errors import DeadlineError

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


class ProgressDeadline:
    """A deadline that moves on with every sign of progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def extend(self) -> None:
        """Something happened: the time begins anew."""
        self._until = time.monotonic() + self._seconds

    async def wait(self, awaited: Awaitable[T], what: str) -> T:
        """See `within`; DeadlineError when there was no progress for the time."""
        task = asyncio.ensure_future(awaited)
        try:
            while not task.done() and (left := self._until - time.monotonic()) > 0:
                await asyncio.wait({task}, timeout=left)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            raise DeadlineError(f"{what} within {self._seconds:g} s")
        return task.result()
