"""Waits with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from flowedge.core.errors import DeadlineError

T = TypeVar("T")


async def within(seconds: float, awaited: Awaitable[T], what: str) -> T:
    """Return the result of `awaited`; `what` names the failure, such as "the stage did not answer".

    Raises:
        DeadlineError: when there is no result after `seconds`.
    """
    return await ProgressDeadline(seconds).wait(awaited, what)


async def set_within(seconds: float, event: asyncio.Event) -> bool:
    """Return whether an event is set within some seconds."""
    try:
        await within(seconds, event.wait(), "the event was not set")
    except DeadlineError:
        return False
    return True


class ProgressDeadline:
    """A deadline that every sign of progress puts off."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def extend(self) -> None:
        """Start the time anew, because there was progress."""
        self._until = time.monotonic() + self._seconds

    async def wait(self, awaited: Awaitable[T], what: str) -> T:
        """Return the result of `awaited`; `what` is as in `within`.

        Unlike asyncio.wait_for of Python 3.10 and 3.11, the wait never swallows a cancellation.

        Raises:
            DeadlineError: when there was no progress for the time of the deadline.
        """
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
