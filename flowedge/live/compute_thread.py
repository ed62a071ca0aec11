"""The compute thread of a live device: it runs one function at a time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, cast

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


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How a function has ended, and when it ran.

    Attributes:
        result: what it returned; None if it raised an error.
        error: the FlowEdgeError that it raised, or a DeviceError for another exception.
    """

    result: T | None
    error: FlowEdgeError | None
    span: Span

    def value(self) -> T:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


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
        self._since: float | None = None  # when the function that is running began
        self._due: float | None = None  # when the function that is running should have ended
        # A daemon, so that a process that is told to stop does not wait for a long load to end.
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    @property
    def computing_s(self) -> float:
        """The seconds for which the function that is running has run; 0 where none is."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

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
        done: asyncio.Future[Outcome[T]] = loop.create_future()

        def conclude(outcome: Outcome[T]) -> None:
            try:
                loop.call_soon_threadsafe(set_once, done, outcome)
            except RuntimeError:
                _log.info("a job ended after its process was told to stop")

        self.submit(function, conclude, limit_s)
        outcome = await done
        return outcome.value(), outcome.span

    def submit(
        self,
        function: Callable[[], T],
        conclude: Callable[[Outcome[T]], None],
        limit_s: float | None = None,
    ) -> None:
        """Run a function after the queued functions, without waiting; may be called in any thread.

        Args:
            conclude: called in the compute thread with the outcome; it must not raise.
            limit_s: see `run`.
        """

        def work() -> None:
            started = time.monotonic()
            result: T | None = None
            error: FlowEdgeError | None = None
            try:
                result = function()
            except FlowEdgeError as raised:
                error = raised
            except Exception as raised:  # noqa: BLE001 (a model may raise anything; the waiting side must hear)
                _log.exception("a job failed")
                error = DeviceError(self._device, f"computing failed: {type(raised).__name__}: {raised}")
            conclude(Outcome(result, error, Span(started, time.monotonic())))

        self._work.put(_QueuedFunction(work, self._job_s if limit_s is None else limit_s))

    def run_later(self, function: Callable[[], None]) -> None:
        """Run a function, which must not raise, after the queued functions; its end is not waited for."""
        self._work.put(_QueuedFunction(function, self._job_s))

    def stop(self, wait_s: float) -> None:
        """End the thread after the queued functions; wait for that at most `wait_s`."""
        self._work.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._since = time.monotonic()
            self._due = self._since + work.limit_s
            work.run()
            self._since = self._due = None
            del work  # and what it references, such as the weights of a role that is given up


def set_once(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, unless it has one or was cancelled."""
    if not future.done():
        future.set_result(result)
