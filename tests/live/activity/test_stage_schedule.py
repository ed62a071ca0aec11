"""Computations of stages are placed where a pipeline that works in order has computed them."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.messages import StageTime
from flowedge.live.activity.stage_schedule import StageSchedule


def simulated(
    rng: np.random.Generator, stages: int, hop: float
) -> list[tuple[float, float, list[StageTime], list[float]]]:
    """Return segments through a pipeline in order: when each left and was back, its times and its starts."""
    free, left, segments = [0.0] * stages, 0.0, []
    for _ in range(60):
        left += float(rng.exponential(0.02))
        there, times, starts = left, [], []
        for stage in range(stages):
            start = max(there + hop, free[stage])
            seconds = float(rng.uniform(0.005, 0.02))
            there = free[stage] = start + seconds
            times.append(StageTime(4, seconds))
            starts.append(start)
        segments.append((left, there + hop, times, starts))
    return segments


@pytest.mark.parametrize("seed", range(5))
def test_a_pipeline_that_works_in_order_is_found_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule, hop = StageSchedule(), 0.003
    for number, (left, returned, times, starts) in enumerate(simulated(rng, 3, hop)):
        placed = schedule.schedule("s", left, returned, times)
        if number > 10:  # by then a segment has met no queue
            assert [work.start for work in placed] == pytest.approx(starts, abs=hop)
    assert schedule.hop_s == pytest.approx(hop, abs=1e-3)


def test_work_never_overlaps_and_lies_before_the_return_whatever_the_times_say() -> None:
    rng = np.random.default_rng(1)
    schedule = StageSchedule()
    ends = [0.0] * 3
    now = 0.0
    for _ in range(300):
        now += float(rng.exponential(0.01))
        left = None if rng.random() < 0.2 else now - float(rng.uniform(0, 0.05))
        times = [StageTime(int(rng.integers(0, 5)), float(rng.uniform(0, 0.03))) for _ in range(3)]
        for work in schedule.schedule("s", left, now, times):
            assert ends[work.stage] <= work.start <= work.end <= now
            ends[work.stage] = work.end


def test_segments_of_one_batch_are_one_computation() -> None:
    schedule = StageSchedule()
    times = [StageTime(7, 0.01), StageTime(7, 0.02)]
    assert len(schedule.schedule("a", 1.0, 1.1, times)) == 2
    assert schedule.schedule("b", 1.0, 1.1, times) == []


def test_segments_of_one_session_are_computations_of_their_own_even_if_they_took_the_same_time() -> None:
    schedule = StageSchedule()
    times = [StageTime(1, 0.001), StageTime(1, 0.001)]
    for number in range(5):
        assert len(schedule.schedule("a", float(number), number + 0.1, times)) == 2
    assert schedule.schedule("b", 4.0, 4.1, times) == []
    assert len(schedule.schedule("b", 5.0, 5.1, times)) == 2
