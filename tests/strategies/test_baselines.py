"""The published methods on scripts of events: the rules that distinguish each method."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError
from flowedge.strategies.commands import AcceptPath, Emit, Grow, Send
from flowedge.strategies.events import Prefilled, Returned
from flowedge.strategies.flowspec import FlowSpec
from flowedge.strategies.in_flight_limit import InFlightLimit
from flowedge.strategies.published.flowspec_paper import FlowSpecNoSBD, FlowSpecPaper
from flowedge.strategies.published.pipeinfer import PipeInfer
from flowedge.strategies.published.pruned_pp import PrunedPP
from flowedge.strategies.published.stepwise import PipeDec, SpecPipe, SpecPipeSettings
from flowedge.strategies.registry import make_strategy
from flowedge.strategies.settings import LevelSettings, MicroBatchSettings
from flowedge_testbed.emulation.specpipe_width import best_width, time_between_tokens
from tests.strategies.script import Script
from tests.strategies.script_layers import FIRST, SECOND, grow_all, small


def grow_first_tree(script: Script) -> None:
    script.layer(*FIRST)
    assert script.sends == [], "the whole tree is drafted before its first segment goes"
    script.layer(*SECOND)


# ------------------------------------------------------------------------------------------------- turns


def test_a_turn_is_free_for_each_segment_that_has_come_back():
    gate = InFlightLimit(2, granted=3)
    gate.send()
    assert gate.may_send
    gate.send()
    assert not gate.open
    assert gate.take_back()
    assert gate.may_send
    gate.send()
    assert gate.take_back()
    assert gate.open
    assert not gate.may_send, "there is no credit"


def test_segments_of_an_earlier_round_hold_no_turn():
    gate = InFlightLimit(2, granted=4)
    gate.send()
    gate.send()
    gate.flush()
    gate.send()
    gate.send()
    assert [gate.take_back() for _ in range(4)] == [False, False, True, True]


# --------------------------------------------------------------------------------------------- pruned_pp


def test_pruned_pp_sends_one_tree_in_score_ordered_segments_of_equal_length():
    script = Script(PrunedPP(small(segment_rows=4)), granted=9, stages=2)
    grow_first_tree(script)
    assert script.sends == [Send((0, 1), (-1, 5)), Send((3, 2), (6, 5)), Send((5,), (8,))]


def test_pruned_pp_has_one_segment_more_under_way_than_there_are_stages():
    script = Script(PrunedPP(small(segment_rows=1)), granted=9, stages=1)
    grow_first_tree(script)
    assert [send.tokens for send in script.sends] == [(0,), (1,)]
    script.verified([5], 1)
    assert [send.tokens for send in script.sends] == [(0,), (1,), (3,)]


def test_pruned_pp_prunes_as_segments_return_and_ends_the_round_early():
    script = Script(PrunedPP(small()), granted=3, stages=2)
    grow_first_tree(script)
    assert script.verified([5, 6], 3) == [Emit((1, 3)), AcceptPath((5, 6), 7, ends_round=False)], (
        "no expansion"
    )
    assert script.verified([7], 9) == [
        Emit((9,)),
        AcceptPath((7,), None, ends_round=True),
        Grow(2, (0,), (-1,), (9,), 2),
    ]
    assert script.returned() == [], "a segment that died holds no turn of the new round"


# ---------------------------------------------------------------------------------------- flowspec_paper


def test_an_expansion_follows_the_turn_and_is_a_single_segment():
    script = Script(FlowSpecPaper(small()), granted=2, stages=1)
    grow_first_tree(script)
    assert [send.tokens for send in script.sends] == [(0, 1), (3, 2)]
    commands = script.verified([5, 6], 3)
    assert commands == [
        Emit((1, 3)),
        AcceptPath((5, 6), 7, ends_round=False),
        Grow(2, (0,), (-1,), (3,), 2),
    ]
    script.credit()
    script.layer(*FIRST)
    assert len(script.sends) == 2, "the expansion is drafted to its full depth"
    script.layer(*SECOND)
    assert script.sends[2] == Send((1, 3, 2, 5), (7, 8, 7, 10)), "it may be longer than L_max"


def test_a_turn_without_an_update_deepens_the_last_tree():
    script = Script(FlowSpecPaper(small()), granted=3, stages=2)
    grow_first_tree(script)
    script.verified([5, 6], 3)
    script.credit()
    script.layer([[11, 12]], [[0.9, 0.1]])
    script.layer([[13, 14], [15, 16]], [[0.9, 0.1], [0.5, 0.5]])
    assert script.sends[-1].tokens == (11, 13, 12, 14)
    script.verified([7], 11)
    script.credit()
    script.layer([[13, 21]], [[0.9, 0.1]])
    script.layer([[22, 23], [24, 25]], [[0.9, 0.1], [0.5, 0.5]])
    assert script.sends[-1].tokens == (22, 21, 23), "13 is under way already"
    (grow,) = script.returned()
    assert isinstance(grow, Grow)
    assert grow.growth == 3
    assert grow.nodes != (0,)
    script.credit()
    script.layer(*[[[31, 32]] * 2, [[0.9, 0.1]] * 2])
    assert len(script.sends[-1].tokens) == 2, "L_se nodes"


def test_what_comes_back_in_the_middle_of_a_turn_waits_for_its_end():
    script = Script(FlowSpecPaper(small()), granted=3, stages=2)
    assert script.strategy.takes_results, "segments of the round before may come back"
    grow_first_tree(script)
    assert script.strategy.takes_results
    script.verified([5, 6], 3)
    script.layer([[11, 12]], [[0.9, 0.1]])
    assert not script.strategy.takes_results, "the expansion is not drafted to its full depth"
    script.credit()
    script.layer([[13, 14], [15, 16]], [[0.9, 0.1], [0.5, 0.5]])
    assert script.sends[-1] == Send((11, 13, 12, 14), (7, 8, 7, 8)), "the draft of the turn"
    assert script.strategy.takes_results, "the next turn begins"


def test_each_expansion_can_be_left_out():
    context_aware = Script(FlowSpecPaper(small(score_aware=0)), granted=4, stages=2)
    grow_first_tree(context_aware)
    context_aware.verified([5, 6], 3)
    context_aware.credit()
    context_aware.layer([[11, 12]], [[0.9, 0.1]])
    context_aware.layer([[13, 14], [15, 16]], [[0.9, 0.1], [0.5, 0.5]])
    context_aware.verified([7], 11)
    context_aware.layer([[13, 21]], [[0.9, 0.1]])
    context_aware.layer([[22, 23], [24, 25]], [[0.9, 0.1], [0.5, 0.5]])
    assert context_aware.returned() == [], "T_base is not deepened"

    score_aware = Script(FlowSpecPaper(small(context_aware=0)), granted=4, stages=2)
    grow_first_tree(score_aware)
    *_, grow = score_aware.verified([5, 6], 3)
    assert grow == Grow(1, (3,), (1,), (3,), 2), "T_base goes on below the living part of its frontier"
    score_aware.layer([[7, 8]], [[0.9, 0.05]])
    assert score_aware.sends[-1] == Send((7, 8), (7, 7))

    neither = Script(FlowSpecPaper(small(context_aware=0, score_aware=0)), granted=3, stages=2)
    grow_first_tree(neither)
    assert neither.verified([5, 6], 3) == [Emit((1, 3)), AcceptPath((5, 6), 7, ends_round=False)]


@pytest.mark.parametrize("strategy", [PrunedPP, FlowSpecPaper, FlowSpec])
def test_without_an_early_stop_the_next_round_waits_for_dead_segments(strategy):
    script = Script(strategy(small(early_stop=0, segment_rows=1)), granted=2, stages=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    first, ended, *withdrawn = script.verified([5], 9)
    assert (first, ended) == (Emit((9,)), AcceptPath((5,), None, ends_round=True, express=False))
    assert not [command for command in withdrawn if isinstance(command, Grow)]
    assert script.credit() == []
    assert script.returned() == [Grow(2, (0,), (-1,), (9,), 2)]


def test_without_score_based_segments_the_tree_goes_layer_by_layer():
    script = Script(FlowSpecNoSBD(small(segment_rows=4)), granted=9, stages=2)
    grow_first_tree(script)
    assert script.sends == [Send((0, 1), (-1, 5)), Send((2, 3), (5, 6)), Send((5,), (7,))]


# --------------------------------------------------------------------------------------- pipedec, specpipe


def levels(**changes: int) -> LevelSettings:
    return LevelSettings(**{"width": 2, "children": 2, **changes})


def test_pipedec_sends_one_layer_a_step_while_the_next_is_drafted():
    script = Script(PipeDec(levels()), granted=9, stages=2)
    assert script.sends == [Send((0,), (-1,))], "the root goes while its children are drafted"
    assert script.grow == Grow(1, (0,), (-1,), (0,), 2)
    script.layer(*FIRST)
    assert script.sends[1:] == [Send((1, 2), (5, 5))]
    assert script.grow == Grow(1, (1, 2), (0, 0), (1, 2), 2)
    script.layer(*SECOND)
    assert len(script.sends) == 2, "as many layers are under way as there are stages"
    assert script.grow is None, "and one is drafted ahead"


def test_pipedec_takes_the_best_cumulative_probabilities_for_a_layer():
    script = Script(PipeDec(levels()), granted=9, stages=3)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.sends[2] == Send((3, 5), (6, 7))


def test_a_hit_prunes_to_the_subtree_before_the_next_layer_is_chosen():
    script = Script(PipeDec(levels()), granted=9, stages=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.verified([5], 2) == [
        Emit((2,)),
        AcceptPath((5,), 7, ends_round=False),
        Send((5, 6), (6, 6)),
        Grow(1, (3, 4), (2, 2), (5, 6), 2),
    ]


def test_a_miss_begins_a_new_tree():
    script = Script(PipeDec(levels()), granted=9, stages=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert script.verified([5], 77) == [
        Emit((77,)),
        AcceptPath((5,), None, ends_round=True),
        Send((77,), (-1,)),
        Grow(2, (0,), (-1,), (77,), 2),
    ]
    assert script.returned() == []
    script.layer(*FIRST)
    assert script.sends[-1] == Send((1, 2), (6, 6)), "what died holds no step of the new tree"


def test_where_the_lowest_layers_die_the_next_is_built_on_the_deepest_that_lives():
    script = Script(PipeDec(levels()), granted=9, stages=3)
    script.layer(*FIRST)
    script.layer([[3, 4], [5, 6]], [[0.9, 0.8], [0.1, 0.05]])
    assert script.sends[2] == Send((3, 4), (6, 6))
    assert script.verified([5], 2) == [
        Emit((2,)),
        AcceptPath((5,), 7, ends_round=False),
        Send((5, 6), (6, 6)),
    ]
    script.layer(*SECOND)
    assert script.grow == Grow(1, (5, 6), (2, 2), (5, 6), 2), "what was drafted below dead nodes is forgotten"


def test_with_one_stage_the_drafted_children_count_as_the_next_layer():
    script = Script(PipeDec(levels()), granted=9, stages=1)
    script.layer(*FIRST)
    assert script.verified([5], 2) == [
        Emit((2,)),
        AcceptPath((5,), None, ends_round=False),
        Send((2,), (-1,)),
        Grow(1, (2,), (0,), (2,), 2),
    ]


def test_a_layer_never_goes_beyond_the_budget_of_rows():
    script = Script(PipeDec(levels(max_draft_rows=4)), granted=9, stages=9)
    script.layer(*FIRST)
    script.layer(*SECOND)
    assert [len(send.tokens) for send in script.sends] == [1, 2, 1]


def test_specpipe_feeds_levels_of_a_fixed_width():
    script = Script(SpecPipe(SpecPipeSettings(width=3, children=2)), granted=9, stages=4)
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.layer([[7, 8]] * 3, [[0.5, 0.5]] * 3)
    assert [len(send.tokens) for send in script.sends] == [1, 2, 3, 3]


def test_as_many_levels_are_in_flight_as_there_are_groups_of_stages():
    for made in (PipeDec(levels(groups=2)), SpecPipe(SpecPipeSettings(width=2, children=2, groups=2))):
        script = Script(made, granted=9, stages=4)
        script.layer(*FIRST)
        script.layer(*SECOND)
        assert len(script.sends) == 2
        script.verified([5], 2)
        assert len(script.sends) == 3, "a level enters when the level two steps before it has returned"


@pytest.mark.parametrize(("stages", "in_flight"), [(14, 14), (16, 16), (21, 16)])
def test_specpipe_groups_the_stages_of_a_long_pipeline(stages, in_flight):
    script = Script(SpecPipe(SpecPipeSettings(width=2, children=2)), granted=99, stages=stages)
    grow_all(script, np.random.default_rng(0))
    assert len(script.sends) == in_flight


def two_levels(**changes: int) -> Script:
    settings = SpecPipeSettings(**{"width": 2, "children": 2, "step_levels": 2, **changes})
    return Script(SpecPipe(settings), granted=9, stages=2)


def test_a_step_of_two_levels_waits_for_both_and_goes_as_one_segment():
    script = two_levels()
    assert script.sends == [Send((0,), (-1,))], "the root goes alone"
    script.layer(*FIRST)
    assert len(script.sends) == 1 and script.grow is not None, "the drafter goes on below the first level"
    script.layer(*SECOND)
    assert script.sends[1:] == [Send((1, 2, 3, 5), (5, 5, 6, 7))]


def test_a_step_of_two_levels_may_give_two_tokens():
    script = two_levels()
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.verified([5], 1)
    assert script.in_flight == [[6, 7]], "the subtree of the hit"
    assert script.verified([6, 7], 9)[0] == Emit((3, 9))
    assert script.emitted == [0, 1, 3, 9]


def test_a_prune_thins_out_the_levels_that_were_chosen_ahead():
    script = two_levels(groups=2)
    script.layer(*FIRST)
    script.layer(*SECOND)
    script.layer([[7, 8], [9, 10]], [[0.6, 0.01], [0.6, 0.3]])  # below 3 (0.54) and 5 (0.15)
    assert script.grow is not None, "below the level ahead, 7 and 9, though no turn is free"
    script.layer([[11, 12], [13, 14]], [[0.6, 0.3], [0.6, 0.3]])
    assert len(script.sends) == 2
    script.verified([5], 2)
    assert script.sends[2].tokens == (9, 13, 14), "9 alone, and the level below it in full"


def test_a_step_goes_with_fewer_levels_where_nothing_is_in_flight():
    script = two_levels()
    script.layer(*FIRST)
    script.verified([5], 1)
    assert script.sends[-1] == Send((1,), (-1,))


def test_a_level_goes_in_mini_batches_that_share_a_turn():
    settings = SpecPipeSettings(width=4, children=2, groups=2, mini_batches=2)
    script = Script(SpecPipe(settings), granted=2, stages=4)
    script.layer(*FIRST)
    assert [send.tokens for send in script.sends] == [(0,), (1,)]
    script.layer(*SECOND)
    script.credit()
    assert [send.tokens for send in script.sends] == [(0,), (1,), (2,)], "the rest of the level"
    script.credit()
    assert len(script.sends) == 3, "no turn is free for the next level"
    script.verified([5], 2)
    assert [send.tokens for send in script.sends[3:]] == [(5,)]
    script.credit()
    assert [send.tokens for send in script.sends[3:]] == [(5,), (6,)]
    assert script.in_flight == [[], [6], [7], [8]]
    script.returned()
    assert len(script.sends) == 5, "a turn ends with its last segment"


def test_what_is_left_of_a_level_dies_with_a_miss():
    settings = SpecPipeSettings(width=4, children=2, mini_batches=2)
    script = Script(SpecPipe(settings), granted=2, stages=4)
    script.layer(*FIRST)
    script.verified([5], 77)
    script.credit()
    assert script.sends[-1] == Send((77,), (-1,))
    assert script.returned() == []
    script.layer(*FIRST)
    script.credit()
    script.credit()
    assert [send.tokens for send in script.sends[-2:]] == [(1,), (2,)]


def test_the_width_is_the_one_with_the_shortest_expected_step():
    hit = {8: 0.5, 16: 0.8, 64: 0.9, 128: 0.91}
    assert time_between_tokens([0.070] * 4, 0.011, hit[16]) == pytest.approx(0.070 * (1 + 0.2 * 3))

    def leaping(rows: int) -> float:
        return time_between_tokens([0.070 * -(-rows // 64)] * 4, 0.011, hit[rows])

    assert best_width(hit, leaping) == 64, "before the step in time"
    assert best_width(hit, lambda rows: time_between_tokens([0.070] * 4, 0.011, hit[rows])) == 128
    slow_draft = best_width(hit, lambda rows: time_between_tokens([0.070] * 4, 0.02 * rows, hit[rows]))
    assert slow_draft == 8, "the draft is a step too"
    with pytest.raises(ValueError, match="no width"):
        best_width([], leaping)


# --------------------------------------------------------------------------------------------- pipeinfer


def batches(**changes: float) -> MicroBatchSettings:
    values = {"batch_rows": 4, "sequences": 1, "cutoff": 0.3, "recovery": 0.2, "decay": 0.1}
    return MicroBatchSettings.from_options({**values, **changes})


def test_pipeinfer_speculates_in_micro_batches_while_the_drawn_token_runs_alone():
    script = Script(PipeInfer(batches()), granted=2, stages=4)
    assert script.sends == [Send((0,), (-1,))], "the non-speculative run"
    for token in (1, 2, 3, 4):
        assert len(script.sends) == 1
        script.layer([[token]], [[0.9]])
    assert script.sends[1:] == [Send((1, 2, 3, 4), (5, 6, 7, 8))]
    assert script.grow == Grow(1, (4,), (3,), (4,), 1), "speculation is continuous"


def test_the_cut_off_rises_with_each_micro_batch_falls_with_each_failure_and_is_reset():
    strategy = PipeInfer(batches())
    script = Script(strategy, granted=9)
    for token in (1, 2, 3, 4):
        script.layer([[token]], [[0.9]])
    assert strategy.cutoff == pytest.approx(0.5)
    script.layer([[5]], [[0.45]])
    assert strategy.cutoff == pytest.approx(0.4), "an attempt has failed, and the next one takes the token"
    assert script.grow == Grow(1, (5,), (4,), (5,), 1)
    script.layer([[6]], [[0.15]])
    assert script.sends[-1].tokens == (5,), "what there is of the micro-batch is sent"
    assert strategy.cutoff == pytest.approx(0.1), "raised to 0.6, and five attempts have failed"
    script.verified([5], 1)
    assert strategy.cutoff == pytest.approx(0.3)


def test_with_a_fixed_cut_off_an_unlikely_token_ends_the_speculation():
    strategy = PipeInfer(batches(recovery=0, decay=0))
    script = Script(strategy, granted=9)
    script.layer([[1]], [[0.9]])
    script.layer([[2]], [[0.25]])
    assert script.sends[-1].tokens == (1,)
    assert script.grow is None
    script.verified([5], 1)
    assert script.grow is None
    assert strategy.cutoff == pytest.approx(0.3)
    script.verified([6], 2)
    assert script.grow == Grow(2, (0,), (-1,), (2,), 1)


def test_without_continuous_speculation_one_micro_batch_is_ahead_of_the_drawn_token():
    script = Script(PipeInfer(batches(continuous=0)), granted=9)
    for token in (1, 2, 3, 4):
        script.layer([[token]], [[0.9]])
    assert script.sends[-1].tokens == (1, 2, 3, 4)
    assert script.grow is None
    script.verified([5], 1)
    assert script.grow == Grow(1, (4,), (3,), (4,), 1)
    script.layer([[5]], [[0.9]])
    assert script.sends[-1].tokens == (5,)
    assert script.grow is None


def test_without_cancellation_the_runs_in_flight_are_left_alone():
    script = Script(PipeInfer(batches(cancel=0)), granted=9)
    for token in range(1, 5):
        script.layer([[token]], [[0.9]])
    assert script.verified([5], 99)[1] == AcceptPath((5,), None, ends_round=True, express=False)
    assert script.returned() == []


def test_a_mismatch_cancels_every_run_below_it():
    script = Script(PipeInfer(batches()), granted=9)
    for token in range(1, 9):
        script.layer([[token]], [[0.9]])
    assert len(script.sends) == 3
    assert script.verified([5], 99) == [
        Emit((99,)),
        AcceptPath((5,), None, ends_round=True),
        Send((99,), (-1,)),
        Grow(2, (0,), (-1,), (99,), 1),
    ]
    assert script.returned() == []
    assert script.returned() == []


def test_a_match_keeps_the_runs_and_the_drafter_goes_on():
    script = Script(PipeInfer(batches()), granted=9)
    for token in range(1, 5):
        script.layer([[token]], [[0.9]])
    assert script.verified([5], 1) == [Emit((1,)), AcceptPath((5,), 6, ends_round=False)]
    assert script.verified([6, 7, 8, 9], 55)[:2] == [
        Emit((2, 3, 4, 55)),
        AcceptPath((6, 7, 8, 9), None, True),
    ]


def test_a_drawn_token_that_is_not_under_way_yet_runs_alone():
    script = Script(PipeInfer(batches()), granted=9)
    script.layer([[1]], [[0.9]])
    assert script.verified([5], 1) == [
        Emit((1,)),
        AcceptPath((5,), None, ends_round=False),
        Send((1,), (-1,)),
    ]
    for token in (2, 3, 4, 5):
        script.layer([[token]], [[0.9]])
    assert script.sends[-1].tokens == (2, 3, 4, 5)


def test_a_likely_second_token_forks_the_micro_batch():
    script = Script(PipeInfer(batches(sequences=2, split=0.35)), granted=9)
    script.layer([[1, 2]], [[0.5, 0.4]])
    assert script.grow == Grow(1, (1, 2), (0, 0), (1, 2), 2)
    script.layer([[3, 4], [5, 6]], [[0.5, 0.4], [0.5, 0.4]])
    assert script.sends[-1] == Send((1, 2, 3, 5), (5, 5, 6, 7)), "two sequences, no more"


def test_speculation_rests_at_its_budget():
    script = Script(PipeInfer(batches(max_draft_rows=8)), granted=9)
    for token in range(1, 5):
        script.layer([[token]], [[0.9]])
    assert script.grow is None
    assert script.verified([5], 1)[-1] == Grow(1, (4,), (3,), (4,), 1)


def test_runs_wait_for_credits_in_order():
    script = Script(PipeInfer(batches(batch_rows=1)))
    for token in (1, 2):
        script.layer([[token]], [[0.9]])
    script.credit()
    script.credit()
    assert [send.tokens for send in script.sends] == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("pipeinfer", {"decay": -0.1}, "decay is -0.1"),
        ("pipeinfer", {"cancel": 2}, "cancel is 2; it must be 0 or more, 1 at most"),
        ("pipeinfer", {"continuous": 0.5}, "whole number"),
        ("pipeinfer", {"cutoff": -0.1}, "0 or more"),
        ("pipeinfer", {"recovery": float("inf")}, "at most"),
        ("pipeinfer", {"batch_rows": 1.5}, "whole number"),
        ("pipedec", {"depth": 3}, "unknown strategy option depth"),
        ("specpipe", {"width": 0}, "1 or more"),
    ],
)
def test_options_are_checked(name, options, reason):
    with pytest.raises(BadRequestError, match=reason):
        make_strategy(name, options)


@pytest.mark.parametrize("name", ["flowspec", "naive_pp", "pipeinfer"])
def test_asynchronous_strategies_and_naive_pp_need_no_word_of_dead_segments(name):
    strategy = make_strategy(name, {})
    strategy.handle(Prefilled(5, 0, 0, 4))
    assert list(strategy.handle(Returned())) == []
