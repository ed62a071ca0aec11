"""The draft tree: proposed tokens with their scores, and the rows under which they were sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray

UNSENT = -1
ROOT = 0


def subtree(parents: IntArray, depths: IntArray, node: int) -> IntArray:
    """Return `node` and its descendants, ascending: int64 [k].

    Args:
        parents: int64 [n], parent of each node.
        depths: int64 [n], one more than the parent's; any value for the roots.
    """
    inside = np.zeros(len(parents), dtype=np.bool_)
    inside[node] = True
    for depth in range(int(depths[node]) + 1, int(depths.max()) + 1):
        layer = np.flatnonzero(depths == depth)
        inside[layer] = inside[parents[layer]]
    return np.flatnonzero(inside)


class DraftTree:
    """A tree of draft tokens; node 0 is the root, the token that the target drew last (x_new).

    Nodes are numbered in the order of their addition, so a parent's number is below its children's. A node's
    score is the cumulative log-probability from the root (EAGLE-2; flowspec, equation 1). A node gets its
    row, the index in the session's sequence, when it is sent. The sent nodes have the rows from `context` on,
    without a gap.

    Attributes:
        context: number of context rows before the root, which is the root's absolute position.
        tokens: int64 [n] token ids.
        parents: int64 [n] parent nodes, -1 for the root.
        depths: int64 [n], 0 for the root.
        scores: float64 [n], 0 for the root.
        rows: int64 [n], UNSENT where the node was not sent.
    """

    def __init__(self, root_token: int, context: int) -> None:
        self.context = context
        self.tokens: IntArray = np.array([root_token], dtype=np.int64)
        self.parents: IntArray = np.array([-1], dtype=np.int64)
        self.depths: IntArray = np.zeros(1, dtype=np.int64)
        self.scores: FloatArray = np.zeros(1)
        self.rows: IntArray = np.array([UNSENT], dtype=np.int64)
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_sent(self) -> int:
        return int(np.count_nonzero(self.rows != UNSENT))

    @property
    def next_row(self) -> int:
        """The row that the next sent node will get."""
        return self.context + self.num_sent

    def child(self, node: int, token: int) -> int | None:
        """Return the child of `node` with `token`, if there is one."""
        return self._children.get((node, token))

    def node_of_row(self, row: int) -> int:
        """Return the node that was sent as `row`.

        Raises:
            KeyError: when there is no such node.
        """
        found = np.flatnonzero(self.rows == row)
        if len(found) != 1:
            raise KeyError(row)
        return int(found[0])

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        """Add nodes; a node that exists already (same parent, same token) gets the new score.

        Args:
            parents: existing nodes, or nodes that an earlier argument adds: the i-th new node has the number
                len(tree) + i.

        Returns:
            The node of each argument, in order.
        """
        nodes: list[int] = []
        fresh: list[int] = []  # the arguments that are new nodes
        size = len(self)
        for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
            node = self._children.setdefault((parent, token), size + len(fresh))
            if node == size + len(fresh):
                fresh.append(i)
            elif node < size:
                self.scores[node] = scores[i]
            nodes.append(node)
        if fresh:
            below = np.array([parents[i] for i in fresh], dtype=np.int64)
            self.depths = np.concatenate((self.depths, self._depths_below(below)))
            self.tokens = np.concatenate((self.tokens, np.array([tokens[i] for i in fresh], dtype=np.int64)))
            self.parents = np.concatenate((self.parents, below))
            self.scores = np.concatenate(
                (self.scores, np.array([scores[i] for i in fresh], dtype=np.float64))
            )
            self.rows = np.concatenate((self.rows, np.full(len(fresh), UNSENT, dtype=np.int64)))
        return nodes

    def _depths_below(self, parents: IntArray) -> IntArray:
        """The depths of new nodes with these parents, which may be new nodes before them."""
        size = len(self)
        if int(parents.max()) < size:
            own: IntArray = self.depths[parents] + 1
            return own
        depths: list[int] = []
        for parent in parents.tolist():
            depths.append((int(self.depths[parent]) if parent < size else depths[parent - size]) + 1)
        return np.array(depths, dtype=np.int64)

    def effective_scores(self) -> FloatArray:
        """Return min(own score, parent's effective score): float64 [n].

        A new score of a parent can therefore never rank a child before it.
        """
        effective: FloatArray = self.scores.copy()
        if (effective[1:] <= effective[self.parents[1:]]).all():
            return effective
        for depth in range(1, int(self.depths.max()) + 1):
            layer = np.flatnonzero(self.depths == depth)
            effective[layer] = np.minimum(effective[layer], effective[self.parents[layer]])
        return effective

    def ranking(self) -> IntArray:
        """Return all nodes, best first: int64 [n]; ties keep the order of addition, so parents come first."""
        order: IntArray = np.argsort(-self.effective_scores(), kind="stable")
        return order

    def best(self, count: int) -> list[int]:
        """Return the `count` best nodes, root included: a connected tree (EAGLE-2's re-ranking)."""
        return [int(node) for node in self.ranking()[:count]]

    def best_unsent(self, count: int) -> list[int]:
        """Return the `count` best unsent nodes, best first; a parent is sent, or earlier in the list."""
        ranking = self.ranking()
        return [int(node) for node in ranking[self.rows[ranking] == UNSENT][:count]]

    def mark_sent(self, nodes: Sequence[int]) -> list[int]:
        """Give rows to unsent nodes, in the order given; returns each node's parent row, -1 for the root.

        Raises:
            ValueError: when a node was sent already, or its parent has no row.
        """
        parent_rows: list[int] = []
        for row, node in enumerate(nodes, start=self.next_row):
            parent = int(self.parents[node])
            if self.rows[node] != UNSENT:
                raise ValueError(f"node {node} was sent already")
            if node != ROOT and self.rows[parent] == UNSENT:
                raise ValueError(f"node {node} would be sent before its parent {parent}")
            self.rows[node] = row
            parent_rows.append(-1 if node == ROOT else int(self.rows[parent]))
        return parent_rows

    def reroot(self, node: int) -> IntArray:
        """Prune to the subtree of `node`, which becomes the root (flowspec, section 3.3).

        The path above `node` becomes context. The remaining rows close up in the same order, and the new
        root's score is subtracted from the remaining scores.

        Returns:
            int64 [k]: the former number of each remaining node, ascending.
        """
        nodes, root_score = subtree(self.parents, self.depths, node), self.effective_scores()[node]
        self.context += int(self.depths[node])
        self._keep(nodes)
        self.depths = self.depths - self.depths[ROOT]
        self.scores = np.minimum(self.scores, root_score) - root_score
        sent = np.flatnonzero(self.rows != UNSENT)
        by_row = sent[np.argsort(self.rows[sent])]
        self.rows[by_row] = self.context + np.arange(len(by_row))
        return nodes

    def merge(self, other: DraftTree, nodes: Sequence[int]) -> None:
        """Add nodes of another tree; a node that both trees have takes the other tree's score.

        Args:
            other: a tree with the same root token at the same position.
            nodes: nodes of `other` that form a connected tree with its root.

        Raises:
            ValueError: when the roots differ.
        """
        if (other.tokens[ROOT], other.context) != (self.tokens[ROOT], self.context):
            raise ValueError("only trees with the same root can be merged")
        theirs = sorted(set(nodes) - {ROOT})
        tokens = other.tokens[theirs].tolist()
        ours, size = {ROOT: ROOT}, len(self)  # node of `other` -> node of this tree
        parents: list[int] = []
        for node, parent, token in zip(theirs, other.parents[theirs].tolist(), tokens, strict=True):
            twin = self.child(ours[parent], token)
            if twin is None:
                twin, size = size, size + 1
            ours[node] = twin
            parents.append(ours[parent])
        self.put(parents, tokens, other.scores[theirs].tolist())

    def drop_unsent_beyond(self, limit: int) -> None:
        """Remove the worst unsent nodes until `limit` nodes are left; the root and sent nodes stay."""
        if len(self) <= limit:
            return
        room = max(limit - self.num_sent, 0)
        sent = np.flatnonzero(self.rows != UNSENT)
        self._keep(np.union1d(sent, [ROOT, *self.best_unsent(room)]))

    def _keep(self, nodes: IntArray) -> None:
        """Keep only `nodes`, ascending, the first of which is or becomes the root; renumber them."""
        renumber = np.full(len(self), -1, dtype=np.int64)
        renumber[nodes] = np.arange(len(nodes))
        self.tokens, self.depths = self.tokens[nodes], self.depths[nodes]
        self.scores, self.rows = self.scores[nodes], self.rows[nodes]
        self.parents = renumber[self.parents[nodes]]
        self.parents[ROOT] = -1
        keys = zip(self.parents[1:].tolist(), self.tokens[1:].tolist(), strict=True)
        self._children = {key: node for node, key in enumerate(keys, start=1)}
