"""A draft tree that goes on growing while its root moves on, with the drafter's proposals below its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flowedge.core.arrays import BoolArray, FloatArray, IntArray
from flowedge.core.tree import ROOT, UNSENT, DraftTree
from flowedge.strategies.commands import AcceptPath, Emit, Grow
from flowedge.strategies.events import Layer, Verified
from flowedge.strategies.tree_commands import accept_path, verified_path

_Scalar = TypeVar("_Scalar", bound=np.generic)
NO_NAME = -1  # of a node whose parent was not drafted in the present growth
_SPARE = 64  # rows of the first tree's arrays


def lengthened(array: npt.NDArray[_Scalar], size: int, fill: float) -> npt.NDArray[_Scalar]:
    """Return the array [n, ...] with rows of `fill` behind it: [size, ...]."""
    longer = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
    longer[: len(array)] = array
    return longer


def extended(array: npt.NDArray[_Scalar], size: int, fill: float) -> npt.NDArray[_Scalar]:
    """Return the array [..., n] with `fill` behind its values: [..., size]."""
    longer = np.full((*array.shape[:-1], size), fill, dtype=array.dtype)
    longer[..., : array.shape[-1]] = array
    return longer


def move_rows(array: npt.NDArray[Any], kept: IntArray) -> None:
    """Move the rows `kept`, ascending, to the front of an array [n, ...]."""
    array[: len(kept)] = array.take(kept, axis=0)


def keep_nodes(array: npt.NDArray[Any], kept: IntArray, fill: float) -> None:
    """Move the values of the nodes `kept`, ascending, to the front of an array [..., n]; fill the rest."""
    array[..., : len(kept)] = array.take(kept, axis=-1)
    array[..., len(kept) :] = fill


class ProposalTree:
    """A tree, the growth of the drafter that it is drafted in, and `width` proposals below each node.

    A prune renumbers the nodes. A node keeps its name as long as the growth lasts, because the drafter keeps
    its scratch by name. When the root moves on, the drafter continues in its own branch, as a language model
    does; it gets the target's true features when a new growth begins.

    The arrays have a row for each of the n nodes, and spare rows behind them for nodes to come. A spare row
    is that of a node without a name and without known proposals.

    Attributes:
        names: int64 [n + spare] name of each node, or NO_NAME.
        drafted: bool [n + spare], whether a Grow command of this growth has asked for the node's children.
        computed: bool [n + spare], whether the proposals below the node are known.
        proposed: int64 [n + spare, width] tokens below computed nodes, likeliest first, with negative tokens
            behind the last.
        log_probs: float64 [n + spare, width], by the drafter; -inf where there is no token.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._growth = -1  # growth 0 is that of the tree before the first token
        # The names of nodes and of their parents; whether they are drafted and computed: [2, n + spare] each.
        self._both_names: IntArray = np.full((2, _SPARE), NO_NAME, dtype=np.int64)
        self._flags: BoolArray = np.zeros((2, _SPARE), dtype=np.bool_)
        self.names, self._parent_names = self._both_names
        self.drafted, self.computed = self._flags
        self.proposed: IntArray = np.full((_SPARE, width), -1, dtype=np.int64)
        self.log_probs: FloatArray = np.full((_SPARE, width), -np.inf)
        self.restart(0, 0)

    def restart(self, token: int, context: int) -> None:
        """Begin a tree of one node and a new growth."""
        self.tree = DraftTree(token, context)
        self.computed[:] = False
        self.regrow()

    def regrow(self) -> None:
        """Begin a new growth at the root; nodes get names again as their parents are drafted."""
        self._growth += 1
        self._next_name = ROOT + 1
        self._both_names.fill(NO_NAME)
        self.names[ROOT] = ROOT
        self.drafted[:] = False

    def grow(self, nodes: Sequence[int] | IntArray) -> Grow:
        """Return the command that computes the proposals below each node."""
        chosen = np.array(nodes, dtype=np.int64)
        self.drafted[chosen] = True
        return Grow(
            growth=self._growth,
            nodes=tuple(self.names[chosen].tolist()),
            parents=tuple(self._parent_names[chosen].tolist()),
            tokens=tuple(self.tree.tokens[chosen].tolist()),
            width=self._width,
        )

    def take(self, layer: Layer) -> list[int]:
        """Store the proposals below nodes that are still in the tree; returns these nodes."""
        taken: list[int] = self.store(layer)[0].tolist()
        return taken

    def store(self, layer: Layer) -> tuple[IntArray, IntArray, FloatArray]:
        """Store the proposals below nodes that are still in the tree.

        Returns:
            These nodes [k], their rows of `proposed` and their rows of `log_probs`, [k, width] each.
        """
        rows, nodes = self.places(layer.nodes)
        proposed, log_probs = layer.tokens.take(rows, axis=0), layer.log_probs.take(rows, axis=0)
        missing = self._width - proposed.shape[1]
        if missing:
            proposed = np.pad(proposed, ((0, 0), (0, missing)), constant_values=-1)
            log_probs = np.pad(log_probs, ((0, 0), (0, missing)), constant_values=-np.inf)
        self.computed[nodes], self.proposed[nodes], self.log_probs[nodes] = True, proposed, log_probs
        return nodes, proposed, log_probs

    def proposals(self, node: int) -> tuple[IntArray, FloatArray]:
        """Return the tokens and log-probabilities that are proposed below a node, [c] each."""
        if not self.computed[node]:
            return self.proposed[node, :0], self.log_probs[node, :0]
        known = self.proposed[node] >= 0
        return self.proposed[node][known], self.log_probs[node][known]

    def add(self, parents: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """Make nodes of proposals, parents before children; returns the nodes."""
        scores = [float(self.tree.scores[p]) + lp for p, lp in zip(parents, log_probs, strict=True)]
        nodes = self.tree.put(parents, tokens, scores)
        self.lengthen()
        self.name_nodes(np.array(nodes, dtype=np.int64))
        return nodes

    def lengthen(self) -> None:
        """Make the arrays longer if they have fewer rows than the tree has nodes."""
        if len(self.tree) <= len(self.names):
            return
        size = 2 * len(self.tree)
        self._both_names = extended(self._both_names, size, NO_NAME)
        self._flags = extended(self._flags, size, False)
        self.names, self._parent_names = self._both_names
        self.drafted, self.computed = self._flags
        self.proposed = lengthened(self.proposed, size, -1)
        self.log_probs = lengthened(self.log_probs, size, -np.inf)

    def name_nodes(self, nodes: IntArray) -> None:
        """Give names to those of the nodes that have none and whose parents are drafted."""
        nodes = nodes[self.names[nodes] == NO_NAME]
        if not len(nodes):
            return
        parents = self.tree.parents[nodes]
        drafted = self.drafted[parents]
        nodes, parents = nodes[drafted], parents[drafted]
        self.names[nodes] = np.arange(self._next_name, self._next_name + len(nodes))
        self._parent_names[nodes] = self.names[parents]
        self._next_name += len(nodes)

    def reroot(self, node: int) -> IntArray:
        """Prune as DraftTree.reroot does."""
        kept = self.tree.reroot(node)
        keep_nodes(self._both_names, kept, NO_NAME)
        keep_nodes(self._flags, kept, False)
        move_rows(self.proposed, kept)
        move_rows(self.log_probs, kept)
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
        nodes: list[int] = self.places(names)[1].tolist()
        return nodes

    def places(self, names: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Return which names of this growth are in the tree, as indices, and their nodes: int64 [k] each."""
        count = len(self.tree)
        by_name = np.empty(self._next_name + 1, dtype=np.int64)
        by_name.fill(-1)
        by_name[self.names[:count]] = np.arange(count)
        by_name[NO_NAME] = -1  # the last place, where the nodes without a name are
        nodes = by_name[list(names)]
        found = (nodes >= 0).nonzero()[0]
        return found, nodes[found]

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
