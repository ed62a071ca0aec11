"""The compute thread of a live device: it runs one function at a time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from flowedge.core.errors import DeviceError, FlowEdgeError

T = TypeVar("T")
JOB_S = 60.0  # limit of a function without a limit of its own

_log = logging.getLogger(__name__)


class Span(NamedTuple):
    """The time of a computation, in seconds of time.monotonic()."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class _QueuedFunction(NamedTuple):
    run: Callable[[], None]
    limit_s: float


class ComputeThread:
    """Runs blocking functions in a thread of its own, in order."""

    def __init__(self, device: str, job_s: float = JOB_S) -> None:
        """job_s: how long a function may take, unless it has a limit of its own; see `overdue_s`."""
        self._device = device
        self._job_s = job_s
        self._work: queue.SimpleQueue[_QueuedFunction | None] = queue.SimpleQueue()
        self._due: float | None = None  # when the function that is running should have ended
        # A daemon, so that a process that is told to stop does not wait for a long load to end.
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    @property
    def overdue_s(self) -> float:
        """The seconds by which the function that is running has exceeded its limit; 0 if it has not."""
        due = self._due
        return 0.0 if due is None else max(0.0, time.monotonic() - due)

    async def run(self, function: Callable[[], T], limit_s: float | None = None) -> tuple[T, Span]:
        """Run a function; return its result and when it ran.

        When the waiting task is cancelled the function still runs to its end.

        Args:
            limit_s: how long it may take. The function is not ended then, but `overdue_s` tells.

        Raises:
            FlowEdgeError: when the function raises it.
            DeviceError: of this device, when the function raises another exception.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T, Span]] = loop.create_future()

        def work() -> None:
            started = time.monotonic()
            try:
                result = function()
            except FlowEdgeError as error:
                _conclude(loop, done, None, error)
            except Exception as error:  # noqa: BLE001 (a model may raise anything; the waiting side must hear)
                _log.exception("a job failed")
                failure = DeviceError(self._device, f"computing failed: {type(error).__name__}: {error}")
                _conclude(loop, done, None, failure)
            else:
                _conclude(loop, done, (result, Span(started, time.monotonic())), None)

        self._work.put(_QueuedFunction(work, self._job_s if limit_s is None else limit_s))
        return await done

    def run_later(self, function: Callable[[], None]) -> None:
        """Run a function, which must not raise, after the queued functions; its end is not waited for."""
        self._work.put(_QueuedFunction(function, self._job_s))

    def stop(self, wait_s: float) -> None:
        """End the thread after the queued functions; wait for that at most `wait_s`."""
        self._work.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._due = time.monotonic() + work.limit_s
            work.run()
            self._due = None
            del work  # and what it references, such as the weights of a role that is given up


def _conclude(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[T],
    result: T | None,
    error: FlowEdgeError | None,
) -> None:
    def set_outcome() -> None:
        if done.done():  # the waiting task was cancelled
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    try:
        loop.call_soon_threadsafe(set_outcome)
    except RuntimeError:
        _log.info("a job ended after its process was told to stop")
