"""`auto` on scripts of events, and on random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import StageTime
from flowedge.core.tree import UNSENT
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.auto.probation import Mode
from flowedge.strategies.commands import AcceptPath, Emit, Grow, Send, Withdraw
from flowedge.strategies.registry import make_strategy
from flowedge.strategies.settings import AutoSettings
from tests.core.trees import check_tree
from tests.strategies.auto_scripts import auto, layer_of, slow, trip_of
from tests.strategies.script import Script
from tests.strategies.script_layers import FIRST, SECOND
from tests.support.seams import draft_tree, planned_segments, times_of


def test_the_first_root_goes_alone_and_a_single_layer_is_drafted_beside_it():
    script = Script(auto(), granted=9, stages=2, trips=(PipelineTrip(40, 2.0),))
    assert script.sends == [Send((0,), (-1,))]
    script.layer(*FIRST, 0.1)
    assert script.grow is None, "the root shows what a single row takes"
    script.now = 1.0
    script.verified([5], 1, PipelineTrip(1, 1.0))
    assert script.grow is not None


def test_the_root_goes_with_its_first_layer_where_that_comes_soon():
    script = slow()
    script.now = 1.0
    assert script.sends == [], "the root alone would keep its children waiting"
    growth = script.grow.growth
    assert script.grow == Grow(growth, (0,), (-1,), (0,), 2)
    script.layer(*FIRST, 0.1)
    assert script.sends == [Send((0, 1, 2), (-1, 5, 5))]
    assert script.grow == Grow(growth, (1, 2), (0, 0), (1, 2), 2)
    script.now = 2.5
    script.layer(*SECOND, 0.1)
    assert script.sends[1] == Send((3, 5, 6, 4), (6, 7, 7, 6)), "the likeliest first"


def test_the_root_goes_alone_where_its_children_come_late():
    script = slow()
    script.layer(*FIRST, 3.0)
    script.verified([5], 77)
    assert script.sends[-1] == Send((77,), (-1,)), "the first stage would wait for the most of a second"


def test_nothing_is_sent_in_front_of_a_busy_stage_while_more_is_drafted():
    script = slow(stages=3)
    script.layer(*FIRST, 0.1)
    script.now = 0.1
    script.layer(*SECOND, 0.1)
    assert len(script.sends) == 1, "the first stage is busy for most of a second yet"
    script.now = 1.05
    script.credit()
    assert len(script.sends) == 2


def test_nothing_is_sent_that_would_wait_in_front_of_a_slow_stage_behind_a_quick_one():
    script = slow(stages=3, first_s=0.01)
    script.layer(*FIRST, 0.1)
    script.now = 0.1
    script.credit()
    script.layer(*SECOND, 0.1)
    assert len(script.sends) == 1, "the first stage is free, the second for most of a second not"
    script.now = 0.8
    script.credit()
    assert len(script.sends) == 2


@pytest.mark.parametrize(("now", "begun"), [(0.0, True), (0.8, True), (0.95, False)])
def test_no_forward_is_begun_that_would_hold_up_the_next_return_for_more_than_it_adds(
    now: float, begun: bool
):
    script = slow(1, layer_s=0.9)
    assert len(script.sends) == 1, "the root, which returns after a second"
    script.now = now
    script.layer(*FIRST, 0.9)
    assert (script.grow is not None) is begun, "it adds 0.72 tokens, and one comes out in a second"


def test_every_row_goes_alone_where_that_is_much_quicker():
    trips = (PipelineTrip(1, 1.0),)
    script = Script(auto(), granted=9, stages=3, trips=trips)
    script.layer(*FIRST)
    script.verified([script.in_flight[0][0]], 1, PipelineTrip(2, 9.0))
    while script.in_flight and len(script.sends) < 4:
        script.verified(script.in_flight[0], 77, PipelineTrip(len(script.in_flight[0]), 9.0))
    assert [len(send.tokens) for send in script.sends[2:]] == [1] * len(script.sends[2:])


def test_no_more_segments_are_under_way_than_there_are_stages():
    script = slow(2, segment_rows=1)
    script.layer(*FIRST)
    script.now = 9.0
    script.layer(*SECOND)
    assert [send.tokens for send in script.sends] == [(0,), (1,)]
    script.now = 18.0
    script.verified([5], 1)
    assert [send.tokens for send in script.sends[2:]] == [(3,)], "chosen from the newest tree"


def test_with_one_segment_in_flight_nothing_follows_it_and_its_times_are_its_own():
    measured = MeasuredPipeline()
    measured.trials[True].mode = Mode.ONE
    strategy = Auto(AutoSettings.from_options({"candidates": 2, "prior": 1e9, "row_price": 0.0}), measured)
    script = Script(strategy, granted=9, stages=2, trips=(trip_of(40, 2),))
    script.layer(*FIRST)
    script.now = 9.0
    assert len(script.sends) == 1
    script.verified([5], 1, PipelineTrip(1, 0.2, (StageTime(1, 0.1),) * 2))
    assert len(script.sends) == 2
    assert measured.times[Mode.ONE].trips(1).trip[0] == pytest.approx(0.2)
    assert measured.times[Mode.ALL].trips(40).trip[39] == pytest.approx(2.0), "as in the prompt's trip"
    assert measured.times[Mode.ALL].trips(1).trip[0] > 1, "which the fifth of a second has not changed"


def test_lookup_alone_is_asked_below_a_root_of_its_own_and_its_times_are_its_own():
    measured = MeasuredPipeline(looks_up=True)
    trial = measured.trials[True]
    script = slow(measured=measured)
    script.layer(*FIRST)
    assert script.grow.nodes != (0,) and not script.grow.lookup_alone
    trial.mode = Mode.LOOKUP
    script.now = 9.0
    script.verified([5], 1)
    assert script.grow.nodes == (0,) and script.grow.lookup_alone
    script.layer([[4, 6]], [[0.9, 0.05]], 0.5)
    assert script.grow.tokens == (4, 6) and script.grow.lookup_alone, "as the root's layer"
    trial.mode = Mode.ALL
    script.now = 12.0
    script.verified(script.in_flight[0][:1], 4)
    assert script.grow.nodes == (0,) and not script.grow.lookup_alone, "the models have no row of that tree"
    assert measured.times[Mode.LOOKUP].root_forward == pytest.approx(0.5)
    assert measured.times[Mode.ALL].root_forward < 0.1


def test_a_layer_that_comes_too_late_tells_how_long_it_took():
    script = slow()
    times = times_of(script.strategy)
    for _ in range(20):
        script.strategy.drop_layer(layer_of(3.0))
    assert times.root_forward > 1
    script.strategy.drop_layer(replace(layer_of(900.0), extends_prompt=True))
    assert times.root_forward < 4, "the prompt's rows are no part of later layers"


def test_a_forward_that_has_not_begun_is_chosen_anew_after_a_verification():
    script = slow()
    script.layer(*FIRST)
    assert script.grow.tokens == (1, 2)
    commands = script.verified([5, 6], 4)
    assert Withdraw() in commands
    assert script.grow.tokens == (4,), "the likeliest now"


def decode_badly(script: Script, tokens: int) -> None:
    """Draw tokens that the drafter does not propose. A forward of it takes half a second, a trip one."""
    for number in range(tokens):
        while script.grow is not None or not script.in_flight:
            script.now += 0.5
            script.layer([[1, 2]] * len(script.grow.nodes), [[0.6, 0.3]] * len(script.grow.nodes), 0.5)
        while not script.in_flight[0]:
            script.returned()
        script.now += 1.0
        script.credit()
        rows = script.in_flight[0]
        script.verified(rows[:1], 50 + number, trip_of(len(rows), 1))


def test_plain_decoding_takes_over_where_drafting_is_slower():
    script = slow(1)
    decode_badly(script, 60)
    assert len(script.appended) > 40
    assert script.grow is None


def test_drafting_is_tried_again_after_many_plain_tokens():
    script = slow(1)
    decode_badly(script, 60)
    before = len(script.sends)
    decode_badly(script, 300)
    assert 0 < len(script.sends) - before < 40, "the pauses become longer"


def test_a_candidate_becomes_a_node_as_the_root_moves():
    script = slow(9, least_node=0.2)
    script.layer(*FIRST)
    script.now = 9.0  # the first stage is free
    script.layer(*SECOND)
    assert [send.tokens for send in script.sends] == [(0, 1, 2), (3,)]
    growth = script.grow.growth
    script.now = 18.0
    assert script.verified([5], 2)[:3] == [
        Emit((2,)),
        AcceptPath((5,), 7, ends_round=False),
        Withdraw(),
    ]
    assert script.sends[-1] == Send((5, 6), (6, 6)), "0.15 and 0.12 have become 0.5 and 0.4"
    assert script.grow.growth == growth, "the drafter knows its parent"
    assert set(script.grow.tokens) == {5, 6}


def test_a_token_that_was_proposed_is_no_miss():
    script = slow(9, least_node=0.2)
    script.layer(*FIRST)
    script.now = 9.0  # the first stage is free
    script.layer(*SECOND)
    growth = script.grow.growth
    assert script.verified([5, 6], 4)[:3] == [
        Emit((1, 4)),
        AcceptPath((5, 6), None, ends_round=False),
        Withdraw(),
    ]
    assert script.sends[-1] == Send((4,), (-1,)), "the root goes in any case"
    assert script.grow == Grow(growth + 1, (0,), (-1,), (4,), 2), "with the target's features"
    assert script.returned() == []


def test_a_miss_begins_a_new_tree():
    script = slow(2)
    script.layer(*FIRST)
    script.now = 9.0  # the first stage is free
    script.layer(*SECOND)
    growth = script.grow.growth
    assert script.verified([5], 77) == [
        Emit((77,)),
        AcceptPath((5,), None, ends_round=True),
        Withdraw(),
        Grow(growth + 1, (0,), (-1,), (77,), 2),
    ]
    assert script.returned() == []
    script.now = 9.0
    script.layer(*FIRST)
    assert script.sends[-1].tokens == (77, 1, 2)


def test_drafting_begins_at_the_root_again_once_that_takes_a_small_share_of_the_time():
    script = slow(9, regrow_share=3, segment_rows=1)
    script.layer(*FIRST, 0.1)
    script.layer(*SECOND, 0.1)
    growth = script.grow.growth
    script.now = 0.1
    script.verified([5], 1)
    assert script.grow.growth == growth, "one token is not worth it"
    script.now = 5.0
    script.verified([6], 3)
    assert script.grow == Grow(growth + 1, (0,), (-1,), (3,), 2)


def test_at_the_bound_of_draft_rows_nothing_is_sent():
    script = slow(9, max_draft_rows=4)
    script.layer(*FIRST)
    script.now = 9.0  # the first stage is free
    script.layer(*SECOND)
    assert [len(send.tokens) for send in script.sends] == [3, 1]
    script.now = 18.0
    script.verified([5], 1)
    assert len(script.sends) > 2


def test_the_smallest_sizes_there_are_still_decode():
    script = slow(1, max_nodes=1, segment_rows=1, max_draft_rows=1, candidates=1)
    for token in range(3):
        if not script.in_flight:
            script.layer([[token + 7]], [[0.9]])
        assert [*script.appended, *(send.tokens[0] for send in script.sends)][-1] == script.emitted[-1]
        script.verified(script.in_flight[0], 100 + token)
    assert script.emitted == [0, 100, 101, 102]


def test_a_drafter_with_nothing_to_say_leaves_the_root():
    script = slow(1)
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
        self.alone = False

    def ask(self, grow: Grow) -> None:
        if grow.growth != self.growth:
            assert grow.growth > self.growth
            assert (grow.nodes, grow.parents) == ((0,), (-1,)), "a growth begins at the root"
            self.growth, self.paths, self.alone = grow.growth, {0: ()}, grow.lookup_alone
            return
        asked = dict(self.paths)
        for node, parent, token in zip(grow.nodes, grow.parents, grow.tokens, strict=True):
            assert parent in self.paths, "its parent was asked for in an earlier layer"
            assert grow.lookup_alone is self.alone, "the same drafters were asked"
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
        "regrow_share": data.draw(st.sampled_from([0.0, 2.0, 1e9])),
        "prior": data.draw(st.sampled_from([0.1, 20.0])),
    }
    rng = np.random.default_rng(seed)
    vocab, stages = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    settings = AutoSettings.from_options(values)
    measured = MeasuredPipeline(looks_up=data.draw(st.booleans()))
    strategy, check = Auto(settings, measured), DrafterCheck()
    script = Script(
        strategy, token=int(rng.integers(vocab)), granted=data.draw(st.integers(0, 3)), stages=stages
    )
    drawn, most = list(script.emitted), stages

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
            script.now += float(rng.random())
            times = tuple(StageTime(int(rng.integers(3)), float(rng.random())) for _ in range(stages))
            script.verified(
                accepted, token, PipelineTrip(int(rng.integers(1, 7)), float(rng.random()), times)
            )
        if rng.random() < 0.2:  # another session draws tokens
            measured.trials[True].decide(int(rng.integers(20)), *(3 * rng.random(3)).tolist())
        if rng.random() < 0.1:  # or begins
            measured.trials[True].begin(stages)
        check_state(strategy, script, script.sends[before:], settings.segment_rows)
        most = max(most, planned_segments(strategy))
        assert sum(map(bool, script.in_flight)) <= most
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
    if is_committed(script, rows):
        return rows, int(rng.integers(vocab))
    assert rows[0] == script.sequence.context, "a row that has come back is still draft"
    accepted = [rows[0]]
    while True:
        token = int(rng.integers(vocab))
        row = script.row_of(accepted[-1], token)
        if row is None or row not in rows:
            return accepted, token
        accepted.append(row)


def is_committed(script: Script, rows: list[int]) -> bool:
    return bool(rows) and rows[0] < script.sequence.context


def check_state(strategy: Auto, script: Script, sends: list[Send], limit: int) -> None:
    tree = draft_tree(strategy)
    check_tree(tree)
    ahead = int(any(is_committed(script, rows) for rows in script.in_flight))  # the root, until it is back
    assert (tree.context, tree.next_row) == (script.sequence.context - ahead, script.sequence.length - ahead)
    assert all(len(send.tokens) <= limit for send in sends)
    effective, end = tree.effective_scores(), script.sequence.length
    sent = [effective[tree.node_of_row(row)] for row in range(end - sum(len(s.tokens) for s in sends), end)]
    assert sent == sorted(sent, reverse=True), "segments are not ordered by score"
    unsent = effective[tree.rows == UNSENT]
    if sent and len(unsent) and script.grow is None:
        assert sent[-1] >= unsent.max(), "a better node was left behind"
    if script.grow is None and not any(script.in_flight) and not script.credits:
        assert ahead or tree.rows[0] == UNSENT, "the root waits for a credit"
