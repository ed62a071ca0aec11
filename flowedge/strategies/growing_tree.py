"""A draft tree that goes on growing at the bottom while its root moves on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.tree import ROOT, UNSENT, DraftTree
from flowedge.strategies.commands import Grow
from flowedge.strategies.events import Layer


@dataclass(frozen=True, eq=False)
class Proposals:
    """The drafter's proposals below a node, likeliest first.

    Attributes:
        tokens: int64 [c]; c is 0 where the drafter proposes nothing.
        log_probs: float64 [c].
    """

    tokens: IntArray
    log_probs: FloatArray


class GrowingTree:
    """A growth of the drafter; `tree` holds the nodes that no prune has removed.

    A node keeps its name when a prune renumbers the nodes, because the drafter keeps its scratch by name.
    When the root moves on, the drafter continues in its own branch, as a language model does. It gets the
    target's true features only when a new tree begins.
    """

    def __init__(self) -> None:
        self.tree = DraftTree(0, 0)
        self._growth = 0
        self._next_name = 0
        self._names: list[int] = []  # of each node of the tree
        self._parent_names: list[int] = []
        self._proposals: dict[int, Proposals] = {}  # by name

    def restart(self, token: int, context: int) -> None:
        """Begin a new growth with a tree of one node."""
        self.tree = DraftTree(token, context)
        self._growth += 1
        self._next_name = 1
        self._names, self._parent_names = [ROOT], [-1]
        self._proposals = {}

    def grow(self, nodes: Sequence[int], width: int) -> Grow:
        """Return the command that has `width` children of each node proposed."""
        return Grow(
            growth=self._growth,
            nodes=tuple(self._names[node] for node in nodes),
            parents=tuple(self._parent_names[node] for node in nodes),
            tokens=tuple(self.tree.tokens[list(nodes)].tolist()),
            width=width,
        )

    def take(self, layer: Layer) -> list[int]:
        """Store the proposals below nodes that are still in the tree; returns these nodes."""
        living = set(self._names)
        for name, tokens, log_probs in zip(layer.nodes, layer.tokens, layer.log_probs, strict=True):
            if name in living:
                self._proposals[name] = Proposals(tokens[tokens >= 0], log_probs[tokens >= 0])
        return self.living(layer.nodes)

    def proposals(self, node: int) -> Proposals | None:
        """Return the proposals below a node, None before the drafter has computed them."""
        return self._proposals.get(self._names[node])

    def add(self, parents: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Add proposals to the tree, parents before children; returns their nodes."""
        scores = [float(self.tree.scores[p]) + lp for p, lp in zip(parents, log_probs, strict=True)]
        nodes = self.tree.put(parents, tokens, scores)
        for node, parent in zip(nodes, parents, strict=True):
            if node == len(self._names):
                self._names.append(self._next_name)
                self._parent_names.append(self._names[parent])
                self._next_name += 1
        return nodes

    def name(self, node: int) -> int:
        return self._names[node]

    def living(self, names: Sequence[int]) -> list[int]:
        """Return the nodes with these names that are still in the tree, in the same order."""
        nodes = {name: node for node, name in enumerate(self._names)}
        return [nodes[name] for name in names if name in nodes]

    def reroot(self, node: int) -> None:
        """Prune to the subtree of a node."""
        kept = self.tree.reroot(node).tolist()
        self._names = [self._names[old] for old in kept]
        self._parent_names = [self._parent_names[old] for old in kept]
        self._proposals = {name: self._proposals[name] for name in self._names if name in self._proposals}

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
