"""FlowEdge's own strategy: late binding of segments, drafting where it pays, scores that learn.

`auto` is FlowSpec's continuous pipelining without turns. Every decision aims at tokens revealed per time:

- Rows: a row goes with a segment when its gain by going now is worth the delay of the other rows
  (rows_worth). The best unsent nodes of the newest tree are taken. Where a single row takes much less time
  than two, as with the 4-bit weights of bitsandbytes, every segment may have a single row (single_rows_pay).
- When: no more segments are in flight than the pipeline has stages. A further segment would only wait in
  front of a stage, chosen on older news than the segment that takes its place (late binding). For the same
  reason nothing is sent into a pipeline that fills while its first stage is known to be busy for longer than
  a forward of the drafter (FirstStageBacklog).
- Drafting: a forward of the drafter takes about the same time for one node as for many, so each forward takes
  the likeliest nodes without proposals, at any depth. `grows_anew` decides whether the next forwards begin at
  the root again, with the target's true features, or continue at the frontier.
- Proposals stay with their parent until they are likely enough to be nodes (CandidateTree). The share of
  proposals that are drawn is learnt (ProposalAcceptance), so that scores are probabilities.
- After a miss the first layer of children is sent as soon as it is computed: a round trip takes many times as
  long as a forward of the drafter, and the nodes drafted meanwhile follow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowedge.core.tree import ROOT, UNSENT
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.auto.candidate_tree import CandidateTree
from flowedge.strategies.auto.segment_rows import WideSegmentGain, rows_worth, single_rows_pay
from flowedge.strategies.auto.time_estimates import DraftTime, FirstStageBacklog
from flowedge.strategies.auto.trip_estimate import TripEstimate
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Command, Emit, Grow, Send
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.settings import AutoSettings
from flowedge.strategies.tree_commands import send_nodes


def grows_anew(tokens: int, stale_tokens: float) -> bool:
    """Return whether to draft from the root again, `tokens` after the root of the last growth.

    The first forwards of a new growth only give known nodes new scores, by true features instead of the
    drafter's own; forwards at the frontier find new nodes. The gain of new scores rises with the tokens that
    were drawn since, and its cost does not.
    """
    return tokens >= stale_tokens


class Auto(Strategy):
    """The tree of candidates, the segments in flight, and the estimates of times and probabilities."""

    name: ClassVar[str] = "auto"

    def __init__(self, settings: AutoSettings) -> None:
        super().__init__(settings.max_draft_rows)
        self._settings = settings
        acceptance = ProposalAcceptance(settings.prior)
        self._candidates = CandidateTree(settings.candidates, math.log(settings.least_node), acceptance)
        self._trip_estimate = TripEstimate(settings.lone_share)
        self._wide_gain = WideSegmentGain()
        self._draft_time = DraftTime()
        self._backlog = FirstStageBacklog()
        self._stages = 1
        self._limit = 1.0  # most segments in flight
        self._credits = 0
        self._in_flight: deque[bool] = deque()  # for each segment, whether its trip counts for the estimate
        self._drafting = False
        self._drafting_root = False
        self._tokens = 0  # drawn since the root of the growth

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._stages = event.stages
                self._limit = event.stages + self._settings.extra_segments
                self._trip_estimate.observe(event.trips[:1])
                self._candidates.restart(event.token, event.context)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = self._drafting_root = False
                self._draft_time.observe(event.seconds)
                self._backlog.pass_time(event.seconds)
                self._candidates.take(event)
                return self._proceed()
            case Verified():
                self._take_back(event.trip)
                return [*self._advance(event), *self._proceed()]
            case Returned():
                self._take_back(None)
                return self._proceed()
            case CreditGranted():
                self._credits += 1
                return self._proceed()

    def _take_back(self, trip: PipelineTrip | None) -> None:
        if self._in_flight.popleft() and trip is not None:
            self._trip_estimate.observe([trip])

    def _advance(self, event: Verified) -> list[Command]:
        candidates = self._candidates
        emit, accept = candidates.advance(event)
        if accept.root is None:
            self._backlog.pipeline_emptied()
        else:
            self._backlog.pipeline_filled()
        if accept.ends_round:
            self._drafting = self._drafting_root = False
            return [emit, accept]
        self._wide_gain.observe(np.exp(candidates.tree.effective_scores()), self._stages)
        self._tokens += len(event.accepted)
        # A forward over the root that has not begun extends the drafter by all tokens accepted until then.
        if self._drafting_root or grows_anew(self._tokens, self._settings.stale_tokens):
            candidates.regrow()
            self._drafting = self._drafting_root = False
        return [emit, accept]

    def _proceed(self) -> list[Command]:
        """Send segments that are worth it, and draft where drafting helps most."""
        grow = self._grow()
        commands: list[Command] = []
        while self._credits and len(self._in_flight) < self._limit and not self._waits():
            nodes = self._choose()
            if not nodes:
                break
            commands.append(self._send(nodes))
        return commands if grow is None else [*commands, grow]

    def _grow(self) -> Grow | None:
        candidates, settings = self._candidates, self._settings
        # Nothing is sent before there are proposals below the root, however small a tree may be.
        has_room = len(candidates.tree) < settings.max_nodes or not candidates.drafted_layers
        if self._drafting or not has_room:
            return None
        grow = candidates.grow_likeliest(settings.draft_nodes)
        if grow is not None:
            self._drafting, self._drafting_root = True, grow.nodes == (ROOT,)
            if self._drafting_root:
                self._tokens = 0
        return grow

    def _waits(self) -> bool:
        """Return whether the next segment is better chosen after the layer that is being drafted."""
        return self._drafting and self._backlog.exceeds(self._settings.patience * self._draft_time.seconds)

    def _send(self, nodes: Sequence[int]) -> Send:
        # All rows of a tree are below its root: when the root is sent, nothing that lives is in flight.
        counts = nodes[0] == ROOT or (self._sends_single_rows and all(self._in_flight))
        self._in_flight.append(counts)
        self._credits -= 1
        self._backlog.add_segment(self._trip_estimate.base_seconds(len(nodes)) / self._stages)
        return send_nodes(self._candidates.tree, nodes)

    @property
    def _sends_single_rows(self) -> bool:
        share = self._trip_estimate.single_row_share
        return share is not None and single_rows_pay(share, self._wide_gain.gain)

    def _choose(self) -> list[int]:
        """Return the nodes of the next segment; none where nothing is worth sending."""
        settings, tree, estimate = self._settings, self._candidates.tree, self._trip_estimate
        single = self._sends_single_rows
        # The first root of a request goes alone where the time of a single row is not known.
        if (single or estimate.single_row_share is None) and tree.rows[ROOT] == UNSENT:
            return [ROOT]
        if not self._candidates.drafted_layers:
            return []
        room = settings.max_draft_rows - tree.num_sent
        best = tree.best_unsent(min(1 if single else settings.segment_rows, room))
        # The interval between segments is a stage's share of a round trip.
        row_cost = settings.row_price * estimate.row_share * self._stages
        return best[: rows_worth(np.exp(tree.effective_scores()[best]), row_cost)]
