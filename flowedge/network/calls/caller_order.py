"""Turns of callers: each may do a few things at the same time, and waits with the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Lets each caller do a number of things at the same time; a caller that waits delays no other caller."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, caller: str) -> AsyncIterator[None]:
        """Wait for the caller's turn; it lasts until the context ends."""
        self._users[caller] += 1
        semaphore = self._semaphores.setdefault(caller, asyncio.Semaphore(self._at_once))
        try:
            async with semaphore:
                yield
        finally:
            self._users[caller] -= 1
            if not self._users[caller]:
                del self._users[caller], self._semaphores[caller]
