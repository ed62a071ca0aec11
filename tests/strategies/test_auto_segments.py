"""How long several segments take together, beside pipelines that are played event by event."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from flowedge.core.messages import StageTime
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.objective import CycleTimes, choose_rows
from flowedge.strategies.auto.step_times import StepTimes

PIPELINES = 1000
RETURNS = 12  # of each segment, until the pipeline goes evenly
ROWS = (1, 2, 3, 4, 6, 8)  # numbers of which each is measured in a class of its own


@dataclass(frozen=True)
class Pipeline:
    """Stages in a row, whose rows take their time alike, and links between them that carry one at a time.

    Attributes:
        fixed_s, row_s: float64 [n], of each stage; latency_s: float64 [n + 1], of each link.
        transfer_s: of a row on a link; verify_s: of a segment on the draft node.
    """

    fixed_s: np.ndarray
    row_s: np.ndarray
    latency_s: np.ndarray
    transfer_s: float
    verify_s: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Pipeline:
        """Return a pipeline of up to twelve unequal stages."""
        stages = int(rng.integers(1, 13))
        fixed_s = rng.lognormal(0.0, 1.0, stages)
        return cls(
            fixed_s,
            fixed_s * rng.uniform(0.0, 1.0) * rng.random(stages),
            rng.lognormal(-1.0, 1.0, stages + 1) * rng.choice([0.01, 1.0]),
            float(rng.choice([0.0, 0.01, 0.1])),
            float(fixed_s.min() * rng.random()),
        )

    def stage_s(self, rows: int) -> np.ndarray:
        return self.fixed_s + rows * self.row_s

    def trip(self, rows: int, waits: np.ndarray | None = None) -> PipelineTrip:
        """Return what the ledger would say of a segment that waited so long at each stage."""
        waited = np.zeros(len(self.fixed_s)) if waits is None else waits
        links = self.latency_s.sum() + len(self.latency_s) * rows * self.transfer_s
        times = tuple(
            StageTime(rows, float(seconds), float(wait))
            for seconds, wait in zip(self.stage_s(rows), waited, strict=True)
        )
        return PipelineTrip(rows, float(links + self.stage_s(rows).sum() + waited.sum()), times)

    def played(self, segments: int, rows: int) -> float:
        """Return the seconds in which each of so many segments returns once; each goes again at once."""
        transfer = rows * self.transfer_s
        servers = [transfer, *itertools.chain(*((stage, transfer) for stage in self.stage_s(rows)))]
        delays = np.zeros(len(servers))
        delays[::2] = self.latency_s  # behind a transfer
        servers, delays = [*servers, self.verify_s], [*delays, 0.0]
        free = np.zeros(len(servers))
        ready = np.zeros(segments)
        halfway = 0.0
        for turn in range(RETURNS * segments):
            now = ready[turn % segments]  # segments keep their order
            for place, (seconds, delay) in enumerate(zip(servers, delays, strict=True)):
                free[place] = max(now, free[place]) + seconds
                now = free[place] + delay
            ready[turn % segments] = now
            if turn == RETURNS * segments // 2 - 1:
                halfway = now
        return float(now - halfway) / (RETURNS - RETURNS // 2)


def learnt(pipeline: Pipeline, rng: np.random.Generator) -> StepTimes:
    """Return what a session learns from segments of which some had to wait."""
    times = StepTimes()
    times.begin(len(pipeline.fixed_s))
    for rows in ROWS:
        times.observe_trip(pipeline.trip(rows, rng.random(len(pipeline.fixed_s))))
        times.verifications.observe(rows, pipeline.verify_s)
    return times


def segment_times(times: StepTimes) -> CycleTimes:
    trips = times.trips(ROWS[-1])
    verify_s = times.verifications.curve(ROWS[-1])
    return CycleTimes(trips.trip + verify_s, np.maximum(trips.interval, verify_s), np.zeros(ROWS[-1]))


def test_segments_take_together_what_a_thousand_pipelines_take():
    rng = np.random.default_rng(41)
    for _ in range(PIPELINES):
        pipeline = Pipeline.drawn(rng)
        rows, most = int(rng.choice(ROWS)), len(pipeline.fixed_s)
        together = segment_times(learnt(pipeline, rng)).together(most)
        for segments in {1, int(rng.integers(1, most + 1)), most}:
            predicted = together[segments - 1, rows - 1]
            assert predicted == pytest.approx(pipeline.played(segments, rows), rel=0.03), (segments, pipeline)


def test_a_slow_stage_has_fewer_segments_and_rows_in_flight():
    probabilities = np.append(1.0, 0.7 ** np.arange(1, 64))

    def planned(stage_s: list[float]) -> tuple[int, int]:
        times = StepTimes()
        times.begin(len(stage_s))
        for rows in range(1, 17):  # each row takes its own time on the slow stage
            parts = [StageTime(rows, s * rows if s > 1 else s) for s in stage_s]
            times.observe_trip(PipelineTrip(rows, sum(part.seconds for part in parts), tuple(parts)))
        plan = choose_rows(probabilities, segment_times(times), len(stage_s), 1.0, 1.0)
        return plan.segments, plan.rows

    assert planned([1.0] * 4)[0] == 4, "equal stages have one each"
    assert planned([0.5, 0.5, 2.0]) == (2, 1), "one is computed on the slow stage while another is on its way"
    assert planned([0.01, 0.01, 9.0]) == (1, 1), "more rows would only wait"
