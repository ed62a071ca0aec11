"""Random draft trees, with as many ties as one could wish for."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from flowedge.core.tree import ROOT, UNSENT, DraftTree

# Zero log-probabilities and few distinct values: equal scores are the rule here.
LOG_PROBS = st.sampled_from([0.0, 0.0, -0.5, -0.5, -1.0, -3.0])


@st.composite
def trees(draw, max_nodes: int = 25, context: int = 7, root_token: int = 0) -> DraftTree:
    """A tree grown as drafters do: a child's score is its parent's plus a log-probability."""
    tree = DraftTree(root_token, context)
    grow(draw, tree, max_nodes, rescore=False)
    return tree


def grow(draw, tree: DraftTree, count: int, rescore: bool = True) -> None:
    """Add up to `count` nodes under nodes that are there."""
    for _ in range(draw(st.integers(0, count))):
        parent, token = draw(st.integers(0, len(tree) - 1)), draw(st.integers(0, 3))
        score = float(tree.scores[parent]) + draw(LOG_PROBS)
        if rescore or tree.child(parent, token) is None:
            tree.put([parent], [token], [score])


@st.composite
def rescored_trees(draw, max_nodes: int = 25) -> DraftTree:
    """A tree whose scores no longer descend: refreshed at random, some of its nodes sent."""
    tree = draw(trees(max_nodes))
    for node in range(1, len(tree)):
        if draw(st.booleans()):
            score = draw(st.sampled_from([0.0, -0.5, -1.0, -2.0, -9.0]))
            tree.put([int(tree.parents[node])], [int(tree.tokens[node])], [score])
    for _ in range(draw(st.integers(0, 3))):
        tree.mark_sent(tree.best_unsent(draw(st.integers(1, 6))))
    return tree


def path(tree: DraftTree, node: int) -> tuple[int, ...]:
    """Return the tokens from below the root to the node: they identify a node when numbers change."""
    tokens: list[int] = []
    while node != ROOT:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tuple(reversed(tokens))


def paths(tree: DraftTree) -> dict[tuple[int, ...], int]:
    """The nodes by their paths."""
    return {path(tree, node): node for node in range(len(tree))}


def naive_effective(tree: DraftTree, node: int) -> float:
    """The least score on the way up."""
    score = float(tree.scores[node])
    while node != ROOT:
        node = int(tree.parents[node])
        score = min(score, float(tree.scores[node]))
    return score


def check_tree(tree: DraftTree) -> None:
    """Check the invariants of a tree."""
    size = len(tree)
    assert {len(a) for a in (tree.tokens, tree.parents, tree.depths, tree.scores, tree.rows)} == {size}
    assert tree.parents[ROOT] == -1
    assert tree.depths[ROOT] == 0
    keys = set()
    for node in range(1, size):
        parent = int(tree.parents[node])
        assert 0 <= parent < node
        assert tree.depths[node] == tree.depths[parent] + 1
        assert tree.child(parent, int(tree.tokens[node])) == node
        keys.add((parent, int(tree.tokens[node])))
        if tree.rows[node] != UNSENT:
            assert UNSENT != tree.rows[parent] < tree.rows[node], "a row before its parent's"
    assert len(keys) == size - 1, "two equal children of one parent"
    sent = np.sort(tree.rows[tree.rows != UNSENT])
    assert np.array_equal(sent, tree.context + np.arange(len(sent))), "rows with a gap"
    assert tree.num_sent == len(sent)
    assert tree.next_row == tree.context + len(sent)


def assert_connected(tree: DraftTree, nodes) -> None:
    """Each node's parent comes before it in the list."""
    seen: set[int] = set()
    for node in nodes:
        assert node == ROOT or int(tree.parents[node]) in seen
        assert node not in seen
        seen.add(int(node))
