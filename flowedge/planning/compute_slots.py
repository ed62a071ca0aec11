"""The compute slots of the devices of a virtual pipeline: one job at a time each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from flowedge.engine.jobs import DraftJob, StageJob

# Has an action happen to the device at a place at a time.
At: TypeAlias = Callable[[float, int, Callable[[], None]], None]


@dataclass
class ComputeSlot:
    """What a device computes. Times are in seconds of virtual time.

    Attributes:
        started, ended: of the job; a job that runs has not ended.
        concluding: time from the job's end until the slot is free, during which its result is carried out.
        due: when the slot is free, if nothing changes.
        run: number of the current `due`; an abort or a change of speed replaces it.
    """

    busy: bool = False
    job: StageJob | DraftJob | None = None
    started: float = 0.0
    ended: float = 0.0
    concluding: float = 0.0
    due: float = 0.0
    run: int = 0
    finish: Callable[[], None] = lambda: None

    @property
    def job_due(self) -> float:
        """When the job ends, if nothing changes."""
        return self.due - self.concluding


class ComputeSlots:
    """All devices' slots. Devices of one host slow each other down, as processes on its cores do."""

    def __init__(self, places: Iterable[int], speed: Callable[[int, Collection[int]], float], at: At) -> None:
        """
        speed: how fast a device computes while the devices at some places do, as a share of its speed alone.
        at: schedules an event.
        """
        self._slots = {place: ComputeSlot() for place in places}
        self._speed = speed
        self._at = at

    def __getitem__(self, place: int) -> ComputeSlot:
        return self._slots[place]

    def occupy(
        self,
        place: int,
        job: StageJob | DraftJob,
        now: float,
        cost: float,
        concluding: float,
        finish: Callable[[], None],
    ) -> None:
        """Begin a job of `cost` seconds; `finish` is called when its slot is free again."""
        slot = self._slots[place]
        slot.busy, slot.job, slot.started, slot.finish = True, job, now, finish
        self._share(now, place)
        speed = self._speed(place, self._busy)
        slot.concluding = concluding / speed
        slot.due = now + cost / speed + slot.concluding
        self._schedule(place, slot)

    def end_by(self, place: int, now: float, time: float) -> None:
        """Have the job of a busy slot end at `time` if that is earlier."""
        slot = self._slots[place]
        if time < slot.job_due:
            slot.due = max(time, now) + slot.concluding
            self._schedule(place, slot)

    def _schedule(self, place: int, slot: ComputeSlot) -> None:
        slot.run += 1
        run, due = slot.run, slot.due

        def end() -> None:
            if slot.run == run and slot.busy:
                slot.busy, slot.ended = False, slot.job_due
                self._share(due, place)
                slot.finish()

        self._at(due, place, end)

    @property
    def _busy(self) -> set[int]:
        return {place for place, slot in self._slots.items() if slot.busy}

    def _share(self, now: float, changed: int) -> None:
        """Change the pace of the busy slots when that of the place `changed` has begun or ended a job."""
        busy = self._busy
        previous = busy ^ {changed}
        for place, slot in self._slots.items():
            if place == changed or not slot.busy or slot.due <= now:
                continue
            before, after = self._speed(place, previous), self._speed(place, busy)
            if before != after:
                slot.due = now + (slot.due - now) * before / after
                slot.concluding *= before / after
                self._schedule(place, slot)
