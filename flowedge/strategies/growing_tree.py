"""A draft tree that goes on growing at the bottom while its root moves on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.tree import UNSENT
from flowedge.strategies.events import Layer
from flowedge.strategies.named_tree import NamedTree


@dataclass(frozen=True, eq=False)
class Proposals:
    """The drafter's proposals below a node, likeliest first.

    Attributes:
        tokens: int64 [c]; c is 0 where the drafter proposes nothing.
        log_probs: float64 [c].
    """

    tokens: IntArray
    log_probs: FloatArray


class GrowingTree(NamedTree):
    """A tree of a single growth, with the drafter's proposals below its nodes.

    When the root moves on, the drafter continues in its own branch, as a language model does. It gets the
    target's true features only when a new tree begins.
    """

    def restart(self, token: int, context: int) -> None:
        super().restart(token, context)
        self._proposals: dict[int, Proposals] = {}  # by name

    def take(self, layer: Layer) -> list[int]:
        """Store the proposals below nodes that are still in the tree; returns these nodes."""
        living = self.nodes_by_name()
        for name, tokens, log_probs in zip(layer.nodes, layer.tokens, layer.log_probs, strict=True):
            if name in living:
                self._proposals[name] = Proposals(tokens[tokens >= 0], log_probs[tokens >= 0])
        return [living[name] for name in layer.nodes if name in living]

    def proposals(self, node: int) -> Proposals | None:
        """Return the proposals below a node, None before the drafter has computed them."""
        return self._proposals.get(self.name(node))

    def add(self, parents: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Add proposals to the tree, parents before children; returns their nodes."""
        scores = [float(self.tree.scores[p]) + lp for p, lp in zip(parents, log_probs, strict=True)]
        return self.put(parents, tokens, scores)

    def reroot(self, node: int) -> IntArray:
        kept = super().reroot(node)
        names = self.nodes_by_name()
        self._proposals = {name: found for name, found in self._proposals.items() if name in names}
        return kept

    def name(self, node: int) -> int:
        return int(self.names[node])

    def living(self, names: Sequence[int]) -> list[int]:
        """Return the nodes with these names that are still in the tree, in the same order."""
        nodes = self.nodes_by_name()
        return [nodes[name] for name in names if name in nodes]

    def unsent(self) -> list[int]:
        """Return the unsent nodes, in the order of their addition."""
        return [int(node) for node in np.flatnonzero(self.tree.rows == UNSENT)]

    def deepest(self) -> list[int]:
        """Return the nodes of the deepest level."""
        return [int(node) for node in np.flatnonzero(self.tree.depths == self.tree.depths.max())]

    def leaves(self) -> list[int]:
        """Return the nodes without children."""
        is_leaf = np.ones(len(self.tree), dtype=np.bool_)
        is_leaf[self.tree.parents[1:]] = False
        return [int(node) for node in np.flatnonzero(is_leaf)]
