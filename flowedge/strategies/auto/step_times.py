"""What the steps of decoding take, in seconds, as measured in the sessions of a pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.row_times import RowTimes
from flowedge.strategies.events import Layer, Verified


class LinkBound:
    """The time of segments on the links, as the shortest trips that were seen: of one row, and for each row.

    A segment that waits in front of a stage is late, never early. So the shortest of many trips is close to
    the time on the links. Example: trips of 1 row in 3 ms and of 8 rows in 8 ms give 3 ms for the first row
    and 1 ms for each further row.
    """

    def __init__(self) -> None:
        self._one_row = math.inf
        self._per_row = math.inf

    @property
    def known(self) -> bool:
        """Whether a trip was observed."""
        return not math.isinf(min(self._one_row, self._per_row))

    def observe(self, rows: int, seconds: float) -> None:
        """Note the seconds of a trip of a segment of 1 row or more, without the seconds of its forwards."""
        if rows == 1:
            self._one_row = min(self._one_row, seconds)
        else:
            self._per_row = min(self._per_row, seconds / rows)

    def curve(self, most: int) -> FloatArray:
        """Return the seconds of 1 to `most` rows: float64 [most], rising; 0 while nothing is known."""
        first, further = (0.0 if math.isinf(least) else least for least in (self._one_row, self._per_row))
        times: FloatArray = first + further * np.arange(most, dtype=np.float64)
        return times


_ROOT_LAYER = 1  # nodes of a layer below the root


@dataclass(frozen=True)
class TripTimes:
    """The times of segments of 1 to `most` rows: float64 [most] each, never falling.

    Attributes:
        trip: through an empty pipeline.
        first: in the first stage.
        interval: between two segments that follow each other closely, which the slowest stage or link sets.
    """

    trip: FloatArray
    first: FloatArray
    interval: FloatArray


class StepTimes:
    """The times of trips, verifications and forwards of the drafter.

    Every stage tells what it took for the rows of a segment. The rest of a trip, which is the links', is
    known of segments that enter an empty pipeline: others wait for segments before them. Until such a segment
    is known, because no session was alone, it is what those at least have that wait (LinkBound).

    Attributes:
        links: the rest of a trip, by rows.
        verifications: on the draft node, by rows.
    """

    def __init__(self) -> None:
        self.links = RowTimes(linear=True)
        self.verifications = RowTimes()
        self._waited = LinkBound()
        self._stages: list[RowTimes] = []
        self._forwards = RowTimes()  # by nodes
        self._root_forwards = RowTimes()

    def begin(self, stages: int) -> None:
        """Take in the number of stages of the pipeline, 1 or more, when a session begins."""
        if not self._stages:
            self._stages = [RowTimes() for _ in range(stages)]

    def observe_trip(self, trip: PipelineTrip, *, lone: bool, beside: bool = False) -> None:
        """Take in a segment's trip.

        Args:
            lone: whether the segment entered an empty pipeline.
            beside: whether other sessions had segments on their way.
        """
        for stage, time in zip(self._stages, trip.stage_times, strict=False):
            if time.rows:
                stage.observe(time.rows, time.seconds)
        rest = max(trip.seconds - sum(time.seconds for time in trip.stage_times), 0.0)
        if lone:
            self.links.observe(trip.rows, rest)
        elif beside:
            self._waited.observe(trip.rows, rest)

    def observe_layer(self, layer: Layer, *, of_root: bool) -> None:
        """Take in the time of a layer; a layer below the root includes the extension by true rows."""
        if not layer.computed:
            return
        if of_root:
            self._root_forwards.observe(_ROOT_LAYER, layer.seconds)
        self._forwards.observe(max(layer.together, len(layer.nodes)), layer.seconds)

    def observe_verification(self, event: Verified) -> None:
        self.verifications.observe(event.rows, event.verify_s)

    def trips(self, most: int) -> TripTimes:
        """Return the times of segments of 1 to `most` rows."""
        waited = self._waited.known and not self.links.measured(1)
        links = (self._waited if waited else self.links).curve(most)
        stages = np.array([stage.curve(most) for stage in self._stages])
        transfer = (links - links[0]) / (len(stages) + 1)
        return TripTimes(links + stages.sum(axis=0), stages[0], np.maximum(stages.max(axis=0), transfer))

    @property
    def root_forward(self) -> float:
        """Time of a forward that drafts below the root; 0 before the first."""
        return self._root_forwards.seconds(_ROOT_LAYER)

    def forwards(self, most: int) -> FloatArray:
        """Return the times of forwards over 1 to `most` nodes: float64 [most]; 0 before the first."""
        return self._forwards.curve(most)
