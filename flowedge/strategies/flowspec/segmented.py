"""Rounds of one tree that is verified segment by segment, in turns (flowspec, sections 3.1 to 3.3).

What the FlowSpec paper's own strategies have in common. Where the paper leaves a choice:

- Turns (3.1). D0 is a stage of the paper's pipeline too, so N + 1 segments are under way, one of them at D0.
  The stages here wait for no barrier: a turn begins when a segment comes back, and the next one enters (see
  Pace). A prune acts when it is known, not at the end of the turn.
- Draft initialization (3.2). The whole tree is drafted before its first segment goes; N + 1 equal segments,
  L_max at most. With few stages more nodes are left than fit: they go in the turns that follow.
- Early exit (3.3). When the drawn token is not in the tree the round ends at once. Segments that died on the
  way come back as headers and hold no turn of the next round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.tree import ROOT, UNSENT, DraftTree
from flowedge.strategies.base import (
    AcceptPath,
    Command,
    CreditGranted,
    Emit,
    Layer,
    Prefilled,
    Returned,
    Send,
    Strategy,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.growth import Growth
from flowedge.strategies.settings import TreeSettings
from flowedge.strategies.turn_gate import TurnGate


class SegmentedRounds(Strategy):
    """The tree T of a round, the growth T_base that feeds it, and the turns."""

    def __init__(self, settings: TreeSettings) -> None:
        self.settings = settings
        self.pace = TurnGate(1, 0)
        self.tree = DraftTree(0, 0)
        self.growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self.segment_rows = 0  # most rows of a segment; 0 while the round's tree is drafted
        self._segments = 1  # that the tree of a round is cut into: N + 1

    @property
    def max_draft_rows(self) -> int:
        return self.settings.max_draft_rows

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._segments = event.stages + 1
                self.pace = TurnGate(self._segments, event.credits)
                return [Emit((event.token,)), *self.begin(event.token, event.context)]
            case Layer():
                self.growth.add(event)
                if not self.growth.finished:
                    return [self.growth.next_layer()]
                self.take_growth()
                return self.proceed()
            case Verified():
                self.pace.take_back()
                return self._advance(event)
            case Returned():
                return self.proceed() if self.pace.take_back() else []
            case CreditGranted():
                self.pace.grant()
                return self.enter()

    def take_growth(self) -> None:
        """Cut the round's tree out of what has been grown."""
        self.tree.merge(self.growth.base, self.growth.base.best(self.settings.tree_nodes))
        equal = -(-len(self.tree) // self._segments)
        self.segment_rows = min(self.settings.segment_rows, equal)

    def moved(self) -> None:
        """The root has moved, within the tree; nothing is to be done about it."""

    def choose(self, count: int) -> list[int]:
        """At most `count` unsent nodes, in the order in which they are to be verified."""
        return self.tree.best_unsent(count)

    def proceed(self) -> list[Command]:
        """What D0 does in a turn, with its result taken in."""
        return self.enter()

    def enter(self) -> list[Command]:
        """Have segments enter while turns are free."""
        commands: list[Command] = []
        while self.segment_rows and self.pace.may_send:
            nodes = self.choose(min(self.segment_rows, self.room))
            if not nodes:
                break
            self.pace.send()
            parents = self.tree.mark_sent(nodes)
            commands.append(Send(tuple(self.tree.tokens[nodes].tolist()), tuple(parents)))
        return commands

    @property
    def room(self) -> int:
        """Rows that may still be sent."""
        return self.settings.max_draft_rows - self.tree.num_sent

    @property
    def all_sent(self) -> bool:
        return not bool(np.any(self.tree.rows == UNSENT))

    def begin(self, token: int, context: int) -> list[Command]:
        settings = self.settings
        self.pace.flush()
        self.tree = DraftTree(token, context)
        self.growth = Growth(self.growth.number + 1, token, context, settings.top_k, settings.depth)
        self.segment_rows = 0
        return [self.growth.next_layer()]

    def _advance(self, event: Verified) -> list[Command]:
        tree = self.tree
        path = [tree.node_of_row(row) for row in event.accepted]
        tokens = (*(int(tree.tokens[node]) for node in path[1:]), event.token)
        root = tree.child(path[-1], event.token)  # the continuous condition
        if root is None:
            prune = AcceptPath(event.accepted, None, ends_round=True)
            return [Emit(tokens), prune, *self.begin(event.token, tree.context + len(path))]
        row = int(tree.rows[root])
        tree.reroot(root)
        self.moved()
        prune = AcceptPath(event.accepted, None if row == UNSENT else row, ends_round=False)
        if tree.rows[ROOT] == UNSENT:
            self.pace.flush()
        return [Emit(tokens), prune, *self.proceed()]
