"""A draft tree that goes on growing at the bottom while its root moves on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.core.tree import ROOT, UNSENT, DraftTree
from flowedge.strategies.base import Grow, Layer, Send


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the drafter proposes below a node: tokens int64 [c], likeliest first; log_probs float64 [c].

    c is 0 where it proposes nothing.
    """

    tokens: IntArray
    log_probs: FloatArray


class LiveTree:
    """One growth of the drafter, of which `tree` is what still lives.

    A node's name stays when the tree is pruned and renumbered: the drafter keeps its scratch by it. The
    drafter goes on from its own branch when the root moves down it, as a language model would; it is given
    the true features when a new tree begins.
    """

    def __init__(self) -> None:
        self.tree = DraftTree(0, 0)
        self._growth = 0
        self._next_name = 0
        self._names: list[int] = []  # of each node of the tree
        self._parent_names: list[int] = []
        self._drafted: dict[int, Candidates] = {}  # by name

    def restart(self, token: int, context: int) -> None:
        """A tree of one node, and a new growth."""
        self.tree = DraftTree(token, context)
        self._growth += 1
        self._next_name = 1
        self._names, self._parent_names = [ROOT], [-1]
        self._drafted = {}

    def grow(self, nodes: Sequence[int], width: int) -> Grow:
        """The command that has the children of `nodes` proposed."""
        return Grow(
            growth=self._growth,
            nodes=tuple(self._names[node] for node in nodes),
            parents=tuple(self._parent_names[node] for node in nodes),
            tokens=tuple(self.tree.tokens[list(nodes)].tolist()),
            width=width,
        )

    def take(self, layer: Layer) -> list[int]:
        """Keep what is proposed below nodes that still live; returns those nodes."""
        living = {name: node for node, name in enumerate(self._names)}
        for name, tokens, log_probs in zip(layer.nodes, layer.tokens, layer.log_probs, strict=True):
            if name in living:
                self._drafted[name] = Candidates(tokens[tokens >= 0], log_probs[tokens >= 0])
        return [living[name] for name in layer.nodes if name in living]

    def candidates(self, node: int) -> Candidates | None:
        """What is proposed below a node, once it is known."""
        return self._drafted.get(self._names[node])

    def add(self, parents: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Add candidates to the tree, their parents first; returns their nodes."""
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
        """The nodes of these names that are still in the tree, in the same order."""
        nodes = {name: node for node, name in enumerate(self._names)}
        return [nodes[name] for name in names if name in nodes]

    def reroot(self, node: int) -> None:
        """Prune to the subtree of a node."""
        kept = self.tree.reroot(node).tolist()
        self._names = [self._names[old] for old in kept]
        self._parent_names = [self._parent_names[old] for old in kept]
        self._drafted = {name: self._drafted[name] for name in self._names if name in self._drafted}

    def send(self, nodes: Sequence[int]) -> Send:
        """The command that sends unsent nodes as a segment."""
        parents = self.tree.mark_sent(nodes)
        return Send(tuple(self.tree.tokens[list(nodes)].tolist()), tuple(parents))

    def unsent(self) -> list[int]:
        """The nodes that are not sent, in the order they were added."""
        return [int(node) for node in np.flatnonzero(self.tree.rows == UNSENT)]

    def deepest(self) -> list[int]:
        """The nodes of the deepest level."""
        return [int(node) for node in np.flatnonzero(self.tree.depths == self.tree.depths.max())]

    def leaves(self) -> list[int]:
        """The nodes without children."""
        is_leaf = np.ones(len(self.tree), dtype=np.bool_)
        is_leaf[self.tree.parents[1:]] = False
        return [int(node) for node in np.flatnonzero(is_leaf)]
