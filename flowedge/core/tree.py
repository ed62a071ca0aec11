"""The draft tree: proposed tokens with their scores, and the rows under which they were sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray

UNSENT = -1
ROOT = 0
_NOWHERE = np.array([-1])  # parent of a root
_SPARE = 64  # rows of a tree's arrays behind its nodes, when the arrays are made or made longer


def subtree(parents: IntArray, depths: IntArray, node: int) -> IntArray:
    """Return `node` and its descendants, ascending: int64 [k].

    Args:
        parents: int64 [n], parent of each node, negative for the roots.
        depths: int64 [n], one more than the parent's; any value for the roots.
    """
    # Behind all nodes is the place -1, the parent of the roots, which is its own parent.
    above = np.concatenate((np.maximum(parents, -1), _NOWHERE))
    above[node] = node
    levels = int(depths.max() - depths[node])
    for _ in range(levels.bit_length()):  # `above`: the ancestor 1, 2, 4, .. levels up, none above `node`
        above = above[above]
    inside: IntArray = (above == node).nonzero()[0]
    return inside


class DraftTree:
    """A tree of draft tokens; node 0 is the root, the token that the target drew last (x_new).

    Nodes are numbered in the order of their addition, so a parent's number is below its children's. A node's
    score is the cumulative log-probability from the root (EAGLE-2; flowspec, equation 1). A node gets its
    row, the index in the session's sequence, when it is sent. The sent nodes have the rows from `context` on,
    without a gap.

    Only the tree changes its arrays. They are views of longer arrays, so that an addition copies nothing.

    Attributes:
        context: number of context rows before the root, which is the root's absolute position.
        tokens: int64 [n] token ids.
        parents: int64 [n] parent nodes, -1 for the root.
        depths: int64 [n], 0 for the root.
        scores: float64 [n], 0 for the root.
        rows: int64 [n], UNSENT where the node was not sent.
    """

    tokens: IntArray
    parents: IntArray
    depths: IntArray
    scores: FloatArray
    rows: IntArray

    def __init__(self, root_token: int, context: int) -> None:
        self.context = context
        self._integers: IntArray = np.empty((4, _SPARE), dtype=np.int64)
        self._floats: FloatArray = np.empty(_SPARE)
        self._resize(1)
        self.tokens[ROOT], self.parents[ROOT], self.depths[ROOT], self.rows[ROOT] = root_token, -1, 0, UNSENT
        self.scores[ROOT] = 0.0
        self._sent: IntArray = np.empty(0, dtype=np.int64)  # the sent nodes, in the order of their rows
        self._children: dict[tuple[int, int], int] | None = None  # (parent, token) -> node, while it is known
        self._effective: FloatArray | None = None  # while scores and nodes stay as they are
        self._ranking: IntArray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_sent(self) -> int:
        return len(self._sent)

    @property
    def next_row(self) -> int:
        """The row that the next sent node will get."""
        return self.context + len(self._sent)

    def child(self, node: int, token: int) -> int | None:
        """Return the child of `node` with `token`, if there is one."""
        return self._children_by_token().get((node, token))

    def node_of_row(self, row: int) -> int:
        """Return the node that was sent as `row`.

        Raises:
            KeyError: when there is no such node.
        """
        if not self.context <= row < self.next_row:
            raise KeyError(row)
        return int(self._sent[row - self.context])

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        """Add nodes; a node that exists already (same parent, same token) gets the new score.

        Args:
            parents: existing nodes, or nodes that an earlier argument adds: the i-th new node has the number
                len(tree) + i.

        Returns:
            The node of each argument, in order.
        """
        children = self._children_by_token()
        nodes: list[int] = []
        fresh: list[int] = []  # the arguments that are new nodes
        size = len(self)
        for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
            node = children.setdefault((parent, token), size + len(fresh))
            if node == size + len(fresh):
                fresh.append(i)
            elif node < size:
                self.scores[node] = scores[i]
            nodes.append(node)
        self._effective = self._ranking = None
        if fresh:
            below = np.array([parents[i] for i in fresh], dtype=np.int64)
            self._extend(
                below,
                np.array([tokens[i] for i in fresh], dtype=np.int64),
                np.array([scores[i] for i in fresh], dtype=np.float64),
                self._depths_below(below),
            )
        return nodes

    def append(self, parents: IntArray, tokens: IntArray, scores: FloatArray) -> IntArray:
        """Add k nodes that the tree does not have, below existing nodes; returns their numbers: int64 [k]."""
        size = len(self)
        self._children = self._effective = self._ranking = None
        self._extend(parents, tokens, scores, self.depths[parents] + 1)
        return np.arange(size, len(self))

    def rescore(self, nodes: IntArray, scores: FloatArray) -> None:
        """Give nodes new scores."""
        self._effective = self._ranking = None
        self.scores[nodes] = scores

    def _extend(self, parents: IntArray, tokens: IntArray, scores: FloatArray, depths: IntArray) -> None:
        size = len(self)
        self._resize(size + len(parents))
        self.tokens[size:], self.parents[size:], self.depths[size:] = tokens, parents, depths
        self.scores[size:], self.rows[size:] = scores, UNSENT

    def _resize(self, size: int) -> None:
        """Set the number of nodes; what is said of added nodes is to be written."""
        if size > len(self._floats):
            shorter, floats, known = self._integers, self._floats, len(self)
            self._integers, self._floats = np.empty((4, 2 * size), dtype=np.int64), np.empty(2 * size)
            self._integers[:, :known], self._floats[:known] = shorter[:, :known], floats[:known]
        self.tokens, self.parents, self.depths, self.rows = self._integers[:, :size]
        self.scores = self._floats[:size]

    def _children_by_token(self) -> dict[tuple[int, int], int]:
        if self._children is None:
            keys = zip(self.parents[1:].tolist(), self.tokens[1:].tolist(), strict=True)
            self._children = {key: node for node, key in enumerate(keys, start=1)}
        return self._children

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
        """Return min(own score, parent's effective score): float64 [n], which is not to be changed.

        A new score of a parent can therefore never rank a child before it.
        """
        if self._effective is None:
            self._effective = self._least_above()
        return self._effective

    def _least_above(self) -> FloatArray:
        """Return the least score on the way from each node to the root."""
        least: FloatArray = self.scores.copy()
        above = self.parents.copy()
        above[ROOT] = ROOT
        while True:  # `least`: over a node and the 0, 1, 3, 7, .. nodes above it; `above`: the next of these
            further = np.minimum(least, least[above])
            if not (further < least).any():
                return least
            least, above = further, above[above]

    def ranking(self) -> IntArray:
        """Return all nodes, best first: int64 [n], which is not to be changed.

        Ties keep the order of addition, so parents come first.
        """
        if self._ranking is None:
            self._ranking = np.argsort(-self.effective_scores(), kind="stable")
        return self._ranking

    def best(self, count: int) -> list[int]:
        """Return the `count` best nodes, root included: a connected tree (EAGLE-2's re-ranking)."""
        nodes: list[int] = self.ranking()[:count].tolist()
        return nodes

    def best_unsent(self, count: int) -> list[int]:
        """Return the `count` best unsent nodes, best first; a parent is sent, or earlier in the list."""
        ranking = self.ranking()
        nodes: list[int] = ranking[self.rows[ranking] == UNSENT][:count].tolist()
        return nodes

    def mark_sent(self, nodes: Sequence[int]) -> list[int]:
        """Give rows to unsent nodes, in the order given; returns each node's parent row, -1 for the root.

        Raises:
            ValueError: when a node was sent already, or its parent has no row.
        """
        rows: list[int] = self.rows.tolist()
        chosen = np.array(nodes, dtype=np.int64)
        parents = self.parents[chosen].tolist()
        parent_rows: list[int] = []
        for row, (node, parent) in enumerate(zip(nodes, parents, strict=True), start=self.next_row):
            if rows[node] != UNSENT:
                raise ValueError(f"node {node} was sent already")
            if node != ROOT and rows[parent] == UNSENT:
                raise ValueError(f"node {node} would be sent before its parent {parent}")
            rows[node] = row
            parent_rows.append(-1 if node == ROOT else rows[parent])
        self.rows[chosen] = np.arange(self.next_row, self.next_row + len(chosen))
        self._sent = np.concatenate((self._sent, chosen))
        return parent_rows

    def reroot(self, node: int) -> IntArray:
        """Prune to the subtree of `node`, which becomes the root (flowspec, section 3.3).

        The path above `node` becomes context. The remaining rows close up in the same order, and the new
        root's score is subtracted from the remaining scores.

        Returns:
            int64 [k]: the former number of each remaining node, ascending.
        """
        nodes, root_score = subtree(self.parents, self.depths, node), self.effective_scores()[node]
        depth = int(self.depths[node])
        self.context += depth
        self._keep(nodes)
        self.depths -= depth
        np.minimum(self.scores, root_score, out=self.scores)
        self.scores -= root_score
        self.rows[self._sent] = np.arange(self.context, self.next_row)
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
        kept = len(nodes)
        renumber = np.empty(len(self), dtype=np.int64)
        renumber.fill(-1)
        renumber[nodes] = np.arange(kept)
        sent = renumber[self._sent]
        self._sent = sent[sent >= 0]
        integers, scores = self._integers.take(nodes, axis=1), self.scores[nodes]
        self._resize(kept)
        self._integers[:, :kept], self.scores[:] = integers, scores
        self.parents[:] = renumber[self.parents]
        self.parents[ROOT] = -1
        self._children = self._effective = self._ranking = None
