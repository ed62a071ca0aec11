"""FlowSpec: continuous pipelined speculative decoding, run asynchronously.

The paper's turns are a lock-step. Here the tree, the segments and the drafting follow events:

- Score-based segmentation (section 3.2): a segment is composed when the pipeline has room for it, from the
  best nodes that are unsent at that moment (late binding).
- Step-wise verification and pruning (3.3): each returned segment moves the root along the accepted path. The
  subtree of the drawn token stays in flight; without a node for the drawn token the round ends.
- Context-aware expansion (3.4): each new root starts a new tree, which is merged into the current tree layer
  by layer; a node of both trees takes the new score.
- Score-aware expansion (3.4): when the pipeline has room and no node is unsent, T_base is deepened and its
  best nodes are appended.

The options `context_aware`, `score_aware` and `early_stop` leave a mechanism out when they are 0. Without the
context-aware expansion, the T_base of a round is the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.core.tree import DraftTree
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Command, Emit, Grow, Withdraw
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.growth import Growth, best_absent
from flowedge.strategies.settings import TreeSettings
from flowedge.strategies.tree_commands import advance, send_nodes


class FlowSpec(Strategy):
    """The tree T, the growth T_base that feeds it, and the credits of the first stage."""

    name: ClassVar[str] = "flowspec"

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(settings.max_draft_rows)
        self._settings = settings
        self._credits = 0
        self._tree = DraftTree(0, 0)
        self._growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self._growth_nodes = settings.tree_nodes  # number of T_base's best nodes that are merged into T
        self._deepened = False
        self._in_flight = 0  # segments
        self._draining = False  # whether the last round has ended and some of its segments are in flight

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._tree = DraftTree(event.token, event.context)
                return [Emit((event.token,)), self._regrow(fresh=True)]
            case Layer():
                return self._add_layer(event)
            case Verified():
                self._in_flight -= 1
                return self._advance(event)
            case Returned():
                self._in_flight -= 1
                return self._begin_drained() if self._draining else []
            case CreditGranted():
                self._credits += 1
                return self._supply()

    def _advance(self, event: Verified) -> list[Command]:
        settings = self._settings
        early_stop = bool(settings.early_stop)
        self._tree, emit, accept = advance(self._tree, event, early_stop=early_stop)
        if accept.ends_round and not early_stop:
            return [emit, accept, Withdraw(), *self._begin_drained()]
        if accept.ends_round or settings.context_aware:
            return [emit, accept, self._regrow(fresh=accept.ends_round)]
        self._growth.follow(emit.tokens)
        return [emit, accept, *self._supply()]

    def _begin_drained(self) -> list[Command]:
        """Begin a round once no segment of the round before is in flight."""
        self._draining = self._in_flight > 0
        return [] if self._draining else [self._regrow(fresh=True)]

    def _regrow(self, fresh: bool) -> Grow:
        """Grow from the root: the tree of a new round, or a tree to merge into the current one."""
        settings = self._settings
        depth = settings.depth if fresh else settings.expand_depth
        self._growth = self._growth.successor(self._tree, depth)
        self._growth_nodes = settings.tree_nodes if fresh else settings.expand_nodes
        self._deepened = False
        return self._growth.next_layer()

    def _add_layer(self, event: Layer) -> list[Command]:
        growth, settings = self._growth, self._settings
        growth.add(event)
        if self._deepened:
            if not growth.finished:
                return [growth.next_layer()]
            self._tree.merge(growth.base, best_absent(growth.base, self._tree, settings.deepen_nodes))
            return self._supply()
        self._tree.merge(growth.base, growth.base.best(self._growth_nodes))
        self._tree.drop_unsent_beyond(settings.max_draft_rows)
        more: list[Command] = [] if growth.finished else [growth.next_layer()]
        return [*more, *self._supply()]

    def _supply(self) -> list[Command]:
        """Send the best unsent nodes while there are credits; deepen T_base when no node is unsent."""
        commands: list[Command] = []
        while self._credits and not self._draining and self._drafted_enough():
            room = self._settings.max_draft_rows - self._tree.num_sent
            nodes = self._tree.best_unsent(min(self._settings.segment_rows, room))
            if not nodes:
                if room and self._settings.score_aware and self._may_deepen():
                    self._deepened = True
                    self._growth.deepen(self._settings.deepen_layers)
                    commands.append(self._growth.next_layer())
                break
            self._credits -= 1
            self._in_flight += 1
            commands.append(send_nodes(self._tree, nodes))
        return commands

    def _may_deepen(self) -> bool:
        return self._growth.finished and not self._growth.exhausted

    def _drafted_enough(self) -> bool:
        """Return whether the best unsent nodes can be sent while T_base still grows.

        They can once the growth is finished, or once no node below the frontier can have a better score.
        """
        growth = self._growth
        if growth.finished:
            return True
        if growth.layers == 0:
            return False
        best = self._tree.best_unsent(self._settings.segment_rows)
        if len(best) < self._settings.segment_rows:
            return False
        return float(self._tree.effective_scores()[best[-1]]) >= growth.frontier_score()
