"""How a live driver's work is timed: as it comes, or as an emulated device would do it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, Forward, StageJob
from flowedge.live.alarm import PreciseTimer
from flowedge.live.compute_thread import ComputeThread, Span
from flowedge.live.pacing import EmulatedDevice, JobTiming, Schedule, Way, abort_time
from flowedge.live.transport.link import OutLink

T = TypeVar("T")
MAX_EARLY_S = 1.0  # by which a network may bring a message before it was due to have left


class WorkTiming(Protocol):
    """What a live driver does its work through; called on the event loop."""

    async def stage_job(self, job: StageJob, work: Callable[[], T]) -> tuple[T | None, Span]:
        """Run a stage's job in the compute lane; its result and when it ran. Raises what the lane raises."""

    async def draft_job(self, job: DraftJob, work: Callable[[], T]) -> tuple[T, Span]:
        """The same for a job of a draft node."""

    async def send(self, link: OutLink, message: Message) -> int:
        """Send a message; its bytes, when the link can take the next. Raises what the link raises."""

    def arrive(self, way: Way, departed: float, deliver: Callable[[], None]) -> None:
        """A message has come: have it delivered when it arrives. Those of one way keep their order.

        departed: when it was due to have left its sender; 0 when that is not known.
        """

    def changed(self) -> None:
        """The machine has taken something in."""

    def stop(self) -> None:
        """Deliver nothing any more."""


def make_work_timing(lane: ComputeThread, pacing: EmulatedDevice | None) -> WorkTiming:
    """The pace that `pacing` asks for, or none in particular; on a running event loop."""
    return RealTime(lane) if pacing is None else EmulatedTime(lane, pacing)


class RealTime:
    """A Pace that holds nothing up."""

    def __init__(self, lane: ComputeThread) -> None:
        self._lane = lane

    async def stage_job(self, job: StageJob, work: Callable[[], T]) -> tuple[T | None, Span]:  # noqa: ARG002
        return await self._lane.run(work)

    async def draft_job(self, job: DraftJob, work: Callable[[], T]) -> tuple[T, Span]:  # noqa: ARG002
        return await self._lane.run(work)

    async def send(self, link: OutLink, message: Message) -> int:
        return await link.send(message)

    def arrive(self, way: Way, departed: float, deliver: Callable[[], None]) -> None:  # noqa: ARG002
        deliver()

    def changed(self) -> None:
        return

    def stop(self) -> None:
        return


@dataclass(eq=False)
class _Running:
    """The job in the lane; `end` comes forward when it is aborted."""

    job: StageJob | DraftJob
    slot: Span
    ended: asyncio.Event


class EmulatedTime:
    """A Pace by a profile, on an absolute schedule.

    Every event has the time at which it was due, and what it leads to is counted from that time, however late
    the event loop came to it.
    """

    def __init__(self, lane: ComputeThread, pacing: EmulatedDevice) -> None:
        self._compute = lane
        self._pacing = pacing
        self._alarm = PreciseTimer()
        self._lane = Schedule()
        self._link = Schedule()
        self._lines = {way: DelayLine(self._alarm) for way in Way}
        self._running: _Running | None = None
        self._event = time.monotonic()  # when the latest event was due
        self._due: float | None = None  # when the event that is being handled was

    async def stage_job(self, job: StageJob, work: Callable[[], T]) -> tuple[T | None, Span]:
        result, span = await self._run(job, self._pacing.stage_job(job), work)
        # Dead at the end of its slot, though its real computation may have ended before it died.
        return (None if isinstance(job, Forward) and job.dead else result), span

    async def draft_job(self, job: DraftJob, work: Callable[[], T]) -> tuple[T, Span]:
        return await self._run(job, self._pacing.draft_job(job), work)

    async def send(self, link: OutLink, message: Message) -> int:
        slot = self._link.slot(self._event, self._pacing.transfer(message))
        if self._pacing.shaped:
            sent = await link.send(message, slot.end)
            # The transport would take more; but what it has taken can be trimmed no more.
            await self._alarm.sleep_until(slot.end)
            return sent
        await self._alarm.sleep_until(slot.end)
        return await link.send(message, slot.end)

    def arrive(self, way: Way, departed: float, deliver: Callable[[], None]) -> None:
        now = time.monotonic()
        # A latency includes the software on both ends: what that has really taken is not waited for again.
        left = min(departed, now + MAX_EARLY_S) if departed > 0 else now
        due = max(left + self._pacing.latency(way), now)
        self._lines[way].put(due, lambda at: self._deliver(at, deliver))

    def changed(self) -> None:
        self._event = time.monotonic() if self._due is None else self._due
        self._due = None
        running = self._running
        if running is None or not isinstance(running.job, Forward) or not running.job.dead:
            return
        end = abort_time(running.slot.start, self._event, self._pacing.layer(running.job))
        if end < running.slot.end:
            running.slot = self._lane.end_early(running.slot, end)
            self._ring_at_end(running)

    def stop(self) -> None:
        self._alarm.stop()

    async def _run(self, job: StageJob | DraftJob, cost: float, work: Callable[[], T]) -> tuple[T, Span]:
        running = _Running(job, self._lane.slot(self._event, cost), asyncio.Event())
        self._running = running
        try:
            result, computed = await self._compute.run(work)
            self._ring_at_end(running)
            await running.ended.wait()
        finally:
            self._running = None
        slot = running.slot
        if cost > 0:
            overrun_s = max(computed.end - slot.end, 0.0)
            late_s = time.monotonic() - slot.end
            self._pacing.ran(JobTiming(slot.seconds, computed.seconds, overrun_s, late_s))
        self._due = slot.end
        return result, slot

    def _ring_at_end(self, running: _Running) -> None:
        if running.slot.end <= time.monotonic():
            running.ended.set()
        else:
            self._alarm.at(running.slot.end, running.ended.set)

    def _deliver(self, due: float, deliver: Callable[[], None]) -> None:
        self._due = due
        try:
            deliver()
        finally:
            self._due = None


class DelayLine:
    """Has things happen at their times, never in another order than they were put in."""

    def __init__(self, alarm: PreciseTimer) -> None:
        self._alarm = alarm
        self._waiting: deque[tuple[float, Callable[[float], None]]] = deque()
        self._last = float("-inf")

    def put(self, due: float, action: Callable[[float], None]) -> None:
        """Call `action` at `due`, or together with what was put in before it, with that time."""
        self._last = max(self._last, due)
        self._waiting.append((self._last, action))
        self._alarm.at(self._last, self._next)

    def _next(self) -> None:
        due, action = self._waiting.popleft()
        action(due)
