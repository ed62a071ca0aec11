"""What the steps of decoding take, in seconds, as measured in the sessions of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.row_times import RowTimes
from flowedge.strategies.events import Layer, Verified

_ROOT_LAYER = 1  # nodes of a layer below the root
_HANDLING_FADE = 0.9
_ROUNDING_S = 1e-6  # of a clock
_MOST_RISE_S = 1e-3


@dataclass(frozen=True)
class TripTimes:
    """The times of segments of 1 to `most` rows: float64 [most] each, never falling.

    Attributes:
        trip: through an empty pipeline.
        first: in the first stage.
        interval: between two segments that follow each other closely, which the slowest stage or link sets.
        rest: of a trip, from the slowest stage on.
    """

    trip: FloatArray
    first: FloatArray
    interval: FloatArray
    rest: FloatArray


class StepTimes:
    """The times of trips, verifications and forwards of the drafter.

    Every stage tells what it took for the rows of a segment, and how long the segment waited there. The rest
    of a trip is the links'.

    Attributes:
        links: the rest of a trip, by rows.
        verifications: on the draft node, by rows.
    """

    def __init__(self) -> None:
        self.links = RowTimes(linear=True)
        self.verifications = RowTimes()
        self._stages: list[RowTimes] = []
        self._forwards = RowTimes()  # by nodes
        self._root_forwards = RowTimes()
        self._handling = 0.0  # of a layer on the draft node, beside its computation

    def begin(self, stages: int) -> None:
        """Take in the number of stages of the pipeline, 1 or more, when a session begins."""
        if not self._stages:
            self._stages = [RowTimes() for _ in range(stages)]

    def observe_trip(self, trip: PipelineTrip) -> None:
        """Take in a segment's trip; of a segment that died on its way only what was computed counts."""
        for stage, time in zip(self._stages, trip.stage_times, strict=False):
            if time.rows:
                stage.observe(time.rows, time.seconds)
        if all(time.rows for time in trip.stage_times):
            known = sum(time.seconds + time.waited for time in trip.stage_times)
            self.links.observe(trip.rows, max(trip.seconds - known, 0.0))

    def observe_layer(self, layer: Layer, *, of_root: bool) -> None:
        """Take in the time of a layer; a layer below the root includes the extension by true rows.

        One that includes rows of the prompt tells nothing of those that follow.
        """
        if not layer.computed or layer.extends_prompt:
            return
        if of_root:
            self._root_forwards.observe(_ROOT_LAYER, layer.seconds)
        self._forwards.observe(max(layer.together, len(layer.nodes)), layer.seconds)

    def observe_handling(self, seconds: float) -> None:
        """Take in what the draft node took for a layer beside its computation, from one layer to the next."""
        if seconds < _ROUNDING_S and not self._handling:
            return
        bounded = min(max(seconds, 0.0), 2 * self._handling + _MOST_RISE_S)  # a process may be held up once
        self._handling = _HANDLING_FADE * self._handling + (1 - _HANDLING_FADE) * bounded

    def observe_verification(self, event: Verified) -> None:
        self.verifications.observe(event.rows, event.verify_s)

    def trips(self, most: int) -> TripTimes:
        """Return the times of segments of 1 to `most` rows."""
        links = self.links.curve(most)
        stages = np.array([stage.curve(most) for stage in self._stages])
        transfer = (links - links[0]) / (len(stages) + 1)
        slowest, trip = int(stages[:, 0].argmax()), links + stages.sum(axis=0)
        rest = trip - stages[:slowest].sum(axis=0) - links * (slowest + 1) / (len(stages) + 1)
        return TripTimes(trip, stages[0], np.maximum(stages.max(axis=0), transfer), rest)

    @property
    def changes(self) -> int:
        """How often a stage, the links or the draft node were found to have become another speed."""
        parts = (self.links, self.verifications, self._forwards, self._root_forwards, *self._stages)
        return sum(times.changes for times in parts)

    @property
    def root_forward(self) -> float:
        """Time of a forward that drafts below the root; 0 before the first."""
        seconds = self._root_forwards.seconds(_ROOT_LAYER)
        return seconds + self._handling if seconds else seconds

    def forwards(self, most: int) -> FloatArray:
        """Return the times of forwards over 1 to `most` nodes: float64 [most]; 0 before the first."""
        curve = self._forwards.curve(most)
        return curve + self._handling if curve[0] else curve
