"""What the steps of decoding take, in seconds, as measured in a request."""

from __future__ import annotations

from flowedge.core.arrays import FloatArray
from flowedge.strategies.auto.row_times import RowTimes
from flowedge.strategies.events import Layer, Verified

_ROOT_LAYER = 1  # nodes of a layer below the root


class StepTimes:
    """The times of trips, verifications and forwards of the drafter.

    Attributes:
        trips: through an empty pipeline, by rows. Other trips contain waiting for other segments' rows, and
            rows that were pruned on the way.
        verifications: on the draft node, by rows.
    """

    def __init__(self) -> None:
        self.trips = RowTimes()
        self.verifications = RowTimes()
        self._forwards = RowTimes()  # by nodes
        self._root_forwards = RowTimes()

    def observe_layer(self, layer: Layer, *, of_root: bool) -> None:
        """Take in the time of a layer; a layer below the root includes the extension by true rows."""
        if of_root:
            self._root_forwards.observe(_ROOT_LAYER, layer.seconds)
        self._forwards.observe(len(layer.nodes), layer.seconds)

    def observe_verification(self, event: Verified) -> None:
        self.verifications.observe(event.rows, event.verify_s)

    def returned(self, rows: int) -> float:
        """Return the time from when a segment is sent into an empty pipeline until its draws are known."""
        return self.trips.seconds(rows) + self.verifications.seconds(rows)

    @property
    def root_forward(self) -> float:
        """Time of a forward that drafts below the root; 0 before the first."""
        return self._root_forwards.seconds(_ROOT_LAYER)

    def forwards(self, most: int) -> FloatArray:
        """Return the times of forwards over 1 to `most` nodes: float64 [most]; 0 before the first."""
        return self._forwards.curve(most)
