"""Real work held to the time that an emulated device takes for it.

Times are seconds of time.monotonic(). The schedule is absolute: a late event delays no event after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.core.messages import Message, Segment, SegmentBatch
from flowedge.engine.jobs import DraftJob, ForwardBatch, StageJob
from flowedge.live.compute_thread import ComputeThread, Outcome, Span
from flowedge.live.transport.frame_link import FrameLink
from flowedge.planning.virtual_pipeline import abort_time
from flowedge.protocol import wire
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import pipeline_pb2 as pb
from flowedge_testbed.paced.express_faults import ExpressFault
from flowedge_testbed.paced.timings import JobTiming


class PreciseTimer:
    """Calls functions at times of time.monotonic(), on the event loop in which the timer was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._stopped = False
        threading.Thread(target=self._run, name="precise-timer", daemon=True).start()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` at `when`, or at once if `when` has passed. Actions of one time keep their order."""
        with self._changed:
            self._count += 1
            heapq.heappush(self._waiting, (when, self._count, action))
            self._changed.notify()

    async def sleep_until(self, when: float) -> None:
        """Sleep until `when`."""
        if when <= time.monotonic():
            return
        woken = asyncio.Event()
        self.at(when, woken.set)
        await woken.wait()

    def stop(self) -> None:
        """Drop all actions that have not been called yet."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                left = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                _, _, action = heapq.heappop(self._waiting)
                try:
                    self._loop.call_soon_threadsafe(action)
                except RuntimeError:  # the loop is closed, so that no task waits any more
                    return


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


def emulated_frame(message: Message, departed: float, row_bytes: int) -> wire.Frame:
    """Return the frame of a message with the size that it has on an emulated link, and its time.

    Args:
        departed: when it is due to leave, in seconds of time.monotonic().
        row_bytes: to which each row of hidden states is padded; 0 for no padding.
    """
    head = wire.to_head(message)
    head.departed = departed
    match message:
        case Segment():
            tail = _padded(head.segment, message, row_bytes)
        case SegmentBatch():
            heads = zip(head.batch.segments, message.segments, strict=True)
            tail = b"".join(_padded(each, segment, row_bytes) for each, segment in heads)
        case _:
            tail = bytes(wire.payload_of(message))
    return wire.to_frame(head, tail)


def _padded(head: pb.Segment, segment: Segment, row_bytes: int) -> bytes:
    """Write the padding of a segment into its head; return its tail."""
    states = segment.payload
    if states.ndim > 1 and states.size:
        head.padding = max(row_bytes * len(states) - states.nbytes, 0)
    return bytes(wire.payload_of(segment)) + bytes(head.padding)


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

    def __init__(
        self, compute: ComputeThread, device: EmulatedDevice, fault: ExpressFault | None = None
    ) -> None:
        """fault: of express messages; None for no fault."""
        self.row_bytes = device.row_bytes
        self._fault = fault
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
        frame = emulated_frame(message, slot.end, self.row_bytes)
        try:
            if self._device.shaped:
                size = link.send_frame(frame)
                # The link would take more messages, but a message that it has taken can be pruned no more.
                await self._timer.sleep_until(slot.end)
            else:
                await self._timer.sleep_until(slot.end)
                size = link.send_frame(frame)
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

    def express_delay_s(self, message: Message) -> float | None:
        return 0.0 if self._fault is None else self._fault.delay_s(message)

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
