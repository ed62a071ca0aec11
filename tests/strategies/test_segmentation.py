"""FlowSpec on scripts of events: when it drafts, sends, prunes and puts out tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.tree import UNSENT
from flowedge.strategies.commands import AcceptPath, Emit, Grow, Send
from flowedge.strategies.flowspec import FlowSpec
from flowedge.strategies.settings import TreeSettings
from tests.core.trees import check_tree
from tests.strategies.script import Script
from tests.strategies.script_layers import FIRST, SECOND, grow_all, small
from tests.support.seams import base_growth, draft_tree


@pytest.mark.parametrize("seed", range(12))
def test_eighty_nodes_go_out_as_five_segments_of_sixteen_best_first(seed):
    """The paper's sizes: L = 80 is N + 1 = 5 segments of 16, score-ordered over the whole tree."""
    strategy = FlowSpec(TreeSettings())
    script = Script(strategy, granted=5)
    grow_all(script, np.random.default_rng(seed), layers=6)
    assert [len(send.tokens) for send in script.sends] == [16] * 5
    base = base_growth(strategy).base
    assert base_growth(strategy).layers == 6
    scores = sorted(base.effective_scores(), reverse=True)[:80]
    sent = draft_tree(strategy).rows != UNSENT
    by_row = np.argsort(draft_tree(strategy).rows[sent])
    assert draft_tree(strategy).effective_scores()[sent][by_row].tolist() == scores


def test_segments_are_score_ordered_and_the_next_begins_where_the_last_ends():
    script = Script(FlowSpec(small()))
    assert script.grow == Grow(1, (0,), (-1,), (0,), 2)
    script.layer(*FIRST)
    assert script.sends == [Send((0, 1), (-1, 5))], "no node to come can be better than these"
    script.layer(*SECOND)
    assert len(script.sends) == 1
    script.credit()
    assert script.sends[1] == Send((3, 2), (6, 5))
    script.credit()
    assert script.sends[2] == Send((5,), (8,)), "what is left of the five nodes"


def test_nothing_is_sent_before_a_layer_is_drafted_that_could_change_it():
    script = Script(FlowSpec(small(segment_rows=3)))
    script.layer(*FIRST)
    assert script.sends == [], "the third best node may still be found below the best child"
    script.layer(*SECOND)
    assert script.sends == [Send((0, 1, 3), (-1, 5, 6))]


def test_segments_of_one_row():
    script = Script(FlowSpec(small(segment_rows=1)), granted=3)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.sends == [Send((0,), (-1,)), Send((1,), (5,)), Send((3,), (6,))]


def test_a_tree_of_the_root_alone():
    script = Script(FlowSpec(small(tree_nodes=1, depth=1, max_draft_rows=1)))
    script.layer(*FIRST)
    assert script.sends == [Send((0,), (-1,))]
    script.verified([5], 2)
    assert script.prunes == [AcceptPath((5,), None, ends_round=True)]


def test_the_newest_tree_is_sent_first():
    """Late binding: a credit that comes after a new layer gets the best of that layer, not what waited."""
    script = Script(FlowSpec(small()))
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.verified([5, 6], 3)  # 3 is in the tree, unsent
    assert script.prunes == [AcceptPath((5, 6), None, ends_round=False)]
    assert script.emitted == [0, 1, 3]
    script.layer([[7, 8]], [[0.5, 0.4]])
    script.layer([[9, 10], [11, 12]], [[0.9, 0.05], [0.9, 0.05]])
    script.credit()
    assert script.sends[1] == Send((3, 7), (-1, 7))
    script.verified([7], 8)
    script.layer([[21, 22]], [[0.97, 0.01]])
    script.layer([[31, 32], [33, 34]], [[0.97, 0.01], [0.5, 0.4]])
    script.credit()
    assert script.sends[2] == Send((8, 21), (-1, 8)), "11 waited for longer, 21 is better"


def test_a_token_in_flight_goes_on_and_its_subtree_stays():
    script = Script(FlowSpec(small()), granted=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.sends[1] == Send((3, 2), (6, 5))
    commands = script.verified([5, 6], 3)
    assert commands[0] == Emit((1, 3))
    assert commands[1] == AcceptPath((5, 6), 7, ends_round=False)
    assert isinstance(commands[2], Grow)
    assert commands[2].tokens == (3,)
    assert script.in_flight == [[7]], "row 2 of the second segment is pruned"
    commands = script.verified([7], 99)
    assert commands[:2] == [Emit((99,)), AcceptPath((7,), None, ends_round=True)]


def test_a_token_that_is_in_the_tree_but_unsent_does_not_end_the_round():
    script = Script(FlowSpec(small(segment_rows=3)))
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.verified([5], 2)
    assert script.prunes[-1] == AcceptPath((5,), None, ends_round=False)
    script.layer([[5, 40]], [[0.6, 0.2]])
    script.layer([[41, 42], [43, 44]], [[0.9, 0.05], [0.5, 0.4]])
    script.credit()
    assert script.sends[-1].tokens == (2, 5, 41)
    assert script.sends[-1].parents == (-1, 6, 7)


def test_a_token_that_has_no_node_ends_the_round_and_a_new_tree_is_grown():
    script = Script(FlowSpec(small()), granted=3)
    script.layer(*FIRST)
    script.layer(*SECOND)
    commands = script.verified([5, 6], 77)
    assert commands == [
        Emit((1, 77)),
        AcceptPath((5, 6), None, ends_round=True),
        Grow(2, (0,), (-1,), (77,), 2),
    ]
    assert script.in_flight == [[], []], "everything in flight dies"
    script.layer([[1, 2]], [[0.6, 0.3]])
    script.credit()
    assert script.sends[-1] == Send((77, 1), (-1, 7))


def test_a_layer_of_the_new_root_refreshes_scores_and_keeps_rows():
    """Context-aware merge: a node in both trees takes the new score; what is sent keeps its row."""
    strategy = FlowSpec(small(segment_rows=1))
    script = Script(strategy, granted=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.verified([5], 1)
    tree = draft_tree(strategy)
    three, four = tree.child(0, 3), tree.child(0, 4)
    assert tree.rows[0] == 6
    assert tree.scores[three] == pytest.approx(np.log(0.9))
    assert four is None, "it was not among the five best"
    script.layer([[4, 3]], [[0.8, 0.1]])
    assert tree.scores[tree.child(0, 3)] == pytest.approx(np.log(0.1))
    assert tree.scores[tree.child(0, 4)] == pytest.approx(np.log(0.8))
    assert tree.rows[0] == 6
    script.layer([[50, 51], [52, 53]], [[0.9, 0.05], [0.9, 0.05]])
    script.credit()
    assert script.sends[-1] == Send((4,), (6,)), "4 goes before 3, which was better in the old tree"
    check_tree(tree)


def test_with_a_credit_and_nothing_to_send_the_tree_is_deepened():
    strategy = FlowSpec(small(segment_rows=5))
    script = Script(strategy)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert [send.tokens for send in script.sends] == [(0, 1, 3, 2, 5)]
    assert script.grow is None, "without a credit nothing more is drafted"
    commands = script.credit()
    assert len(commands) == 1
    assert isinstance(commands[0], Grow)
    assert commands[0].growth == 1, "it is the same growth, made deeper"
    assert commands[0].tokens == (3, 5), "the frontier of T_base"
    # Absent from T: 6 (0.12), 4 (0.03) and the new children 7 (0.27), 8 (0.216), 9, 10.
    commands = script.layer([[7, 8], [9, 10]], [[0.5, 0.4], [0.5, 0.4]])
    assert script.sends[1] == Send((7, 8), (7, 7)), "the two best of T_base that T does not have"
    script.credit()
    assert script.grow is not None, "and deeper again"


def test_deepening_is_given_up_when_the_root_moves():
    script = Script(FlowSpec(small(segment_rows=5)))
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.credit()
    assert script.grow.growth == 1
    script.verified([5, 6], 3)
    assert script.grow.growth == 2
    assert script.grow.tokens == (3,)


def test_no_credit_no_segment():
    script = Script(FlowSpec(small()), granted=0)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.sends == []
    script.credit()
    assert len(script.sends) == 1


def test_at_the_bound_of_draft_rows_nothing_is_sent_or_drafted():
    script = Script(FlowSpec(small(max_draft_rows=3)), granted=9)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert [len(send.tokens) for send in script.sends] == [2, 1]
    assert script.grow is None
    script.verified([5], 1)
    assert script.grow is not None


@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_flowspec_on_random_scripts(data, seed):
    """Every Send, Prune and Emit is held against the sequence by the script; here against the tree too."""
    values = {
        "tree_nodes": data.draw(st.integers(1, 14)),
        "depth": data.draw(st.integers(1, 4)),
        "top_k": data.draw(st.integers(1, 4)),
        "segment_rows": data.draw(st.integers(1, 6)),
        "expand_nodes": data.draw(st.integers(1, 12)),
        "expand_depth": data.draw(st.integers(1, 4)),
        "deepen_nodes": data.draw(st.integers(1, 5)),
        "deepen_layers": data.draw(st.integers(1, 2)),
        "max_draft_rows": data.draw(st.integers(1, 25)),
        **{name: data.draw(st.integers(0, 1)) for name in ("context_aware", "score_aware", "early_stop")},
    }
    rng = np.random.default_rng(seed)
    vocab = data.draw(st.integers(1, 6))
    strategy = FlowSpec(TreeSettings(**values))
    script = Script(strategy, token=int(rng.integers(vocab)), granted=data.draw(st.integers(0, 3)))
    drawn = list(script.emitted)
    for _ in range(60):
        step, before = rng.integers(3), len(script.sends)
        if step == 0 and script.grow is not None:
            width = min(script.grow.width, vocab)
            tokens = [rng.permutation(vocab)[:width].tolist() for _ in script.grow.nodes]
            shape = (len(tokens), width)
            script.layer(tokens, np.sort(rng.choice([0.1, 0.25, 0.5, 1.0], size=shape))[:, ::-1])
        elif step == 1 and script.credits + len(script.in_flight) < 4:
            script.credit()
        elif script.in_flight:
            rows = script.in_flight[0]
            if not rows:
                script.returned()
                continue
            assert rows[0] == script.sequence.context, "a row that has come back is still draft"
            accepted, token = follow(script, rows, rng, vocab)
            drawn += [int(script.sequence.tokens[row - rows[0]]) for row in accepted[1:]] + [token]
            script.verified(accepted, token)
        check_sends(strategy, script, script.sends[before:], values["segment_rows"])
    assert script.emitted == drawn
    # Whatever has happened: with credits and layers, the root always gets out, so that decoding goes on.
    while not script.in_flight or not any(script.in_flight):
        while script.in_flight:
            script.returned()
        if script.grow is not None:
            width = min(script.grow.width, vocab)
            tokens = [list(range(width)) for _ in script.grow.nodes]
            script.layer(tokens, np.full((len(tokens), width), 0.5))
        else:
            script.credit()


def follow(script: Script, rows: list[int], rng: np.random.Generator, vocab: int) -> tuple[list[int], int]:
    """Draw at random along the rows of a returned segment."""
    accepted = [rows[0]]
    while True:
        token = int(rng.integers(vocab))
        row = script.row_of(accepted[-1], token)
        if row is None or row not in rows:
            return accepted, token
        accepted.append(row)


def check_sends(strategy: FlowSpec, script: Script, sends: list[Send], limit: int) -> None:
    tree = draft_tree(strategy)
    check_tree(tree)
    assert tree.next_row == script.sequence.length
    assert tree.context == script.sequence.context
    assert all(len(send.tokens) <= limit for send in sends)
    effective, first = tree.effective_scores(), script.sequence.length - sum(len(s.tokens) for s in sends)
    sent = [effective[tree.node_of_row(row)] for row in range(first, script.sequence.length)]
    assert sent == sorted(sent, reverse=True), "segments are not ordered by score"
    unsent = effective[tree.rows == UNSENT]
    if sent and len(unsent):
        assert sent[-1] >= unsent.max(), "a better node was left behind"
