"""`auto` on scripts of events, and on random ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError
from flowedge.core.tree import UNSENT
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.auto import Auto, grows_anew
from flowedge.strategies.commands import AcceptPath, Emit, Grow, Send
from flowedge.strategies.events import Prefilled
from flowedge.strategies.registry import make_strategy
from flowedge.strategies.settings import AutoSettings
from tests.core.trees import check_tree
from tests.strategies.script import Script
from tests.strategies.script_layers import FIRST, SECOND
from tests.support.seams import decision_of, draft_tree


def auto(**changes: float) -> Auto:
    """Two candidates a node, whose scores stay the drafter's word; a single row takes as long as several."""
    values = {"candidates": 2, "prior": 1e9, "stale_tokens": 99.0, "lone_share": 1.0, **changes}
    return Auto(AutoSettings.from_options(values))


def test_drafting_begins_anew_after_so_many_tokens():
    assert [grows_anew(tokens, 2.0) for tokens in (1, 2, 3)] == [False, True, True]


def test_the_first_layer_goes_at_once_and_the_next_follows():
    script = Script(auto(), granted=2, stages=2)
    assert script.sends == [], "the root alone would keep its children waiting"
    growth = script.grow.growth
    assert script.grow == Grow(growth, (0,), (-1,), (0,), 2)
    script.layer(*FIRST)
    assert script.sends == [Send((0, 1, 2), (-1, 5, 5))]
    assert script.grow == Grow(growth, (1, 2), (0, 0), (1, 2), 2)
    script.layer(*SECOND)
    assert script.sends[1] == Send((3, 5, 6, 4), (6, 7, 7, 6)), "the likeliest first"


def test_every_row_goes_alone_where_that_is_much_quicker():
    script = Script(auto(lone_share=0.3), granted=9, stages=3)
    assert script.sends == [Send((0,), (-1,))]
    script.layer(*FIRST)
    assert script.sends[1:] == [Send((1,), (5,)), Send((2,), (5,))]


def test_the_first_root_goes_alone_to_measure_what_that_takes():
    script = Script(auto(lone_share=0.0), granted=9, stages=3)
    assert script.sends == [Send((0,), (-1,))]
    script.layer(*FIRST)
    assert script.sends[1:] == [Send((1, 2), (5, 5))]


def test_no_more_segments_are_under_way_than_there_are_stages():
    script = Script(auto(segment_rows=1), granted=9, stages=2)
    script.layer(*FIRST)
    assert [send.tokens for send in script.sends] == [(0,), (1,)]
    script.layer(*SECOND)
    script.verified([5], 1)
    assert [send.tokens for send in script.sends[2:]] == [(3,)], "chosen from the newest tree"


def test_extra_segments_wait_in_front_of_the_stages():
    script = Script(auto(segment_rows=1, extra_segments=1), granted=9, stages=2)
    script.layer(*FIRST)
    assert [send.tokens for send in script.sends] == [(0,), (1,), (2,)]


def test_rows_that_are_dear_go_one_after_the_other():
    script = Script(auto(row_price=1e9), granted=9, stages=9)
    script.layer(*FIRST)
    assert [send.tokens for send in script.sends] == [(0,), (1,), (2,)]


def rounds_of(strategy: Auto, seconds: list[Callable[[int], float]]) -> list[list[tuple[int, ...]]]:
    """What each round sends of FIRST and SECOND before a miss; the root's trip takes seconds(rows)."""
    script, sent = Script(strategy, granted=99, stages=4), []
    for number, takes in enumerate(seconds):
        before = len(script.sends)
        script.layer(*FIRST, 0.1)
        script.layer(*SECOND, 0.1)
        sent.append([send.tokens[1:] for send in script.sends[before:]])
        rows = (2, 128)[number % 2]
        script.verified([script.in_flight[0][0]], 77, PipelineTrip(rows, takes(rows)))
        while script.in_flight:
            script.returned()
    return sent


def test_a_link_that_slows_in_mid_request_makes_segments_narrow():
    quick, slow = (lambda rows: 0.2 + 0.001 * rows), (lambda rows: 0.2 + 0.2 * rows)
    sent = rounds_of(auto(row_price=4.0), [quick] * 3 + [slow] * 10)
    assert sent[3][0] == (1, 2), "both children go with the root while rows are cheap"
    assert sent[-1][0] == (), "each of them delays the root by more than it gains"


def test_a_stage_that_slows_in_mid_request_is_given_its_next_segment_later():
    quick, slow = (lambda _: 0.4), (lambda _: 2.0)
    sent = rounds_of(auto(), [quick] * 3 + [slow] * 10)
    assert len(sent[3]) == 2, "the first stage is free after 0.1 s, a forward of the drafter"
    assert len(sent[-1]) == 1, "it is busy for 0.5 s: the next segment is chosen when more is drafted"


def test_single_rows_that_become_quick_in_mid_request_go_alone():
    strategy = auto(lone_share=0.0)
    several = [PipelineTrip(rows, 1.0 + 0.001 * rows) for rows in (128,)]
    strategy.handle(Prefilled(5, 0, 9, 4, tuple(several)))
    share, _ = decision_of(strategy)
    share.observe([PipelineTrip(1, 0.9)] * 5)
    assert not decision_of(strategy)[1]
    share.observe([PipelineTrip(1, 0.3)] * 20)
    assert not decision_of(strategy)[1], "many rows may be dear, or one cheap"
    share.observe([PipelineTrip(5, 1.005)])
    assert decision_of(strategy)[1]


def test_a_candidate_becomes_a_node_as_the_root_moves():
    script = Script(auto(least_node=0.2), granted=9, stages=9)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert [send.tokens for send in script.sends] == [(0, 1, 2), (3,)]
    assert script.verified([5], 2) == [
        Emit((2,)),
        AcceptPath((5,), 7, ends_round=False),
        Send((5, 6), (6, 6)),
    ], "0.15 and 0.12 have become 0.5 and 0.4"
    growth = script.grow.growth
    script.layer([[-1, -1]], [[0.0, 0.0]])
    assert script.grow.growth == growth
    assert script.grow.tokens == (5, 6)


def test_a_token_that_was_proposed_is_no_miss():
    script = Script(auto(least_node=0.2), granted=9, stages=9)
    script.layer(*FIRST)
    script.layer(*SECOND)
    growth = script.grow.growth
    assert script.verified([5, 6], 4) == [
        Emit((1, 4)),
        AcceptPath((5, 6), None, ends_round=False),
        Send((4,), (-1,)),
    ], "the root goes in any case"
    script.layer([[8, 9]], [[0.5, 0.5]])
    assert script.grow.tokens == (4,)
    assert script.grow.growth == growth, "the drafter knows its parent"
    assert script.returned() == []


def test_a_miss_begins_a_new_tree():
    script = Script(auto(), granted=9, stages=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    growth = script.grow.growth
    assert script.verified([5], 77) == [
        Emit((77,)),
        AcceptPath((5,), None, ends_round=True),
        Grow(growth + 1, (0,), (-1,), (77,), 2),
    ]
    assert script.returned() == []
    script.layer(*FIRST)
    assert script.sends[-1].tokens == (77, 1, 2)


def test_drafting_begins_at_the_root_again_once_the_growth_is_stale():
    script = Script(auto(stale_tokens=2, segment_rows=1), granted=9, stages=9)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert [send.tokens for send in script.sends[:3]] == [(0,), (1,), (2,)]
    growth = script.grow.growth
    script.verified([5], 1)
    assert script.grow.growth == growth, "one token is not worth it"
    script.verified([6], 3)
    assert script.grow == Grow(growth + 1, (0,), (-1,), (3,), 2)


def test_at_the_bound_of_draft_rows_nothing_is_sent():
    script = Script(auto(max_draft_rows=4), granted=9, stages=9)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert [len(send.tokens) for send in script.sends] == [3, 1]
    script.verified([5], 1)
    assert len(script.sends) > 2


def test_the_smallest_sizes_there_are_still_decode():
    script = Script(auto(max_nodes=1, segment_rows=1, max_draft_rows=1, candidates=1), granted=9)
    for token in range(3):
        script.layer([[token + 7]], [[0.9]])
        assert script.sends[-1].tokens == (script.emitted[-1],)
        script.verified(script.in_flight[0], 100 + token)
    assert script.emitted == [0, 100, 101, 102]


def test_a_drafter_with_nothing_to_say_leaves_the_root():
    script = Script(auto(), granted=9)
    script.layer([[-1, -1]], [[0.0, 0.0]])
    assert script.sends == [Send((0,), (-1,))]
    assert script.grow is None
    script.verified([5], 3)
    assert script.grow.tokens == (3,)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prior": 0.0}, "prior is 0"),
        ({"least_node": 0.0}, "least_node is 0"),
        ({"segment_rows": 2.5}, "whole number"),
        ({"depth": 3}, "unknown strategy option depth"),
    ],
)
def test_options_are_checked(options, reason):
    with pytest.raises(BadRequestError, match=reason):
        make_strategy("auto", options)


class DrafterCheck:
    """Checks each requested layer against the nodes that a drafter has in its scratch cache."""

    def __init__(self) -> None:
        self.growth = 0
        self.paths: dict[int, tuple[int, ...]] = {}

    def ask(self, grow: Grow) -> None:
        if grow.growth != self.growth:
            assert grow.growth > self.growth
            assert (grow.nodes, grow.parents) == ((0,), (-1,)), "a growth begins at the root"
            self.growth, self.paths = grow.growth, {0: ()}
            return
        asked = dict(self.paths)
        for node, parent, token in zip(grow.nodes, grow.parents, grow.tokens, strict=True):
            assert parent in self.paths, "its parent was asked for in an earlier layer"
            assert node not in asked, "a node is drafted below once"
            asked[node] = (*self.paths[parent], token)
        assert len(set(asked.values())) == len(asked), "one name for one path"
        self.paths = asked


@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_auto_on_random_scripts(data, seed):
    """Every Send, Prune and Emit is held against the sequence by the script; here the rest."""
    values = {
        "candidates": data.draw(st.integers(1, 4)),
        "draft_nodes": data.draw(st.integers(1, 6)),
        "segment_rows": data.draw(st.integers(1, 6)),
        "max_draft_rows": data.draw(st.integers(1, 25)),
        "max_nodes": data.draw(st.integers(1, 40)),
        "least_node": data.draw(st.sampled_from([0.001, 0.05, 0.5])),
        "row_price": data.draw(st.sampled_from([0.0, 1.0, 1e9])),
        "stale_tokens": data.draw(st.sampled_from([0.0, 2.0, 1e9])),
        "lone_share": data.draw(st.sampled_from([0.0, 0.2, 1.0])),
        "extra_segments": data.draw(st.sampled_from([0.0, 1.5])),
        "prior": data.draw(st.sampled_from([0.1, 20.0])),
    }
    rng = np.random.default_rng(seed)
    vocab, stages = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    settings = AutoSettings.from_options(values)
    strategy, check = Auto(settings), DrafterCheck()
    script = Script(
        strategy, token=int(rng.integers(vocab)), granted=data.draw(st.integers(0, 3)), stages=stages
    )
    drawn = list(script.emitted)

    def answer() -> None:
        check.ask(script.grow)
        count = int(rng.integers(min(script.grow.width, vocab) + 1))
        tokens = [rng.permutation(vocab)[:count].tolist() for _ in script.grow.nodes]
        shape = (len(tokens), count)
        probs = np.sort(rng.choice([0.0, 0.1, 0.25, 0.5, 1.0], size=shape))[:, ::-1]
        script.layer(tokens, probs, float(rng.random()))

    for _ in range(60):
        step, before = rng.integers(3), len(script.sends)
        if step == 0 and script.grow is not None:
            answer()
        elif step == 1 and script.credits + len(script.in_flight) < 8:
            script.credit()
        elif script.in_flight and not script.in_flight[0]:
            script.returned()
        elif script.in_flight:
            accepted, token = follow(script, script.in_flight[0], rng, vocab)
            first = script.in_flight[0][0]
            drawn += [int(script.sequence.tokens[row - first]) for row in accepted[1:]] + [token]
            script.verified(accepted, token, PipelineTrip(int(rng.integers(1, 7)), float(rng.random())))
        check_state(strategy, script, script.sends[before:], settings.segment_rows)
        assert sum(map(bool, script.in_flight)) <= stages + values["extra_segments"] + 1
    assert script.emitted == drawn
    # Whatever has happened: with credits, layers and what comes back, the root always gets out.
    for _ in range(40):
        if any(script.in_flight):
            return
        if script.in_flight:
            script.returned()
        elif script.grow is not None:
            answer()
        else:
            script.credit()
    pytest.fail("decoding has come to a halt")


def follow(script: Script, rows: list[int], rng: np.random.Generator, vocab: int) -> tuple[list[int], int]:
    """Draw at random along the rows of a returned segment."""
    assert rows[0] == script.sequence.context, "a row that has come back is still draft"
    accepted = [rows[0]]
    while True:
        token = int(rng.integers(vocab))
        row = script.row_of(accepted[-1], token)
        if row is None or row not in rows:
            return accepted, token
        accepted.append(row)


def check_state(strategy: Auto, script: Script, sends: list[Send], limit: int) -> None:
    tree = draft_tree(strategy)
    check_tree(tree)
    assert (tree.context, tree.next_row) == (script.sequence.context, script.sequence.length)
    assert all(len(send.tokens) <= limit for send in sends)
    effective, end = tree.effective_scores(), script.sequence.length
    sent = [effective[tree.node_of_row(row)] for row in range(end - sum(len(s.tokens) for s in sends), end)]
    assert sent == sorted(sent, reverse=True), "segments are not ordered by score"
    unsent = effective[tree.rows == UNSENT]
    if sent and len(unsent) and script.grow is None:
        assert sent[-1] >= unsent.max(), "a better node was left behind"
    if script.grow is None and not any(script.in_flight) and not script.credits:
        assert tree.rows[0] == UNSENT, "the root waits for a credit"
