"""FlowSpec: continuous pipelined speculative decoding, run asynchronously.

The paper's turns are a lock-step; here the tree, the segments and the drafting follow events:

- Score-based segmentation (section 3.2): a segment is composed when the pipeline has room for it, from the
  best nodes that are unsent at that moment (late binding).
- Step-wise verification and pruning (3.3): each segment that returns moves the root along the accepted path;
  the subtree of the drawn token stays in flight, or the round ends when the token has no node.
- Context-aware expansion (3.4): each new root starts a new tree, which is merged layer by layer into the
  current one; nodes in both take the new score.
- Score-aware expansion (3.4): with room in the pipeline and nothing left to send, T_base is deepened and its
  best nodes are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

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
from flowedge.strategies.growth import Growth, best_absent
from flowedge.strategies.settings import TreeSettings


class FlowSpec(Strategy):
    """The tree T, the growth T_base that feeds it, and the credits of the first stage."""

    name: ClassVar[str] = "flowspec"

    def __init__(self, settings: TreeSettings) -> None:
        self._settings = settings
        self._credits = 0
        self._tree = DraftTree(0, 0)
        self._growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self._growth_nodes = settings.tree_nodes  # how many of its best nodes are merged into the tree
        self._deepened = False

    @property
    def max_draft_rows(self) -> int:
        return self._settings.max_draft_rows

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._tree = DraftTree(event.token, event.context)
                return [Emit((event.token,)), *self._regrow(fresh=True)]
            case Layer():
                return self._add_layer(event)
            case Verified():
                return self._advance(event)
            case Returned():
                return []
            case CreditGranted():
                self._credits += 1
                return self._supply()

    def _advance(self, event: Verified) -> list[Command]:
        tree = self._tree
        path = [tree.node_of_row(row) for row in event.accepted]
        emitted = Emit((*(int(tree.tokens[node]) for node in path[1:]), event.token))
        root = tree.child(path[-1], event.token)
        if root is None:
            self._tree = DraftTree(event.token, tree.context + len(path))
            prune = AcceptPath(event.accepted, None, ends_round=True)
            return [emitted, prune, *self._regrow(fresh=True)]
        row = int(tree.rows[root])
        tree.reroot(root)
        prune = AcceptPath(event.accepted, None if row == UNSENT else row, ends_round=False)
        return [emitted, prune, *self._regrow(fresh=False)]

    def _regrow(self, fresh: bool) -> list[Command]:
        """Grow from the root: the tree of a new round, or the one that is merged into the current tree."""
        tree, settings = self._tree, self._settings
        token = int(tree.tokens[ROOT])
        depth = settings.depth if fresh else settings.expand_depth
        self._growth = Growth(self._growth.number + 1, token, tree.context, settings.top_k, depth)
        self._growth_nodes = settings.tree_nodes if fresh else settings.expand_nodes
        self._deepened = False
        return [self._growth.next_layer()]

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
        """Fill the room there is with the best unsent nodes; deepen T_base when none is left."""
        commands: list[Command] = []
        while self._credits and self._drafted_enough():
            room = self._settings.max_draft_rows - self._tree.num_sent
            nodes = self._tree.best_unsent(min(self._settings.segment_rows, room))
            if not nodes:
                if room and self._growth.finished and not self._growth.exhausted:
                    self._deepened = True
                    self._growth.deepen(self._settings.deepen_layers)
                    commands.append(self._growth.next_layer())
                break
            self._credits -= 1
            parents = self._tree.mark_sent(nodes)
            commands.append(Send(tuple(self._tree.tokens[nodes].tolist()), tuple(parents)))
        return commands

    def _drafted_enough(self) -> bool:
        """Whether the best unsent nodes are known well enough to be sent while T_base still grows.

        They are once the growth is done, or once no node below the frontier could come before them.
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
