"""A draft tree whose nodes have the names by which the drafter knows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import BoolArray, IntArray
from flowedge.core.tree import ROOT, DraftTree
from flowedge.strategies.commands import AcceptPath, Emit, Grow
from flowedge.strategies.events import Verified
from flowedge.strategies.tree_commands import accept_path, verified_path

NO_NAME = -1  # of a node whose parent was not drafted in the present growth


class NamedTree:
    """A tree and the growth of the drafter that it is drafted in.

    A prune renumbers the nodes. A node keeps its name as long as the growth lasts, because the drafter keeps
    its scratch by name.

    Attributes:
        names: int64 [n] name of each node, or NO_NAME.
        drafted: bool [n], whether a Grow command of this growth has asked for the node's children.
    """

    def __init__(self) -> None:
        self._growth = -1  # growth 0 is that of the tree before the first token
        self.restart(0, 0)

    def restart(self, token: int, context: int) -> None:
        """Begin a tree of one node and a new growth."""
        self.tree = DraftTree(token, context)
        self.regrow()

    def regrow(self) -> None:
        """Begin a new growth at the root of the tree."""
        self._growth += 1
        self._next_name = ROOT + 1
        size = len(self.tree)
        self.names: IntArray = np.full(size, NO_NAME, dtype=np.int64)
        self.names[ROOT] = ROOT
        self._parent_names: IntArray = np.full(size, -1, dtype=np.int64)
        self.drafted: BoolArray = np.zeros(size, dtype=np.bool_)

    def grow(self, nodes: Sequence[int] | IntArray, width: int) -> Grow:
        """Return the command that computes `width` children of each node."""
        nodes = np.array(nodes, dtype=np.int64)
        self.drafted[nodes] = True
        return Grow(
            growth=self._growth,
            nodes=tuple(self.names[nodes].tolist()),
            parents=tuple(self._parent_names[nodes].tolist()),
            tokens=tuple(self.tree.tokens[nodes].tolist()),
            width=width,
        )

    def nodes_by_name(self) -> dict[int, int]:
        return {name: node for node, name in enumerate(self.names.tolist()) if name != NO_NAME}

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        """Add nodes as DraftTree.put does, and name the nodes below drafted parents."""
        nodes = self.tree.put(parents, tokens, scores)
        added = len(self.tree) - len(self.names)
        self.names = np.pad(self.names, (0, added), constant_values=NO_NAME)
        self._parent_names = np.pad(self._parent_names, (0, added), constant_values=-1)
        self.drafted = np.pad(self.drafted, (0, added))
        for node, parent in zip(nodes, parents, strict=True):
            if self.names[node] == NO_NAME and self.drafted[parent]:
                self.names[node], self._next_name = self._next_name, self._next_name + 1
                self._parent_names[node] = self.names[parent]
        return nodes

    def reroot(self, node: int) -> IntArray:
        """Prune as DraftTree.reroot does."""
        kept = self.tree.reroot(node)
        self.names, self._parent_names = self.names[kept], self._parent_names[kept]
        self.drafted = self.drafted[kept]
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
