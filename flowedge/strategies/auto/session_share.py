"""What a session of `auto` is to send, as far as its pipeline, its tree and the other sessions are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.strategies.auto.load import PipelineLoad, RowDemand, Share
from flowedge.strategies.auto.objective import CycleTimes, RowChoice, choose_rows
from flowedge.strategies.auto.segments_in_flight import SegmentsInFlight
from flowedge.strategies.auto.step_times import StepTimes, TripTimes
from flowedge.strategies.settings import AutoSettings

# Sessions that share a pipeline send together. Few of them leave stages idle from a step's return to the next
# step, in which rows cost less than they would delay one session; so many pay the whole price.
_PRICED_WHOLE = 16
_LEAST_PRICE = 0.25
_BATCH_ROWS = 512  # most rows of a batch that a plan considers


@dataclass(frozen=True, eq=False)
class SessionShare:
    """A session's part of the best plan for all sessions.

    Attributes:
        share: of the rows of a batch.
        rows: the plan for the session's rows, which are behind those of the others in a batch.
        trips: times of its segments, float64 [segment_rows] each.
        returned: seconds until the draw of a row alone is known.
    """

    share: Share
    rows: RowChoice
    trips: TripTimes
    returned: float

    def thresholds(self, in_flight: SegmentsInFlight, now: float) -> FloatArray:
        """Return the least probabilities at which rows are worth sending now: float64 [segment_rows]."""
        if self.share.least:  # rows of other sessions are in the same batch
            return self.share.thresholds(self.rows.thresholds, len(in_flight))
        if not len(in_flight):
            return self.rows.thresholds
        # Rows cost nothing that have left each stage before one that is sent at the next return comes there.
        waits = in_flight.wait(now, self.trips, self.rows.rows)
        return self.rows.thresholds_behind(waits + self.trips.interval <= in_flight.next_return(now))


def choose_for_session(
    demand: RowDemand,
    load: PipelineLoad,
    times: StepTimes,
    stages: int,
    hit: float,
    settings: AutoSettings,
) -> SessionShare:
    """Return the plan for a session, whose demand is part of the load.

    Args:
        stages: of the pipeline; 0 where no more than one segment may be in flight.
        hit: probability that a drawn token is among the proposals below its node.
    """
    own, probabilities = settings.segment_rows, load.probabilities()
    # Other sessions may have smaller segments, so that fewer nodes compete for a place.
    most = max(min(own * load.sessions, _BATCH_ROWS, len(probabilities) // max(stages, 1)), own)
    trips, verify_s = times.trips(most), times.verifications.curve(most)
    returned = np.maximum(trips.trip + verify_s, 1e-9)
    seconds = CycleTimes(returned, trips.interval, verify_s + times.forwards(1)[0])
    segments = seconds.segments(stages) if stages else 1
    plan = choose_rows(probabilities, seconds, segments, hit, settings.row_price * _price_share(load))
    share = load.share_of(demand, probabilities, plan.rows, plan.segments)
    behind = slice(min(share.others, most - own), None)
    return SessionShare(
        share,
        RowChoice(share.rows, plan.segments, plan.tokens_per_s, plan.thresholds[behind][:own]),
        TripTimes(*(part[behind][:own] for part in (trips.trip, trips.first, trips.interval, trips.rest))),
        float(returned[0]),
    )


def _price_share(load: PipelineLoad) -> float:
    return min(max(load.sessions / _PRICED_WHOLE, _LEAST_PRICE), 1.0) if load.shared else 1.0
