"""A draft tree that goes on growing while its root moves on, with the drafter's proposals below its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flowedge.core.arrays import BoolArray, FloatArray, IntArray
from flowedge.core.tree import ROOT, UNSENT, DraftTree
from flowedge.strategies.commands import AcceptPath, Emit, Grow
from flowedge.strategies.events import Layer, Verified
from flowedge.strategies.tree_commands import accept_path, verified_path

_Scalar = TypeVar("_Scalar", bound=np.generic)
NO_NAME = -1  # of a node whose parent was not drafted in the present growth


def padded(array: npt.NDArray[_Scalar], size: int, fill: float) -> npt.NDArray[_Scalar]:
    """Return the array [n, ...] with rows of `fill` behind it: [size, ...]."""
    count = len(array)
    if count == size:
        return array
    longer = np.empty((size, *array.shape[1:]), dtype=array.dtype)
    longer[:count], longer[count:] = array, fill
    return longer


class ProposalTree:
    """A tree, the growth of the drafter that it is drafted in, and `width` proposals below each node.

    A prune renumbers the nodes. A node keeps its name as long as the growth lasts, because the drafter keeps
    its scratch by name. When the root moves on, the drafter continues in its own branch, as a language model
    does; it gets the target's true features when a new growth begins.

    Attributes:
        names: int64 [n] name of each node, or NO_NAME.
        drafted: bool [n], whether a Grow command of this growth has asked for the node's children.
        computed: bool [n], whether the proposals below the node are known.
        proposed: int64 [n, width] tokens, likeliest first, with negative tokens behind the last.
        log_probs: float64 [n, width], by the drafter; -inf where there is no token.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._growth = -1  # growth 0 is that of the tree before the first token
        self.restart(0, 0)

    def restart(self, token: int, context: int) -> None:
        """Begin a tree of one node and a new growth."""
        self.tree = DraftTree(token, context)
        self.computed: BoolArray = np.zeros(1, dtype=np.bool_)
        self.proposed: IntArray = np.full((1, self._width), -1, dtype=np.int64)
        self.log_probs: FloatArray = np.full((1, self._width), -np.inf)
        self.regrow()

    def regrow(self) -> None:
        """Begin a new growth at the root; nodes get names again as their parents are drafted."""
        self._growth += 1
        self._next_name = ROOT + 1
        size = len(self.tree)
        self.names: IntArray = np.full(size, NO_NAME, dtype=np.int64)
        self.names[ROOT] = ROOT
        self._parent_names: IntArray = np.full(size, -1, dtype=np.int64)
        self.drafted: BoolArray = np.zeros(size, dtype=np.bool_)

    def grow(self, nodes: Sequence[int]) -> Grow:
        """Return the command that computes the proposals below each node."""
        nodes = list(nodes)
        self.drafted[nodes] = True
        return Grow(
            growth=self._growth,
            nodes=tuple(self.names[nodes].tolist()),
            parents=tuple(self._parent_names[nodes].tolist()),
            tokens=tuple(self.tree.tokens[nodes].tolist()),
            width=self._width,
        )

    def take(self, layer: Layer) -> list[int]:
        """Store the proposals below nodes that are still in the tree; returns these nodes."""
        places = self._nodes_by_name()
        living = [(row, places[name]) for row, name in enumerate(layer.nodes) if name in places]
        rows, nodes = [row for row, _ in living], [node for _, node in living]
        width = layer.tokens.shape[1]
        self.computed[nodes] = True
        self.proposed[nodes], self.log_probs[nodes] = -1, -np.inf
        self.proposed[nodes, :width] = layer.tokens[rows]
        self.log_probs[nodes, :width] = layer.log_probs[rows]
        return nodes

    def proposals(self, node: int) -> tuple[IntArray, FloatArray]:
        """Return the tokens and log-probabilities that are proposed below a node, [c] each."""
        known = self.proposed[node] >= 0
        return self.proposed[node][known], self.log_probs[node][known]

    def add(self, parents: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Make nodes of proposals, parents before children; returns the nodes."""
        scores = [float(self.tree.scores[p]) + lp for p, lp in zip(parents, log_probs, strict=True)]
        return self.put(parents, tokens, scores)

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        """Add nodes as DraftTree.put does, and name the nodes below drafted parents."""
        nodes = self.tree.put(parents, tokens, scores)
        size = len(self.tree)
        self.names = padded(self.names, size, NO_NAME)
        self._parent_names = padded(self._parent_names, size, -1)
        self.drafted, self.computed = padded(self.drafted, size, False), padded(self.computed, size, False)
        self.proposed, self.log_probs = padded(self.proposed, size, -1), padded(self.log_probs, size, -np.inf)
        if nodes:
            unnamed = (self.names[nodes] == NO_NAME) & self.drafted[list(parents)]
            for place in np.flatnonzero(unnamed).tolist():
                node = nodes[place]
                if self.names[node] == NO_NAME:  # the first time that the node is put
                    self.names[node], self._next_name = self._next_name, self._next_name + 1
                    self._parent_names[node] = self.names[parents[place]]
        return nodes

    def reroot(self, node: int) -> IntArray:
        """Prune as DraftTree.reroot does."""
        kept = self.tree.reroot(node)
        self.names, self._parent_names = self.names[kept], self._parent_names[kept]
        self.drafted, self.computed = self.drafted[kept], self.computed[kept]
        self.proposed, self.log_probs = self.proposed[kept], self.log_probs[kept]
        return kept

    def follow(self, path: Sequence[int], token: int) -> int | None:
        """Return the node of the token drawn after a path from the root, if there is one."""
        return self.tree.child(path[-1], token)

    def advance(self, event: Verified) -> tuple[Emit, AcceptPath]:
        """Move the root to the drawn token, in this tree or in a new one; returns the commands for it."""
        path, emit = verified_path(self.tree, event)
        root = self.follow(path, event.token)
        accept = accept_path(self.tree, event, root)
        if root is None:
            self.restart(event.token, self.tree.context + len(path))
        else:
            self.reroot(root)
        return emit, accept

    def living(self, names: Sequence[int]) -> list[int]:
        """Return the nodes with these names that are still in the tree, in the same order."""
        nodes = self._nodes_by_name()
        return [nodes[name] for name in names if name in nodes]

    def _nodes_by_name(self) -> dict[int, int]:
        named = np.flatnonzero(self.names != NO_NAME)
        return dict(zip(self.names[named].tolist(), named.tolist(), strict=True))

    def unsent(self) -> list[int]:
        """Return the unsent nodes, in the order of their addition."""
        return [int(node) for node in np.flatnonzero(self.tree.rows == UNSENT)]

    def deepest(self) -> list[int]:
        return [int(node) for node in np.flatnonzero(self.tree.depths == self.tree.depths.max())]

    def leaves(self) -> list[int]:
        """Return the nodes without children."""
        is_leaf = np.ones(len(self.tree), dtype=np.bool_)
        is_leaf[self.tree.parents[1:]] = False
        return [int(node) for node in np.flatnonzero(is_leaf)]
