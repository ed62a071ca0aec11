"""Pruned PP: naive pipeline parallelism with tree pruning and early exit (flowspec, section 4.3).

Section 4.3: Pruned PP extends Naive PP by tree pruning and early exit; with tree expansion, and without
score-based segmentation, it becomes "FlowSpec w/o SBD". So Pruned PP has the score-ordered segments of
section 3.2 and prunes after each returned segment (3.3), and FlowSpec is this strategy with the tree
expansion of 3.4. Where the paper leaves a choice:

- Turns (3.1). D0 is a stage of the paper's pipeline too, so N + 1 segments are in flight, one of them at D0.
  There is no barrier here: a turn begins when a segment returns, and the next segment enters then
  (InFlightLimit). The testbed can run the strategy in the lock-step of the paper's system. A prune acts when
  it is known, not at the end of the turn.
- Draft initialization (3.2). The whole tree is drafted before its first segment is sent, and cut into N + 1
  equal segments of at most L_max rows. With few stages nodes are left over; they go in the following turns.
- Early exit (3.3). When the drawn token is not in the tree, the round ends at once and the next tree is
  drafted. The segments that died on the way return as headers and hold no turn of the next round. With
  `early_stop=0` they are computed whole, and the next tree is drafted when the last of them has returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowedge.core.tree import UNSENT, DraftTree
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Command, Emit
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.growth import Growth
from flowedge.strategies.in_flight_limit import InFlightLimit
from flowedge.strategies.settings import TreeSettings
from flowedge.strategies.tree_commands import advance, send_nodes


class PrunedPP(Strategy):
    """The tree T of a round, the growth T_base that feeds it, and the turns; subclasses expand the tree."""

    name: ClassVar[str] = "pruned_pp"

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(settings.max_draft_rows)
        self.settings = settings
        self.gate = InFlightLimit(1, 0)
        self.tree = DraftTree(0, 0)
        self.growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self.segment_rows = 0  # most rows of a segment; 0 from the end of a round until its next tree
        self._draining = False  # whether the last round has ended and some of its segments are in flight
        self._segments = 1  # number of segments that a round's tree is cut into: N + 1

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._segments = event.stages + 1
                self.gate = InFlightLimit(self._segments, event.credits)
                self.tree = DraftTree(event.token, event.context)
                return [Emit((event.token,)), *self.begin()]
            case Layer():
                self.growth.add(event)
                if not self.growth.finished:
                    return [self.growth.next_layer()]
                self.take_growth()
                return self.proceed()
            case Verified():
                self.gate.take_back()
                return self._advance(event)
            case Returned():
                return self._returned()
            case CreditGranted():
                self.gate.grant()
                return self.enter()

    def take_growth(self) -> None:
        """Take the finished growth's best nodes as the tree of the round."""
        self.tree.merge(self.growth.base, self.growth.base.best(self.settings.tree_nodes))
        equal = -(-len(self.tree) // self._segments)
        self.segment_rows = min(self.settings.segment_rows, equal)

    def moved(self, tokens: Sequence[int]) -> None:
        """Take note that the root has moved along these tokens within the tree."""

    def choose(self, count: int) -> list[int]:
        """Return at most `count` unsent nodes, in the order of their verification."""
        return self.tree.best_unsent(count)

    def proceed(self) -> list[Command]:
        """Return D0's commands for a turn, after the returned segment was verified."""
        return self.enter()

    def enter(self) -> list[Command]:
        """Send segments while turns are free."""
        commands: list[Command] = []
        while self.segment_rows and self.gate.may_send:
            nodes = self.choose(min(self.segment_rows, self.rows_left))
            if not nodes:
                break
            self.gate.send()
            commands.append(send_nodes(self.tree, nodes))
        return commands

    @property
    def rows_left(self) -> int:
        """Number of rows that may still be sent."""
        return self.settings.max_draft_rows - self.tree.num_sent

    @property
    def all_sent(self) -> bool:
        return not bool(np.any(self.tree.rows == UNSENT))

    def begin(self) -> list[Command]:
        """Begin a round; the tree is its root."""
        self.growth = self.growth.successor(self.tree, self.settings.depth)
        self.segment_rows = 0
        return [self.growth.next_layer()]

    def _returned(self) -> list[Command]:
        current = self.gate.take_back()
        if self._draining:
            return self._begin_drained()
        return self.proceed() if current else []

    def _begin_drained(self) -> list[Command]:
        """Begin a round once no segment of the round before is in flight."""
        self._draining = not self.gate.idle
        return [] if self._draining else self.begin()

    def _advance(self, event: Verified) -> list[Command]:
        early_stop = bool(self.settings.early_stop)
        self.tree, emit, accept = advance(self.tree, event, early_stop=early_stop)
        if accept.ends_round and not early_stop:
            self.segment_rows = 0
            return [emit, accept, *self._begin_drained()]
        if accept.root is None:
            self.gate.flush()
        if accept.ends_round:  # the continuous condition does not hold
            return [emit, accept, *self.begin()]
        self.moved(emit.tokens)
        return [emit, accept, *self.proceed()]
