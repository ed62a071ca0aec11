"""Supervision of the tasks that have to run as long as their process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

FIRST_S, MOST_S = 1.0, 60.0  # pauses after the first error, and after many errors in succession

_log = logging.getLogger(__name__)


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    first_s: float = FIRST_S,
    most_s: float = MOST_S,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run a coroutine function until it returns; after any error, log the error, wait and run it again.

    A cancellation ends the supervision at once.

    Args:
        name: of the task, for the log, such as "the pipeline keeper".
        first_s: seconds to wait after an error; doubled by each further error.
        most_s: the longest wait. A run that lasted longer than this starts at `first_s` again.
        sleep: waits for a number of seconds.
    """
    pause = first_s
    while True:
        started = time.monotonic()
        try:
            await run()
        except Exception:  # noqa: BLE001 (input that nobody foresaw must not end a task for good)
            if time.monotonic() - started > most_s:
                pause = first_s
            _log.exception("%s failed; next attempt in %g s", name, pause)
            await sleep(pause)
            pause = min(2 * pause, most_s)
        else:
            return
