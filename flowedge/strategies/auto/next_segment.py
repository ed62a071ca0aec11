"""The next segment of a session of `auto`: which nodes go with it, and when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge.core.tree import ROOT, UNSENT
from flowedge.strategies.auto.candidate_tree import CandidateTree
from flowedge.strategies.auto.layer_under_way import LayerUnderWay
from flowedge.strategies.auto.load import PipelineLoad
from flowedge.strategies.auto.segments_in_flight import SegmentsInFlight
from flowedge.strategies.auto.session_share import SessionShare
from flowedge.strategies.auto.step_times import StepTimes
from flowedge.strategies.pipeline_steps import AwaitedLayer, is_worth_waiting
from flowedge.strategies.settings import AutoSettings

_ROWS_UNMEASURED = 4  # most rows of a segment until it is known what a single row takes
_AS_LONG = 0.75  # share of a stage's time from which a forward of the drafter may be what limits the speed


class NextSegment:
    """What a session would send now, and whether it waits for what is to come.

    Attributes:
        plan, times: the session's latest plan, and the times that it was made with.
        forward_s: of forwards of the drafter, by nodes, float64.
    """

    # Known when the prompt has passed the pipeline.
    plan: SessionShare
    times: StepTimes
    forward_s: FloatArray

    def __init__(
        self,
        settings: AutoSettings,
        candidates: CandidateTree,
        in_flight: SegmentsInFlight,
        layer: LayerUnderWay,
        load: PipelineLoad,
    ) -> None:
        self._settings = settings
        self._candidates = candidates
        self._in_flight = in_flight
        self._layer = layer
        self._load = load
        self._chosen: list[int] | None = None  # while it stays the same

    def replan(self, plan: SessionShare, times: StepTimes) -> None:
        """Go by another plan, and the times that it was made with, from now on."""
        self.plan, self.times = plan, times
        self.learn_forwards()

    def learn_forwards(self) -> None:
        """Take in what forwards of the drafter take by now."""
        self.forward_s = self.times.forwards(self._settings.draft_nodes)

    def change(self) -> None:
        """Note that the tree or what is in flight has changed."""
        self._chosen = None

    @property
    def takes_another(self) -> bool:
        """Whether another segment may be in flight; those whose rows have died delay nobody."""
        return len(self._living) < self.plan.rows.segments

    @property
    def single_measured(self) -> bool:
        """Whether it is known what a single row takes; it cannot be measured beside other sessions."""
        return not self._load.alone or self.times.links.measured(1)

    def wait(self, now: float) -> float:
        """Return how long a segment would wait in the pipeline, if it were sent now."""
        return self._in_flight.wait(now, self.plan.trips, self.plan.rows.rows)

    def waits(self, now: float) -> bool:
        """Return whether news comes while another segment would wait, or is worth waiting for."""
        wait, returns, layer_s = self.wait(now), self._in_flight.next_return(now), self._layer.left(now)
        if 0 < layer_s <= wait or 0 < wait >= returns:
            return True
        return layer_s > 0 and self._waits_for_layer(now)

    def awaited(self, now: float) -> AwaitedLayer | None:
        """Return the layer that steps of several sessions may wait for, if any."""
        layer_s = self._layer.left(now)
        if layer_s <= 0:
            return None
        return AwaitedLayer(layer_s, self._drafted if self._drafting_limits(self.plan.rows.rows) else 0.0)

    def expected(self, now: float) -> tuple[float, float]:
        """Return the tokens of what is chosen, and the seconds until the next segment may leave after it."""
        chosen = self.nodes(now)
        sent = float(np.exp(self._candidates.tree.effective_scores()[chosen]).sum())
        is_last = len(self._living) + 1 >= self.plan.rows.segments
        interval = float(self.plan.trips.interval[len(chosen) - 1])
        return sent, max(self.wait(now), interval, self._in_flight.next_return(now) if is_last else 0.0)

    def nodes(self, now: float) -> list[int]:
        """Return the nodes of the next segment; none where nothing is worth sending."""
        if self._chosen is None:
            self._chosen = self._choose(now)
        return self._chosen

    @property
    def _living(self) -> Sequence[int]:
        return self._candidates.living_segments(self._in_flight.returned)

    @property
    def _drafted(self) -> float:
        """Tokens that the layer under way is expected to bring."""
        return self._candidates.hit * self._layer.tokens

    def _drafting_limits(self, rows: int) -> bool:
        """Return whether drafting may be what limits the speed, beside segments of so many rows.

        Where the stages are the limit, a later segment delays all that follow it.
        """
        intervals = self.plan.trips.interval
        return bool(self.forward_s[0] >= _AS_LONG * intervals[min(rows, len(intervals)) - 1])

    def _waits_for_layer(self, now: float) -> bool:
        """Return whether the layer that is drafted is worth more than what could be sent before it comes."""
        chosen = self.nodes(now)
        if self.plan.rows.segments == 1 or not self._load.alone or not chosen:
            return False
        return self._drafting_limits(len(chosen)) and is_worth_waiting(
            self._layer.left(now), self._drafted, *self.expected(now)
        )

    def _choose(self, now: float) -> list[int]:
        settings, tree, plan = self._settings, self._candidates.tree, self.plan
        single = plan.rows.rows == 1 and not self._load.shared
        if tree.rows[ROOT] == UNSENT:
            # The first root of a request goes alone to show what a single row takes.
            if single or not self.single_measured:
                return [ROOT]
            if not self._candidates.drafted_layers:
                return [ROOT] if self._root_goes_alone() else []
        most = settings.segment_rows if self.single_measured else _ROWS_UNMEASURED
        room = settings.max_draft_rows - tree.num_sent
        best = tree.best_unsent(min(1 if single else most, settings.segment_rows, room))
        thresholds = plan.thresholds(self._in_flight, now)[: len(best)]
        # Where many rows take hardly longer than two, the second row has to be paid by all.
        gains = np.cumsum(np.exp(tree.effective_scores()[best]) - thresholds)
        count = int(np.argmax(gains)) + 1 if len(best) else 0
        return best[:count] if count and gains[count - 1] > 0 else []

    def _root_goes_alone(self) -> bool:
        forward_s, plan = self.times.root_forward, self.plan
        if not forward_s:
            return True  # nobody knows when the first layer comes
        behind = float(plan.trips.interval[0]) if plan.rows.segments > 1 else plan.returned
        return not is_worth_waiting(forward_s, self._candidates.hit, 1.0, behind)
