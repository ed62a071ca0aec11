"""A draft tree of the likely proposals, which stores the unlikely proposals below each node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.tree import ROOT
from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.commands import Grow
from flowedge.strategies.events import Layer
from flowedge.strategies.named_tree import NO_NAME, NamedTree


class CandidateTree(NamedTree):
    """The tree, and for each node its candidates: the drafter's proposals below it.

    A candidate becomes a node when its probability, given the root, reaches the least probability of a node.
    As the root moves on, unlikely candidates become likely without another forward of the drafter. A new
    growth begins at the root with the true features; nodes get new names and scores as their parents are
    drafted again.

    Attributes:
        tree: scores are log-probabilities of acceptance, given the root.
        drafted_layers: number of layers since the tree was begun.
    """

    def __init__(self, width: int, floor: float, acceptance: ProposalAcceptance) -> None:
        """`width` is the number of candidates of a node, `floor` the least log-probability of a node."""
        self._width = width
        self._floor = floor
        self._acceptance = acceptance
        super().__init__()

    def restart(self, token: int, context: int) -> None:
        super().restart(token, context)
        self.drafted_layers = 0
        self._tokens: IntArray = np.full((1, self._width), -1, dtype=np.int64)  # of each node's candidates
        self._log_probs: FloatArray = np.full((1, self._width), -np.inf)  # by the drafter
        self._scores: FloatArray = np.full((1, self._width), -np.inf)  # by ProposalAcceptance

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
            known = self._tokens[node] >= 0
            if known.any():
                hits = np.flatnonzero(self._tokens[node][known] == next_token)
                self._acceptance.observe(self._log_probs[node][known], int(hits[0]) if len(hits) else None)
        last = path[-1]
        found = super().follow(path, token)
        if found is None:
            hits = np.flatnonzero(np.isfinite(self._scores[last]) & (self._tokens[last] == token))
            if len(hits):
                score = float(self.tree.scores[last] + self._scores[last, hits[0]])
                found = self.put([last], [token], [score])[0]
        return found

    def reroot(self, node: int) -> IntArray:
        """Prune to the subtree of a node, and make nodes of the candidates that are likely now."""
        kept = super().reroot(node)
        self._tokens, self._scores = self._tokens[kept], self._scores[kept]
        self._log_probs = self._log_probs[kept]
        self._admit(np.arange(len(kept)))
        return kept

    def grow_likeliest(self, most: int) -> Grow | None:
        """Return the command that drafts below the `most` likeliest undrafted nodes, if there are any."""
        if self.names[ROOT] == NO_NAME:
            self.regrow()
        if not self.drafted[ROOT]:
            nodes = np.array([ROOT])
        else:
            scores = self.tree.effective_scores()
            found = np.flatnonzero((self.names != NO_NAME) & ~self.drafted & (scores >= self._floor))
            nodes = np.sort(found[np.argsort(-scores[found], kind="stable")[:most]])
        return self.grow(nodes, self._width) if len(nodes) else None

    def take(self, layer: Layer) -> None:
        """Store the proposals below nodes that are still in the tree, as their candidates."""
        self.drafted_layers += 1
        living = self.nodes_by_name()
        found = [i for i, name in enumerate(layer.nodes) if name in living]
        nodes = np.array([living[layer.nodes[i]] for i in found], dtype=np.int64)
        width = layer.tokens.shape[1]
        log_probs = layer.log_probs[found]
        self._tokens[nodes], self._log_probs[nodes], self._scores[nodes] = -1, -np.inf, -np.inf
        self._tokens[nodes, :width] = layer.tokens[found]
        self._log_probs[nodes, :width] = log_probs
        self._scores[nodes, :width] = self._acceptance.log_share(log_probs)
        self._scores[self._tokens < 0] = -np.inf
        self._admit(nodes)

    def _admit(self, nodes: IntArray) -> None:
        """Make nodes of the likely candidates below `nodes`; candidates that are nodes get new scores."""
        scores = self.tree.scores[nodes, None] + self._scores[nodes]
        rows, columns = np.nonzero(scores >= self._floor)
        parents = nodes[rows]
        self.put(parents.tolist(), self._tokens[parents, columns].tolist(), scores[rows, columns].tolist())

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        nodes = super().put(parents, tokens, scores)
        added = ((0, len(self.tree) - len(self._tokens)), (0, 0))
        self._tokens = np.pad(self._tokens, added, constant_values=-1)
        self._log_probs = np.pad(self._log_probs, added, constant_values=-np.inf)
        self._scores = np.pad(self._scores, added, constant_values=-np.inf)
        return nodes
