"""DraftTree: the tokens the drafter proposes, with their scores and what of them has been sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import BoolArray, FloatArray, IntArray

UNSENT = -1
ROOT = 0


class DraftTree:
    """A tree of draft tokens; node 0 is the root (the latest token drawn by the target, x_new).

    Nodes are numbered in the order they were added, so a parent's number is below its children's. A node's
    score is the cumulative log-probability from the root (EAGLE-2; flowspec, equation 1). A node gets its
    row, the index in the session's sequence, when it is sent; the rows of all sent nodes are `context`
    onwards without a gap, and the root's absolute position is `context`.

    Attributes:
        tokens: int64 [n]; parents: int64 [n], -1 for the root; depths: int64 [n], 0 for the root;
        scores: float64 [n], the root's is 0; rows: int64 [n], UNSENT where not sent.
        context: number of context rows before the root.
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
        """The row the next sent node gets."""
        return self.context + self.num_sent

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        return self._children.get((node, token))

    def node_of_row(self, row: int) -> int:
        """The node sent as `row`; KeyError when there is none."""
        found = np.flatnonzero(self.rows == row)
        if len(found) != 1:
            raise KeyError(row)
        return int(found[0])

    def put(self, parents: Sequence[int], tokens: Sequence[int], scores: Sequence[float]) -> list[int]:
        """Add nodes, or give a new score to those that exist already (same parent, same token).

        Parents come before their children in the arguments' numbering.

        Returns:
            The node of each argument, in order.
        """
        nodes: list[int] = []
        fresh: list[int] = []
        size = len(self)
        for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
            key = (int(parent), int(token))
            node = self._children.get(key)
            if node is None:
                node = size + len(fresh)
                self._children[key] = node
                fresh.append(i)
            elif node < size:
                self.scores[node] = scores[i]
            nodes.append(node)
        if fresh:
            depths = self.depths.tolist()
            for i in fresh:
                depths.append(depths[parents[i]] + 1)
            self.depths = np.array(depths, dtype=np.int64)
            new_parents = np.array([parents[i] for i in fresh], dtype=np.int64)
            new_scores = np.array([scores[i] for i in fresh], dtype=np.float64)
            self.tokens = np.concatenate([self.tokens, np.array([tokens[i] for i in fresh], dtype=np.int64)])
            self.parents = np.concatenate([self.parents, new_parents])
            self.scores = np.concatenate([self.scores, new_scores])
            self.rows = np.concatenate([self.rows, np.full(len(fresh), UNSENT, dtype=np.int64)])
        return nodes

    def effective_scores(self) -> FloatArray:
        """min(own score, parent's effective score), so that a re-scored parent never orphans a child."""
        effective: FloatArray = self.scores.copy()
        for depth in range(1, int(self.depths.max()) + 1):
            layer = np.flatnonzero(self.depths == depth)
            effective[layer] = np.minimum(effective[layer], effective[self.parents[layer]])
        return effective

    def ranking(self) -> IntArray:
        """All nodes, best first; ties by insertion order, so that a parent is always before its children."""
        order: IntArray = np.argsort(-self.effective_scores(), kind="stable")
        return order

    def best(self, count: int) -> list[int]:
        """The `count` best nodes, root included: a connected tree (EAGLE-2's re-ranking)."""
        return [int(node) for node in self.ranking()[:count]]

    def best_unsent(self, count: int) -> list[int]:
        """The `count` best nodes not sent yet, best first; each parent is sent or earlier in the list."""
        ranking = self.ranking()
        return [int(node) for node in ranking[self.rows[ranking] == UNSENT][:count]]

    def mark_sent(self, nodes: Sequence[int]) -> list[int]:
        """Give rows to unsent nodes, in the order given; returns the parent row of each, -1 for the root.

        Raises ValueError for a node that was sent already or whose parent has no row.
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

    def subtree(self, node: int) -> IntArray:
        """`node` and its descendants, ascending."""
        inside = np.zeros(len(self), dtype=np.bool_)
        inside[node] = True
        for depth in range(int(self.depths[node]) + 1, int(self.depths.max()) + 1):
            layer = np.flatnonzero(self.depths == depth)
            inside[layer] = inside[self.parents[layer]]
        return np.flatnonzero(inside)

    def reroot(self, node: int) -> IntArray:
        """Prune to the subtree of `node`, which becomes the root (flowspec, section 3.3).

        The path down to `node` becomes context; surviving rows move up without a gap and keep their order;
        the new root's score is subtracted from the survivors.

        Returns:
            The old numbers of the survivors, ascending; the new number is the index.
        """
        kept = self.subtree(node)
        effective = self.effective_scores()
        renumber = np.full(len(self), -1, dtype=np.int64)
        renumber[kept] = np.arange(len(kept))
        self.context += int(self.depths[node])
        self.depths = self.depths[kept] - self.depths[node]
        self.scores = np.minimum(self.scores[kept], effective[node]) - effective[node]
        self.tokens = self.tokens[kept]
        self.parents = np.where(kept == node, -1, renumber[self.parents[kept]])
        self.rows = self.rows[kept]
        sent = np.flatnonzero(self.rows != UNSENT)
        by_row = sent[np.argsort(self.rows[sent])]
        self.rows[by_row] = self.context + np.arange(len(by_row))
        self._index_children()
        return kept

    def merge(self, other: DraftTree, nodes: Sequence[int]) -> None:
        """Append `nodes` of a tree with the same root that are new here; a node in both takes the new score.

        Args:
            other: a tree whose root carries the same token at the same position.
            nodes: nodes of `other` that form a connected tree with its root.
        """
        if (other.tokens[ROOT], other.context) != (self.tokens[ROOT], self.context):
            raise ValueError("only trees with the same root can be merged")
        theirs = sorted(set(nodes) - {ROOT})
        tokens = other.tokens[theirs].tolist()
        here, size = {ROOT: ROOT}, len(self)
        parents: list[int] = []
        for node, parent, token in zip(theirs, other.parents[theirs].tolist(), tokens, strict=True):
            twin = self.child(here[parent], token)
            if twin is None:  # it will be the next one that is added
                twin, size = size, size + 1
            here[node] = twin
            parents.append(here[parent])
        self.put(parents, tokens, other.scores[theirs].tolist())

    def drop_unsent_beyond(self, limit: int) -> None:
        """Forget the worst unsent nodes so that at most `limit` nodes are left; sent nodes always stay."""
        if len(self) <= limit:
            return
        room = max(limit - self.num_sent, 0)
        kept = np.flatnonzero(self.rows != UNSENT)
        kept = np.sort(np.append(kept, np.array(self.best_unsent(room), dtype=np.int64)))
        kept = np.union1d(kept, [ROOT])
        renumber = np.full(len(self), -1, dtype=np.int64)
        renumber[kept] = np.arange(len(kept))
        self.tokens, self.depths = self.tokens[kept], self.depths[kept]
        self.scores, self.rows = self.scores[kept], self.rows[kept]
        self.parents = np.where(kept == ROOT, -1, renumber[self.parents[kept]])
        self._index_children()

    def _index_children(self) -> None:
        keys = zip(self.parents[1:].tolist(), self.tokens[1:].tolist(), strict=True)
        self._children = {key: node for node, key in enumerate(keys, start=1)}


def ancestor_mask(parents: Sequence[int]) -> BoolArray:
    """Who sees whom in a tree: bool [n, n], row i sees itself and its ancestors.

    Args:
        parents: parent of each row, below the row itself; -1 where the parent is the context.
    """
    mask = np.eye(len(parents), dtype=np.bool_)
    for row, parent in enumerate(parents):
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask
