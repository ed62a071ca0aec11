"""FlowEdge's own method: late binding of segments, drafting where it pays, scores that learn.

It is FlowSpec's continuous pipelining without its turns, and every decision aims at tokens revealed per time:

- Rows: a row is sent with a segment when what it gains by going now is worth what it delays (rows_worth). The
  best unsent nodes of the newest tree are taken. Where one row takes much less time than two (4-bit weights
  of bitsandbytes), every segment may have a single one (lone_rows_pay).
- When: no more segments are under way than the pipeline has stages. One more would only wait in front of a
  stage, chosen on older news than the one that takes its place (late binding). For the same reason nothing
  is sent into a pipeline that fills while its first stage is known to be busy for longer than a forward of
  the drafter (FirstStage).
- Drafting: a forward of the drafter costs about the same for one node as for many, so each takes the
  likeliest nodes that are not drafted below yet, at whatever depth. Whether the next forwards begin anew at
  the root, with the target's true features, or go on at the frontier is decided by grows_anew.
- Candidates stay with their parents (CandidateTree), and what share of proposals comes true is learnt from
  the tokens drawn (Acceptance), so that scores are probabilities.
- After a miss the first layer of children is sent as soon as it is there: a crossing of the pipeline takes
  many times as long as a forward of the drafter, and what is drafted meanwhile follows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowedge.core.pipeline_trip import PipelineTrip
from flowedge.core.tree import ROOT, UNSENT
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.auto.candidate_tree import CandidateTree
from flowedge.strategies.auto.segment_rows import RowsGain, lone_rows_pay, rows_worth
from flowedge.strategies.auto.time_estimates import DraftTime, FirstStage
from flowedge.strategies.auto.trip_estimate import TripEstimate
from flowedge.strategies.base import (
    AcceptPath,
    Command,
    CreditGranted,
    Emit,
    Grow,
    Layer,
    Prefilled,
    Returned,
    Send,
    Strategy,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.settings import AutoSettings


def grows_anew(tokens: int, stale_tokens: float) -> bool:
    """Whether to draft from the root again, `tokens` after the root of the last growth.

    The first forwards of a new growth only score anew what is known, with true features instead of the
    drafter's own; those at the frontier find new nodes. The gain in score rises with the tokens that were
    drawn since, the cost does not.
    """
    return tokens >= stale_tokens


class Auto(Strategy):
    """The tree of candidates, the segments under way, and what was learnt of both."""

    name: ClassVar[str] = "auto"

    def __init__(self, settings: AutoSettings) -> None:
        self._settings = settings
        acceptance = ProposalAcceptance(settings.prior)
        self._candidates = CandidateTree(settings.candidates, math.log(settings.least_node), acceptance)
        self._crossing = TripEstimate(settings.lone_share)
        self._rows_gain = RowsGain()
        self._draft_time = DraftTime()
        self._first_stage = FirstStage()
        self._stages = 1
        self._limit = 1.0  # segments under way
        self._credits = 0
        self._flying: deque[bool] = deque()  # whether the time of each segment under way tells what rows take
        self._drafting = False
        self._at_root = False  # the layer that is drafted is the root's
        self._tokens = 0  # since the root of the growth

    @property
    def max_draft_rows(self) -> int:
        return self._settings.max_draft_rows

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._stages = event.stages
                self._limit = event.stages + self._settings.extra_segments
                self._crossing.observe(event.crossings[:1])
                self._begin(event.token, event.context)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = self._at_root = False
                self._draft_time.observe(event.seconds)
                self._first_stage.drafted(event.seconds)
                self._candidates.take(event)
                return self._proceed()
            case Verified():
                self._came_back(event.crossing)
                return [*self._advance(event), *self._proceed()]
            case Returned():
                self._came_back(None)
                return self._proceed()
            case CreditGranted():
                self._credits += 1
                return self._proceed()

    def _came_back(self, crossing: PipelineTrip | None) -> None:
        if self._flying.popleft() and crossing is not None:
            self._crossing.observe([crossing])

    def _begin(self, token: int, context: int) -> None:
        self._candidates.restart(token, context)
        self._first_stage.empty()
        self._drafting = self._at_root = False

    def _advance(self, event: Verified) -> list[Command]:
        candidates = self._candidates
        tree = candidates.tree
        path = [tree.node_of_row(row) for row in event.accepted]
        emitted = Emit((*(int(tree.tokens[node]) for node in path[1:]), event.token))
        root = candidates.follow(path, event.token)
        if root is None:
            self._begin(event.token, tree.context + len(path))
            return [emitted, AcceptPath(event.accepted, None, ends_round=True)]
        row = int(tree.rows[root])
        if row == UNSENT:
            self._first_stage.empty()
        else:
            self._first_stage.flow()
        candidates.reroot(root)
        self._rows_gain.observe(np.exp(tree.effective_scores()), self._stages)
        self._tokens += len(path)
        # The forward over the root extends the drafter by all that was accepted until it runs.
        if self._at_root or grows_anew(self._tokens, self._settings.stale_tokens):
            candidates.regrow()
            self._drafting = self._at_root = False
        return [emitted, AcceptPath(event.accepted, None if row == UNSENT else row, ends_round=False)]

    def _proceed(self) -> list[Command]:
        """Send what is worth it, and draft where it helps most."""
        grow = self._grow()
        commands: list[Command] = []
        while self._credits and len(self._flying) < self._limit and not self._waits():
            nodes = self._choose()
            if not nodes:
                break
            commands.append(self._send(nodes))
        return commands if grow is None else [*commands, grow]

    def _grow(self) -> Grow | None:
        candidates, settings = self._candidates, self._settings
        # Nothing is sent before the root is drafted below, however small a tree may be.
        has_room = len(candidates.tree) < settings.max_nodes or not candidates.drafted_layers
        if self._drafting or not has_room:
            return None
        grow = candidates.grow(settings.draft_nodes)
        if grow is not None:
            self._drafting, self._at_root = True, grow.nodes == (ROOT,)
            if self._at_root:
                self._tokens = 0
        return grow

    def _waits(self) -> bool:
        """Whether the next segment is better chosen after the layer that is drafted now."""
        patience = self._settings.patience * self._draft_time.seconds
        return self._drafting and self._first_stage.is_busy_for(patience)

    def _send(self, nodes: Sequence[int]) -> Send:
        # The rows of a tree are below its root: where that is sent, nothing that lives is under way.
        alone = nodes[0] == ROOT or (self._sends_lone_rows and all(self._flying))
        self._flying.append(alone)
        self._credits -= 1
        self._first_stage.take(self._crossing.less_rows(len(nodes)) / self._stages)
        return self._candidates.send(nodes)

    @property
    def _sends_lone_rows(self) -> bool:
        share = self._crossing.lone_share
        return share is not None and lone_rows_pay(share, self._rows_gain.gain)

    def _choose(self) -> list[int]:
        """The nodes of the next segment, if there is anything worth sending; the root is in any case."""
        settings, candidates, crossing = self._settings, self._candidates, self._crossing
        lone = self._sends_lone_rows
        # The first root of a request is sent alone where it is not known what a lone row takes.
        if (lone or crossing.lone_share is None) and candidates.tree.rows[ROOT] == UNSENT:
            return [ROOT]
        if not candidates.drafted_layers:
            return []
        room = settings.max_draft_rows - candidates.tree.num_sent
        best = candidates.tree.best_unsent(min(1 if lone else settings.segment_rows, room))
        # The interval between segments is that share of a crossing that one stage has.
        row_cost = settings.row_price * crossing.row_share * self._stages
        return best[: rows_worth(np.exp(candidates.tree.effective_scores()[best]), row_cost)]
