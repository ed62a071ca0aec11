"""Properties of the draft tree: selection, ties, rows, re-rooting, merging, and its twin on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.messages import CONTEXT
from flowedge.core.tree import ROOT, UNSENT, DraftTree
from flowedge.protocol.row_sequence import RowSequence
from tests.core.trees import (
    LOG_PROBS,
    assert_connected,
    check_tree,
    grow,
    naive_effective,
    path,
    paths,
    rescored_trees,
    trees,
)

EXAMPLES = settings(max_examples=100, deadline=None)


@given(rescored_trees(), st.integers(1, 30))
@EXAMPLES
def test_best_is_a_connected_tree_of_the_highest_scores(tree, count):
    check_tree(tree)
    best = tree.best(count)
    assert len(best) == min(count, len(tree))
    assert best[0] == ROOT or tree.scores[ROOT] == 0
    assert_connected(tree, best)
    effective = [naive_effective(tree, node) for node in range(len(tree))]
    assert np.array_equal(tree.effective_scores(), effective)
    left_out = set(range(len(tree))) - set(best)
    if left_out:
        assert min(effective[n] for n in best) >= max(effective[n] for n in left_out)


@given(rescored_trees())
@EXAMPLES
def test_ranking_is_by_score_then_insertion_and_parents_come_first(tree):
    ranking = tree.ranking().tolist()
    assert sorted(ranking) == list(range(len(tree)))
    assert_connected(tree, ranking)
    assert ranking == sorted(range(len(tree)), key=lambda n: (-naive_effective(tree, n), n))


def test_a_tree_of_ties_only_is_still_taken_from_the_root_down():
    """Zero log-probabilities: every node scores as its parent, and as the root."""
    tree = DraftTree(1, 0)
    for node in range(40):
        tree.put([node // 2, node // 2], [2 * node, 2 * node + 1], [0.0, 0.0])
    for count in range(1, len(tree) + 1):
        assert tree.best(count) == list(range(count))


def test_a_refreshed_parent_holds_its_children_back():
    tree = DraftTree(1, 0)
    parent, child, other = tree.put([0, 1, 0], [5, 6, 7], [-0.1, -0.2, -1.0])
    tree.put([0], [5], [-2.0])
    assert tree.scores[child] == -0.2
    assert tree.best(3) == [ROOT, other, parent]


@given(trees())
@EXAMPLES
def test_scores_that_descend_are_their_own_effective_scores(tree):
    assert np.array_equal(tree.effective_scores(), tree.scores)


@given(trees(), st.lists(st.integers(1, 6), max_size=8))
@EXAMPLES
def test_segments_of_the_best_unsent_nodes_are_rows_in_order(tree, sizes):
    sent: list[int] = []
    for size in sizes:
        before = tree.next_row
        nodes = tree.best_unsent(size)
        assert len(nodes) == min(size, len(tree) - len(sent))
        parents = tree.mark_sent(nodes)
        assert [int(tree.rows[n]) for n in nodes] == list(range(before, before + len(nodes)))
        for node, parent in zip(nodes, parents, strict=True):
            assert parent == (-1 if node == ROOT else tree.rows[tree.parents[node]])
            assert parent < tree.rows[node]
            assert tree.node_of_row(int(tree.rows[node])) == node
        sent += nodes
        check_tree(tree)
    assert_connected(tree, sent)
    assert sent == tree.ranking().tolist()[: len(sent)]


def test_a_node_is_sent_once_and_after_its_parent():
    tree = DraftTree(1, 4)
    parent, child = tree.put([0, 1], [5, 6], [-1.0, -2.0])
    with pytest.raises(ValueError, match="before its parent"):
        tree.mark_sent([parent])
    tree.mark_sent([ROOT])
    with pytest.raises(ValueError, match="before its parent"):
        tree.mark_sent([child])
    tree.mark_sent([parent, child])
    with pytest.raises(ValueError, match="sent already"):
        tree.mark_sent([child])
    with pytest.raises(KeyError):
        tree.node_of_row(7)


@given(rescored_trees(), st.data())
@EXAMPLES
def test_reroot_keeps_the_subtree_as_it_is(tree, data):
    node = data.draw(st.integers(0, len(tree) - 1))
    want = sorted(n for n in range(len(tree)) if node in above(tree, n))
    below = len(path(tree, node))
    old = {path(tree, n)[below:]: n for n in want}
    position = {p: tree.context + int(tree.depths[n]) for p, n in old.items()}
    effective = {p: naive_effective(tree, n) - naive_effective(tree, node) for p, n in old.items()}
    tokens, rows = tree.tokens.copy(), tree.rows.copy()

    kept = tree.reroot(node)

    check_tree(tree)
    assert kept.tolist() == want
    assert tree.tokens.tolist() == tokens[want].tolist()
    assert tree.scores[ROOT] == 0
    assert set(paths(tree)) == set(old)
    for p, n in paths(tree).items():
        assert kept[n] == old[p], "the order of the nodes has changed"
        assert tree.context + int(tree.depths[n]) == position[p], "a position has changed"
        assert naive_effective(tree, n) == pytest.approx(effective[p])
    order_before = [n for n in np.argsort(rows).tolist() if rows[n] != UNSENT and n in set(want)]
    order_after = [int(kept[n]) for n in np.argsort(tree.rows).tolist() if tree.rows[n] != UNSENT]
    assert order_after == order_before, "the order of the rows has changed"


def above(tree: DraftTree, node: int) -> set[int]:
    """A node and its ancestors."""
    found = {node}
    while node != ROOT:
        node = int(tree.parents[node])
        found.add(node)
    return found


@given(rescored_trees(), trees(), st.data())
@EXAMPLES
def test_merge_is_the_union_and_the_new_score_counts(tree, other, data):
    chosen = [0, *sorted(data.draw(st.sets(st.integers(0, len(other) - 1))))]
    chosen = [n for n in chosen if above(other, n) <= {0, *chosen}]
    mine = {p: (float(tree.scores[n]), int(tree.rows[n])) for p, n in paths(tree).items()}
    theirs = {path(other, n): float(other.scores[n]) for n in chosen}
    size = len(tree)
    order = [path(tree, n) for n in range(size)]

    tree.merge(other, data.draw(st.permutations(chosen)))

    check_tree(tree)
    merged = paths(tree)
    assert set(merged) == set(mine) | set(theirs)
    assert [path(tree, n) for n in range(size)] == order, "a merge must not renumber what is there"
    for p, n in merged.items():
        old_score, old_row = mine.get(p, (None, UNSENT))
        assert tree.rows[n] == old_row
        assert tree.scores[n] == (0.0 if p == () else theirs.get(p, old_score))
    assert_connected(tree, tree.best(data.draw(st.integers(1, 30))))
    tree.mark_sent(tree.best_unsent(5))
    check_tree(tree)


@pytest.mark.parametrize("other", [DraftTree(8, 3), DraftTree(9, 4)])
def test_only_trees_with_the_same_root_are_merged(other):
    with pytest.raises(ValueError, match="same root"):
        DraftTree(8, 4).merge(other, [0])


@given(rescored_trees(), st.integers(1, 30))
@EXAMPLES
def test_a_cap_drops_the_worst_unsent_nodes_only(tree, limit):
    before = {p: (float(tree.scores[n]), int(tree.rows[n])) for p, n in paths(tree).items()}
    room = max(limit - tree.num_sent, 0)
    stay = {path(tree, n) for n in range(len(tree)) if tree.rows[n] != UNSENT or n == ROOT}
    stay |= {path(tree, n) for n in tree.best_unsent(room)}
    if len(tree) <= limit:
        stay = set(before)
    tree.drop_unsent_beyond(limit)
    check_tree(tree)
    assert set(paths(tree)) == stay
    assert len(tree) <= max(limit, tree.num_sent, 1)
    for p, n in paths(tree).items():
        assert (float(tree.scores[n]), int(tree.rows[n])) == before[p]
    tree.put([0], [99], [-1.0])
    check_tree(tree)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_tree_and_sequence_number_the_same_rows_alike(data):
    """The strategy's tree and the draft node's sequence go through sends and prunes side by side."""
    sequence = RowSequence("s")
    sequence.commit([0] * data.draw(st.integers(1, 5)))
    tree = DraftTree(data.draw(st.integers(0, 3)), sequence.context)
    for _ in range(data.draw(st.integers(1, 12))):
        grow(data.draw, tree, 8)
        for _ in range(data.draw(st.integers(0, 3))):
            nodes = tree.best_unsent(data.draw(st.integers(1, 5)))
            if nodes:
                first, row = sequence.length, tree.next_row
                parents = tree.mark_sent(nodes)
                assert sequence.append(tuple(tree.tokens[nodes].tolist()), tuple(parents)) == first == row
        assert_same(tree, sequence)
        sent = np.flatnonzero(tree.rows != UNSENT).tolist()
        if not sent or data.draw(st.booleans()):
            continue
        # The target accepts the path to `last` and draws a token that is a node, sent or not, or is none.
        last = data.draw(st.sampled_from(sent))
        accepted = tuple(sorted(int(tree.rows[n]) for n in above(tree, last)))
        token = data.draw(st.integers(0, 4))
        root = tree.child(last, token)
        positions = {path(tree, n): tree.context + int(tree.depths[n]) for n in range(len(tree))}
        prefix = path(tree, last)
        if root is None:
            sequence.prune(accepted, None)
            tree = DraftTree(token, tree.context + len(accepted))
        else:
            row = int(tree.rows[root])
            prune = sequence.prune(accepted, None if row == UNSENT else row)
            assert prune.accepted == len(accepted)
            tree.reroot(root)
            for p, n in paths(tree).items():
                assert tree.context + int(tree.depths[n]) == positions[(*prefix, token, *p)]
        assert_same(tree, sequence)


def assert_same(tree: DraftTree, sequence: RowSequence) -> None:
    check_tree(tree)
    assert sequence.context == tree.context
    assert sequence.length == tree.next_row
    for row in range(sequence.context, sequence.length):
        node, offset = tree.node_of_row(row), row - sequence.context
        assert sequence.tokens[offset] == tree.tokens[node]
        assert sequence.positions[offset] == tree.context + tree.depths[node]
        want = CONTEXT if node == ROOT else tree.rows[tree.parents[node]]
        assert sequence.parents[offset] == want


@given(trees(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), LOG_PROBS), max_size=12))
@EXAMPLES
def test_put_finds_nodes_that_are_there_and_adds_the_rest(tree, entries):
    size, before = len(tree), paths(tree)
    parents, tokens = [p % size for p, _, _ in entries], [t for _, t, _ in entries]
    scores = [s for _, _, s in entries]
    nodes = tree.put(parents, tokens, scores)
    check_tree(tree)
    assert all(paths(tree)[p] == n for p, n in before.items())
    for parent, token, node in zip(parents, tokens, nodes, strict=True):
        assert (int(tree.parents[node]), int(tree.tokens[node])) == (parent, token)
    assert len(tree) == len({(p, t) for p, t in zip(parents, tokens, strict=True)} - keys(before)) + size


def keys(nodes: dict[tuple[int, ...], int]) -> set[tuple[int, int]]:
    """(parent, token) of each node."""
    return {(nodes[p[:-1]], p[-1]) for p in nodes if p}


def test_put_takes_parents_that_are_put_in_the_same_call():
    tree = DraftTree(0, 0)
    assert tree.put([0, 1, 2], [4, 5, 6], [-1.0, -2.0, -3.0]) == [1, 2, 3]
    assert tree.depths.tolist() == [0, 1, 2, 3]
    check_tree(tree)
