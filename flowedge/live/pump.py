"""A loop that works while there is work, and else sleeps until it is woken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


class Pump:
    """Calls `step` until it returns that there was nothing to do, then waits for `wake`.

    An exception of `step` is a bug: it is logged and handed to `on_bug`, and the pump goes on.
    """

    def __init__(
        self, name: str, step: Callable[[], Awaitable[bool]], on_bug: Callable[[Exception], None]
    ) -> None:
        self._name = name
        self._step = step
        self._on_bug = on_bug
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"pump {self._name}")

    def wake(self) -> None:
        """Have `step` called again: there may be work."""
        self._woken.set()

    async def stop(self) -> None:
        """Stop at once; a step that is going on is cancelled."""
        # A cancelled step may end with another exception, when its link is lost at the same time.
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                while await self._step() and not self._stopping:
                    pass
            except Exception as error:  # noqa: BLE001 (sessions must be told of a bug, and not wait for ever)
                _log.exception("the %s pump failed", self._name)
                self._on_bug(error)
            if not self._stopping:
                await self._woken.wait()
                self._woken.clear()
