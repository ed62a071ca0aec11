"""Real work held to the time that an emulated device takes for it.

Times are seconds of time.monotonic(). The schedule is absolute: a late event delays no event after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, ForwardBatch, StageJob
from flowedge.live.compute_thread import ComputeThread, Outcome, Span
from flowedge.live.transport.frame_link import FrameLink, LinkKind
from flowedge.simulate.virtual_pipeline import abort_time
from flowedge_testbed.paced.precise_timer import PreciseTimer
from flowedge_testbed.paced.timings import JobTiming

T = TypeVar("T")
MAX_EARLY_S = 1.0  # the most by which a network may bring a message before it was due to leave its sender


class EmulatedDevice(Protocol):
    """The time that one emulated device takes for its work, and its links for their messages.

    Attributes:
        row_bytes: bytes of each row of hidden states that it sends on; 0 if it sends none.
        shaped: whether the network itself takes the time of a transfer; otherwise the sender waits for it.
    """

    row_bytes: int
    shaped: bool

    def job(self, job: StageJob | DraftJob) -> float:
        """Return the compute time of a job in seconds."""

    def layer(self, job: ForwardBatch) -> float:
        """Return the seconds between two places where a forward can be aborted."""

    def transfer(self, message: Message) -> float:
        """Return the seconds for which an in-band message occupies the link out of this device."""

    def latency(self, kind: LinkKind) -> float:
        """Return the seconds between a message's departure and its arrival here."""

    def ran(self, timing: JobTiming) -> None:
        """Record how a job with a cost kept its slot."""


class Schedule:
    """The time slots of a resource that does one thing at a time."""

    def __init__(self) -> None:
        self._free = float("-inf")

    def slot(self, ready: float, cost: float) -> Span:
        """Return the next slot, `cost` long. It begins at `ready`, or when the slot before it ends."""
        start = max(ready, self._free)
        self._free = start + cost
        return Span(start, self._free)

    def end_early(self, slot: Span, end: float) -> Span:
        """Return the latest slot, shortened so that it ends at `end`."""
        self._free = end
        return Span(slot.start, end)


class DelayLine:
    """Calls functions at given times, always in the order in which they were put in."""

    def __init__(self, timer: PreciseTimer) -> None:
        self._timer = timer
        self._waiting: deque[tuple[float, Callable[[float], None]]] = deque()
        self._last = float("-inf")

    def put(self, due: float, action: Callable[[float], None]) -> None:
        """Call `action` with its time at `due`, or together with the action before it if that is later."""
        self._last = max(self._last, due)
        self._waiting.append((self._last, action))
        self._timer.at(self._last, self._next)

    def _next(self) -> None:
        due, action = self._waiting.popleft()
        action(due)


@dataclass(eq=False)
class _Running:
    """The job in the compute thread; `slot` is shortened when the job is aborted."""

    job: StageJob | DraftJob
    slot: Span
    ended: asyncio.Event


class EmulatedTime:
    """A WorkTiming by the times of an emulated device, on an absolute schedule.

    Every event has the time at which it was due. What follows from an event is counted from that time,
    however late the event loop came to it.
    """

    def __init__(self, compute: ComputeThread, device: EmulatedDevice) -> None:
        self.row_bytes = device.row_bytes
        self._compute = compute
        self._device = device
        self._timer = PreciseTimer()
        self._jobs = Schedule()
        self._link = Schedule()
        self._lines = {kind: DelayLine(self._timer) for kind in LinkKind}
        self._running: _Running | None = None
        self._event = time.monotonic()  # when the latest event was due
        self._due: float | None = None  # when the event that is being handled was due
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[None]] = set()

    def run_job(
        self, job: StageJob | DraftJob, work: Callable[[], T], conclude: Callable[[Outcome[T]], None]
    ) -> None:
        def begin() -> None:
            cost = self._device.job(job)
            slot = self._jobs.slot(self._event, cost)  # now, since the next event is another
            running = self._running = _Running(job, slot, asyncio.Event())
            self._spawn(self._run(running, cost, work, conclude))

        self._on_loop(begin)

    async def _run(
        self, running: _Running, cost: float, work: Callable[[], T], conclude: Callable[[Outcome[T]], None]
    ) -> None:
        job = running.job
        try:
            result, computed = await self._compute.run(work)
            self._set_end(running)
            await running.ended.wait()
        except FlowEdgeError as error:
            self._running = None
            conclude(Outcome(None, error, running.slot))
            return
        self._running = None
        slot = running.slot
        if cost > 0:
            overrun_s = max(computed.end - slot.end, 0.0)
            late_s = time.monotonic() - slot.end
            self._device.ran(JobTiming(slot.seconds, computed.seconds, overrun_s, late_s))
        self._due = slot.end
        # A forward counts as aborted if it died before its slot ended, though it may have been computed.
        aborted = isinstance(job, ForwardBatch) and job.dead
        conclude(Outcome(None if aborted else result, None, slot))

    def send(
        self, link: FrameLink, message: Message, sent: Callable[[int | DeviceLostError], None]
    ) -> int | None:
        def begin() -> None:
            slot = self._link.slot(self._event, self._device.transfer(message))
            self._spawn(self._send(link, message, slot, sent))

        self._on_loop(begin)
        return None

    async def _send(
        self, link: FrameLink, message: Message, slot: Span, sent: Callable[[int | DeviceLostError], None]
    ) -> None:
        try:
            if self._device.shaped:
                size = link.send(message, slot.end)
                # The link would take more messages, but a message that it has taken can be pruned no more.
                await self._timer.sleep_until(slot.end)
            else:
                await self._timer.sleep_until(slot.end)
                size = link.send(message, slot.end)
        except DeviceLostError as error:
            sent(error)
        else:
            sent(size)

    def arrive(self, kind: LinkKind, departed: float, deliver: Callable[[], None]) -> None:
        self._on_loop(lambda: self._arrive(kind, departed, deliver))

    def _arrive(self, kind: LinkKind, departed: float, deliver: Callable[[], None]) -> None:
        now = time.monotonic()
        # A latency includes the software on both ends: the time that took is not waited for again.
        left = min(departed, now + MAX_EARLY_S) if departed > 0 else now
        due = max(left + self._device.latency(kind), now)
        self._lines[kind].put(due, lambda at: self._deliver(at, deliver))

    def _on_loop(self, function: Callable[[], None]) -> None:
        """Call a function on the event loop, at once if this is its thread: all times are kept there."""
        if threading.get_ident() == self._thread:
            function()
            return
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def changed(self) -> None:
        self._event = time.monotonic() if self._due is None else self._due
        self._due = None
        running = self._running
        if running is None or not isinstance(running.job, ForwardBatch) or not running.job.dead:
            return
        end = abort_time(running.slot.start, self._event, self._device.layer(running.job))
        if end < running.slot.end:
            running.slot = self._jobs.end_early(running.slot, end)
            self._set_end(running)

    def stop(self) -> None:
        self._timer.stop()
        for task in self._tasks:
            task.cancel()

    def _set_end(self, running: _Running) -> None:
        if running.slot.end <= time.monotonic():
            running.ended.set()
        else:
            self._timer.at(running.slot.end, running.ended.set)

    def _deliver(self, due: float, deliver: Callable[[], None]) -> None:
        self._due = due
        try:
            deliver()
        finally:
            self._due = None
