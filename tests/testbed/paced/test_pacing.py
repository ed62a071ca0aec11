"""Real work held to a given time. Of the machine's own time only this counts: nothing may be early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.core.errors import DeviceError, DeviceLostError
from flowedge.core.messages import Credit, Message, Segment, SegmentBatch, Tapped
from flowedge.engine.jobs import DraftJob, DropCache, Forward, ForwardBatch, StageJob
from flowedge.live.compute_thread import ComputeThread, Outcome, Span
from flowedge.planning.virtual_pipeline import abort_time
from flowedge.protocol import wire
from flowedge.protocol.link_kind import LinkKind
from flowedge_testbed.paced.emulated_time import (
    MAX_EARLY_S,
    DelayLine,
    EmulatedTime,
    PreciseTimer,
    Schedule,
    emulated_frame,
)
from flowedge_testbed.paced.express_faults import parse_express_fault
from flowedge_testbed.paced.timings import JobTiming
from tests.support.loops import in_loop

TEST_S = 60.0
TIMES = st.floats(0, 100)
JOBS = st.lists(st.tuples(TIMES, st.floats(0, 10)), min_size=1, max_size=20)


@given(JOBS)
def test_slots_have_their_length_and_never_meet(jobs: list[tuple[float, float]]) -> None:
    schedule = Schedule()
    slots = [schedule.slot(ready, cost) for ready, cost in jobs]
    for (ready, cost), slot in zip(jobs, slots, strict=True):
        assert slot.start >= ready
        assert slot.end == slot.start + cost
    for before, after, (ready, _) in zip(slots, slots[1:], jobs[1:], strict=False):
        assert after.start == max(before.end, ready)


def test_a_job_that_is_looked_at_late_begins_when_it_was_ready() -> None:
    schedule = Schedule()
    assert schedule.slot(1.0, 0.5) == (1.0, 1.5)
    assert schedule.slot(1.2, 0.5) == (1.5, 2.0), "it waited for the resource"
    assert schedule.slot(4.0, 0.5) == (4.0, 4.5), "the resource waited for it"


def test_a_slot_that_ends_early_makes_room() -> None:
    schedule = Schedule()
    slot = schedule.slot(1.0, 4.0)
    assert schedule.end_early(slot, 2.0) == (1.0, 2.0)
    assert schedule.slot(1.0, 1.0) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("now", "ends"), [(10.0, 10.25), (10.1, 10.25), (10.25, 10.5), (10.3, 10.5), (10.99, 11.0)]
)
def test_an_abort_takes_effect_at_the_end_of_the_layer(now: float, ends: float) -> None:
    assert abort_time(10.0, now, 0.25) == ends


def test_an_abort_of_layers_that_take_no_time() -> None:
    assert abort_time(10.0, 12.0, 0.0) == 10.0


@dataclass
class Given:
    """An EmulatedDevice with the same time for everything of a kind."""

    job_s: float = 0.0
    layer_s: float = 0.0
    transfer_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    shaped: bool = False
    row_bytes: int = 0
    timings: list[JobTiming] = field(default_factory=list)

    def job(self, job: StageJob | DraftJob) -> float:
        return self.job_s

    def layer(self, job: ForwardBatch) -> float:
        return self.layer_s

    def transfer(self, message: Message) -> float:
        return self.transfer_s

    def latency(self, kind: LinkKind) -> float:
        return self.latencies.pop(0) if self.latencies else 0.0

    def ran(self, timing: JobTiming) -> None:
        self.timings.append(timing)


class Recorder:
    """In place of an OutLink: keeps when it was given what."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    def send_frame(self, frame: wire.Frame) -> int:
        self.sent.append(time.monotonic())
        return 7


def forward() -> ForwardBatch:
    rows = np.arange(3)
    return ForwardBatch((Forward("s", 0, rows[:0], 0, 0, rows - 1, rows, rows.astype(np.int32)),))


async def run_job(pace: EmulatedTime, job: StageJob | DraftJob, work: Callable[[], Any]) -> tuple[Any, Span]:
    """Return the result of a job and its slot, or raise its error."""
    done: asyncio.Future[Outcome[Any]] = asyncio.get_running_loop().create_future()
    pace.run_job(job, work, done.set_result)
    outcome = await done
    return outcome.value(), outcome.span


async def send(pace: EmulatedTime, link: Any, message: Message) -> int | DeviceLostError:
    """Return the size of a message once it has left."""
    done: asyncio.Future[int | DeviceLostError] = asyncio.get_running_loop().create_future()
    assert pace.send(link, message, done.set_result) is None
    return await done


@asynccontextmanager
async def paced(device: Given) -> AsyncIterator[EmulatedTime]:
    compute = ComputeThread("d")
    pace = EmulatedTime(compute, device)
    try:
        yield pace
    finally:
        pace.stop()
        compute.stop(5)


@in_loop(TEST_S)
async def test_a_job_takes_its_slot_and_reports_it() -> None:
    pacing = Given(job_s=0.05)
    async with paced(pacing) as pace:
        began = time.monotonic()
        pace.changed()
        first, span = await run_job(pace, forward(), lambda: "first")
        pace.changed()
        second, after = await run_job(pace, DropCache("s"), lambda: "second")
        assert time.monotonic() - began >= 0.1
        assert (first, second) == ("first", "second")
        assert span.seconds == pytest.approx(0.05)
        assert after.start == span.end, "however late the loop came to it"

    assert [timing.slot_s for timing in pacing.timings] == [pytest.approx(0.05)] * 2
    assert all(timing.late_s >= 0 for timing in pacing.timings)


@in_loop(TEST_S)
async def test_work_that_takes_longer_than_its_slot_is_an_overrun() -> None:
    pacing = Given(job_s=0.001)
    async with paced(pacing) as pace:
        result, span = await run_job(pace, forward(), lambda: time.sleep(0.05))
        assert result is None
        assert span.seconds == pytest.approx(0.001)

    (timing,) = pacing.timings
    assert timing.compute_s >= 0.05
    assert timing.overrun_s > 0.04


@in_loop(TEST_S)
async def test_an_aborted_forward_ends_with_its_layer_and_has_no_result() -> None:
    pacing = Given(job_s=30.0, layer_s=0.02)
    async with paced(pacing) as pace:
        job = forward()
        pace.changed()
        running = asyncio.ensure_future(run_job(pace, job, lambda: "computed"))
        await asyncio.sleep(0.03)
        job.forwards[0].dead = True
        pace.changed()
        result, span = await running
        assert result is None
        assert span.seconds < 30
        assert span.seconds / 0.02 == pytest.approx(round(span.seconds / 0.02))


@in_loop(TEST_S)
async def test_an_error_does_not_wait_for_the_slot() -> None:
    def fail() -> None:
        raise ValueError("no")

    async with paced(Given(job_s=50.0)) as pace:
        with pytest.raises(DeviceError, match="no"):
            await run_job(pace, forward(), fail)


@pytest.mark.parametrize("shaped", [False, True])
@in_loop(TEST_S)
async def test_the_link_carries_one_message_at_a_time(shaped: bool) -> None:
    async with paced(Given(transfer_s=0.03, shaped=shaped)) as pace:
        link: Any = Recorder()
        began = time.monotonic()
        pace.changed()
        for _ in range(3):
            assert await send(pace, link, Credit("s")) == 7
        assert time.monotonic() - began >= 0.09
        # A network that takes the time itself is given each message as soon as the one before has left.
        due = [0.0, 0.03, 0.06] if shaped else [0.03, 0.06, 0.09]
        assert all(sent - began >= wait for sent, wait in zip(link.sent, due, strict=True))


@in_loop(TEST_S)
async def test_jitter_does_not_reorder_what_comes_one_way() -> None:
    async with paced(Given(latencies=[0.05, 0.0, 0.01])) as pace:
        came: list[int] = []
        began = time.monotonic()
        for number in range(3):
            pace.arrive(LinkKind.IN_BAND, 0.0, lambda number=number: came.append(number))  # type: ignore[misc]
        done = asyncio.Event()
        pace.arrive(LinkKind.IN_BAND, 0.0, done.set)
        assert came == [], "it must not be delivered from inside the reading"
        await done.wait()
        assert came == [0, 1, 2]
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    ("departed", "wait_s"), [(-0.02, 0.03), (-9.0, 0.0), (0.03, 0.08), (1e9, MAX_EARLY_S + 0.05)]
)
@in_loop(TEST_S)
async def test_time_that_is_over_is_not_waited_for_again(departed: float, wait_s: float) -> None:
    """`departed` is in seconds from now; the latency is 50 ms."""
    async with paced(Given(latencies=[0.05])) as pace:
        done = asyncio.Event()
        began = time.monotonic()
        pace.arrive(LinkKind.IN_BAND, began + departed, done.set)
        await done.wait()
        assert time.monotonic() - began >= wait_s


@given(st.lists(st.floats(-0.01, 0.01), max_size=30))
@in_loop(TEST_S)
async def test_a_delay_line_gives_times_that_do_not_fall(dues: list[float]) -> None:
    alarm, found = PreciseTimer(), []
    line = DelayLine(alarm)
    now = time.monotonic()
    for index, due in enumerate(dues):
        line.put(now + due, lambda at, index=index: found.append((index, at)))  # type: ignore[misc]
    done = asyncio.Event()
    line.put(now, lambda at: done.set())
    await done.wait()
    alarm.stop()
    assert [index for index, _ in found] == list(range(len(dues)))
    times = [at for _, at in found]
    assert times == sorted(times)
    assert all(at >= now + due for at, due in zip(times, dues, strict=True))


@in_loop(TEST_S)
async def test_a_stopped_alarm_calls_nothing() -> None:
    alarm = PreciseTimer()
    alarm.stop()
    alarm.at(time.monotonic(), lambda: pytest.fail("it was stopped"))
    await asyncio.sleep(0.05)


ONE = np.zeros(1, dtype=np.int64)


def states(session: str, rows: int, width: int = 2) -> Segment:
    positions = np.arange(rows)
    return Segment(session, 0, 0, False, 0, positions, positions - 1, np.ones((rows, width), np.float32))


def read_back(message: Message, row_bytes: int) -> tuple[int, Any, float]:
    """Return the bytes of an emulated frame's tail, the message in it, and when it departed."""
    frame = emulated_frame(message, 12.5, row_bytes)
    return len(frame.tail), *wire.read(frame.start[wire.LENGTHS.size :], bytearray(frame.tail))


def test_rows_of_hidden_states_travel_in_the_emulated_size_and_arrive_in_their_own() -> None:
    size, read, departed = read_back(states("s", 3), 100)
    assert (size, departed) == (300, 12.5)
    assert read.payload.tolist() == [[1, 1]] * 3
    pruned = states("s", 3).take(np.array([0, 2]))
    assert read_back(pruned, 100)[0] == 200, "it must not cost the transfer of the rows it has lost"
    both = SegmentBatch((states("s", 2), states("t", 1)))
    size, read, _ = read_back(both, 100)
    assert (size, [each.num_rows for each in read.segments]) == (300, [2, 1])


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (states("s", 0), 0),
        (states("s", 2, width=0), 0),
        (states("s", 2, width=40), 320),
        (Segment("s", 0, 0, False, 0, ONE, ONE - 1, np.ones(1, np.int32)), 4),
        (Tapped("s", 0, np.ones((1, 2), np.float32)), 8),
        (Credit("s"), 0),
    ],
)
def test_nothing_else_is_padded(message: Message, size: int) -> None:
    assert read_back(message, 100)[0] == size


@pytest.mark.parametrize(("text", "delay_s"), [("", 0.0), ("cut", None), ("delay:0.05", 0.05)])
@in_loop(TEST_S)
async def test_express_messages_have_the_fault_that_is_given(text: str, delay_s: float | None) -> None:
    pace = EmulatedTime(ComputeThread("d"), Given(), parse_express_fault(text))
    assert pace.express_delay_s(Credit("s")) == delay_s
