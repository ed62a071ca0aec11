"""A draft tree of the likely proposals, whose scores are probabilities of acceptance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.tree import ROOT
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.commands import AcceptPath, Emit, Grow
from flowedge.strategies.events import Layer, Verified
from flowedge.strategies.proposal_tree import (
    NO_NAME,
    ProposalTree,
    extended,
    keep_nodes,
    lengthened,
    move_rows,
)

_HIT_FADE = 0.95
_PRIOR_HIT = 0.8


class CandidateTree(ProposalTree):
    """A ProposalTree in which a proposal is a candidate until it is likely enough to be a node.

    A candidate becomes a node when its probability, given the root, reaches the least probability of a node.
    As the root moves on, unlikely candidates become likely without another forward of the drafter. A new
    growth keeps the tree; nodes get new scores as their parents are drafted again.

    Attributes:
        tree: scores are log-probabilities of acceptance, given the root.
        drafted_layers: number of layers since the tree was begun.
        hit: probability that a drawn token is a proposal below its node, of nodes that are drafted.
    """

    def __init__(self, width: int, floor: float, acceptance: ProposalAcceptance) -> None:
        """`width` is the number of candidates of a node, `floor` the least log-probability of a node."""
        self._floor = floor
        self._acceptance = acceptance
        self.hit = _PRIOR_HIT
        super().__init__(width)

    def restart(self, token: int, context: int) -> None:
        super().restart(token, context)
        self.drafted_layers = 0
        size = len(self.names)
        # The log-probability of acceptance after the parent: of a node that its parent proposes, of the
        # candidates below a computed node that are no nodes [n + spare, width], and of the best of these.
        # The first and the last are the rows of an array [2, n + spare].
        self._of_nodes: FloatArray = np.full((2, size), -np.inf)
        self._steps, self._best_waiting = self._of_nodes
        self._waiting: FloatArray = np.full((size, self._width), -np.inf)
        self._segments: IntArray = np.zeros(size, dtype=np.int64)  # with which nodes were sent, from 1 on
        self._living: list[int] | None = []  # these numbers, rising; None when nodes may have gone since

    def note_sent(self, nodes: Sequence[int], segment: int) -> None:
        """Note the number of the segment with which nodes were sent."""
        self._segments[list(nodes)] = segment
        if self._living is not None:
            self._living.append(segment)

    def living_segments(self, returned: int) -> Sequence[int]:
        """Return the numbers above `returned` of the segments that have nodes of the tree, rising."""
        if self._living is None:
            numbers = self._segments[: len(self.tree)]
            self._living = sorted(set(numbers[numbers > 0].tolist()))
        return self._living[bisect_right(self._living, returned) :]

    def regrow(self) -> None:
        super().regrow()
        self._undrafted: IntArray | None = None  # what _undrafted_nodes returns, while it stays the same

    def grow(self, nodes: Sequence[int] | IntArray) -> Grow:
        self._undrafted = None
        return super().grow(nodes)

    def withdraw(self, grow: Grow) -> None:
        """Take back a command whose forward has not begun."""
        if grow.growth == self._growth:
            self._undrafted = None
            self.drafted[self.living(grow.nodes)] = False

    def advance(self, event: Verified) -> tuple[Emit, AcceptPath]:
        was_drafted = bool(self.computed[self.tree.node_of_row(event.accepted[-1])])
        emit, accept = super().advance(event)
        if was_drafted:
            self.hit = _HIT_FADE * self.hit + (1 - _HIT_FADE) * (not accept.ends_round)
        return emit, accept

    def follow(self, path: Sequence[int], token: int) -> int | None:
        """Learn from the drawn tokens, and return the node of the last of them.

        Args:
            path: accepted nodes, root first.
            token: the token drawn after them.

        Returns:
            The child of the last accepted node with this token, None if the token was not a candidate there.
        """
        drawn = [*(int(self.tree.tokens[node]) for node in path[1:]), token]
        column: int | None = None
        for node, next_token in zip(path, drawn, strict=True):
            proposals, log_probs = self.proposals(node)
            proposed: list[int] = proposals.tolist()
            column = proposed.index(next_token) if next_token in proposed else None
            if proposed:
                self._acceptance.observe(log_probs.tolist(), column)
        found: IntArray = ((self.tree.parents == path[-1]) & (self.tree.tokens == token)).nonzero()[0]
        if not len(found) and column is not None:
            parents, columns = np.array([path[-1]]), np.array([column])
            found = self._make_nodes(parents, columns, self._waiting[parents, columns])
        return int(found[0]) if len(found) else None

    def reroot(self, node: int) -> IntArray:
        """Prune to the subtree of a node, and make nodes of the candidates that are likely now."""
        kept = super().reroot(node)
        count = len(kept)
        keep_nodes(self._of_nodes, kept, -np.inf)
        keep_nodes(self._segments, kept, 0)
        self._living = None
        move_rows(self._waiting, kept)
        self._steps[ROOT] = -np.inf
        likely: IntArray = (self.tree.scores + self._best_waiting[:count] >= self._floor).nonzero()[0]
        if len(likely):
            self._admit(likely, self._waiting[likely])
        scores = self.tree.scores[self.tree.parents[:count]] + self._steps[:count]
        self._give_likely(np.arange(count), scores)
        return kept

    def undrafted_scores(self, most: int) -> FloatArray:
        """Return the scores [n] of the nodes that `grow_likeliest` would draft, likeliest first."""
        if self.names[ROOT] == NO_NAME or not self.drafted[ROOT]:
            return np.zeros(1)
        return self.tree.effective_scores()[self._undrafted_nodes()[:most]]

    def grow_likeliest(self, most: int) -> Grow | None:
        """Return the command that drafts below the `most` likeliest undrafted nodes, if there are any."""
        if self.names[ROOT] == NO_NAME:
            self.regrow()
        if not self.drafted[ROOT]:
            return self.grow([ROOT])
        nodes = np.sort(self._undrafted_nodes()[:most])
        return self.grow(nodes) if len(nodes) else None

    def _undrafted_nodes(self) -> IntArray:
        """Return the nodes that may be drafted, likeliest first."""
        if self._undrafted is None:
            ranking = self.tree.ranking()
            scores = self.tree.effective_scores()[ranking]
            likely = ranking[: np.count_nonzero(scores >= self._floor)]
            self._undrafted = likely[(self.names[likely] != NO_NAME) & ~self.drafted[likely]]
        return self._undrafted

    def take(self, layer: Layer) -> list[int]:
        self.drafted_layers += 1
        nodes, proposed, log_probs = self.store(layer)
        steps = self._acceptance.log_share(log_probs)
        steps[proposed < 0] = -np.inf
        children = self._find_children(nodes, steps)
        self._admit(nodes, steps)
        self._rescore(children)
        taken: list[int] = nodes.tolist()
        return taken

    def _find_children(self, nodes: IntArray, steps: FloatArray) -> IntArray:
        """Find the nodes below `nodes`, and take their own steps out of the steps [f, width] of `nodes`."""
        tree = self.tree
        places = np.full(len(tree) + 1, -1)  # of each node in `nodes`; behind them that of the root's parent
        places[nodes] = np.arange(len(nodes))
        below = places[tree.parents]
        children: IntArray = (below >= 0).nonzero()[0]
        if len(children):
            self._steps[children] = -np.inf
            found, columns = (self.proposed[tree.parents[children]] == tree.tokens[children, None]).nonzero()
            children_found, rows = children[found], below[children[found]]
            self._steps[children_found] = steps[rows, columns]
            steps[rows, columns] = -np.inf
        return children

    def _admit(self, nodes: IntArray, steps: FloatArray) -> None:
        """Make nodes of the likely candidates below `nodes`, whose steps [f, width] these are."""
        if not len(nodes):
            return
        likely = self.tree.scores[nodes, None] + steps >= self._floor
        rows, columns = likely.nonzero()
        if len(rows):
            self._make_nodes(nodes[rows], columns, steps[rows, columns])
        steps[likely] = -np.inf
        self._waiting[nodes] = steps
        self._best_waiting[nodes] = steps.max(axis=1)

    def _make_nodes(self, parents: IntArray, columns: IntArray, steps: FloatArray) -> IntArray:
        """Make nodes of candidates, by their parents and their columns; returns the nodes."""
        tree = self.tree
        nodes = tree.append(parents, self.proposed[parents, columns], tree.scores[parents] + steps)
        self.lengthen()
        self._steps[nodes] = steps
        self.name_nodes(nodes)
        self._undrafted = None
        return nodes

    def _rescore(self, nodes: IntArray) -> None:
        """Give new scores to the likely ones of nodes that are candidates of their parents."""
        if len(nodes):
            self._give_likely(nodes, self.tree.scores[self.tree.parents[nodes]] + self._steps[nodes])

    def _give_likely(self, nodes: IntArray, scores: FloatArray) -> None:
        """Give nodes those of the scores that are likely enough for a node."""
        likely = scores >= self._floor
        nodes = nodes[likely]
        self.tree.rescore(nodes, scores[likely])
        self.name_nodes(nodes)
        self._undrafted = None

    def lengthen(self) -> None:
        super().lengthen()
        size = len(self.names)
        if size > len(self._steps):
            self._of_nodes = extended(self._of_nodes, size, -np.inf)
            self._steps, self._best_waiting = self._of_nodes
            self._waiting = lengthened(self._waiting, size, -np.inf)
            self._segments = extended(self._segments, size, 0)
