"""A draft tree of the likely proposals, whose scores are probabilities of acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.tree import ROOT
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.commands import Grow
from flowedge.strategies.events import Layer
from flowedge.strategies.proposal_tree import NO_NAME, ProposalTree, padded


class CandidateTree(ProposalTree):
    """A ProposalTree in which a proposal is a candidate until it is likely enough to be a node.

    A candidate becomes a node when its probability, given the root, reaches the least probability of a node.
    As the root moves on, unlikely candidates become likely without another forward of the drafter. A new
    growth keeps the tree; nodes get new scores as their parents are drafted again.

    Attributes:
        tree: scores are log-probabilities of acceptance, given the root.
        drafted_layers: number of layers since the tree was begun.
    """

    def __init__(self, width: int, floor: float, acceptance: ProposalAcceptance) -> None:
        """`width` is the number of candidates of a node, `floor` the least log-probability of a node."""
        self._floor = floor
        self._acceptance = acceptance
        super().__init__(width)

    def restart(self, token: int, context: int) -> None:
        super().restart(token, context)
        self.drafted_layers = 0
        self._scores: FloatArray = np.full_like(self.log_probs, -np.inf)  # of candidates, given their node

    def follow(self, path: Sequence[int], token: int) -> int | None:
        """Learn from the drawn tokens, and return the node of the last of them.

        Args:
            path: accepted nodes, root first.
            token: the token drawn after them.

        Returns:
            The child of the last accepted node with this token, None if the token was not a candidate there.
        """
        drawn = [*self.tree.tokens[list(path[1:])].tolist(), token]
        for node, next_token in zip(path, drawn, strict=True):
            tokens, log_probs = self.proposals(node)
            if len(tokens):
                hits = np.flatnonzero(tokens == next_token)
                self._acceptance.observe(log_probs, int(hits[0]) if len(hits) else None)
        last = path[-1]
        found = super().follow(path, token)
        if found is None:
            hits = np.flatnonzero(np.isfinite(self._scores[last]) & (self.proposed[last] == token))
            if len(hits):
                score = float(self.tree.scores[last] + self._scores[last, hits[0]])
                found = self.put([last], [token], [score])[0]
        return found

    def reroot(self, node: int) -> IntArray:
        """Prune to the subtree of a node, and make nodes of the candidates that are likely now."""
        kept = super().reroot(node)
        self._scores = self._scores[kept]
        self._admit(np.arange(len(kept)))
        return kept

    def undrafted_scores(self, most: int) -> FloatArray:
        """Return the scores [n] of the nodes that `grow_likeliest` would draft, likeliest first."""
        if self.names[ROOT] == NO_NAME or not self.drafted[ROOT]:
            return np.zeros(1)
        scores = self.tree.effective_scores()
        found = scores[(self.names != NO_NAME) & ~self.drafted & (scores >= self._floor)]
        likeliest: FloatArray = -np.sort(-found)[:most]
        return likeliest

    def withdraw(self, grow: Grow) -> None:
        """Take back a command whose forward has not begun."""
        self.drafted[np.isin(self.names, grow.nodes)] = False

    def grow_likeliest(self, most: int) -> Grow | None:
        """Return the command that drafts below the `most` likeliest undrafted nodes, if there are any."""
        if self.names[ROOT] == NO_NAME:
            self.regrow()
        if not self.drafted[ROOT]:
            return self.grow([ROOT])
        scores = self.tree.effective_scores()
        found = np.flatnonzero((self.names != NO_NAME) & ~self.drafted & (scores >= self._floor))
        nodes = np.sort(found[np.argsort(-scores[found], kind="stable")[:most]])
        return self.grow(nodes.tolist()) if len(nodes) else None

    def take(self, layer: Layer) -> list[int]:
        self.drafted_layers += 1
        nodes = super().take(layer)
        self._scores[nodes] = self._acceptance.log_share(self.log_probs[nodes])
        self._scores[self.proposed < 0] = -np.inf
        self._admit(np.array(nodes, dtype=np.int64))
        return nodes

    def _admit(self, nodes: IntArray) -> None:
        """Make nodes of the likely candidates below `nodes`; candidates that are nodes get new scores."""
        scores = self.tree.scores[nodes, None] + self._scores[nodes]
        rows, columns = np.nonzero(scores >= self._floor)
        parents = nodes[rows]
        self.put(parents.tolist(), self.proposed[parents, columns].tolist(), scores[rows, columns].tolist())

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        nodes = super().put(parents, tokens, scores)
        self._scores = padded(self._scores, len(self.tree), -np.inf)
        return nodes
