"""The objective of `auto`, and the times it is computed from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.arrays import FloatArray
from flowedge.core.messages import StageTime
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.objective import (
    CycleTimes,
    RowChoice,
    choose_rows,
    nodes_beside,
    nodes_of_forward,
)
from flowedge.strategies.auto.row_times import RowTimes
from flowedge.strategies.auto.segments_in_flight import SegmentsInFlight
from flowedge.strategies.auto.speed import Speed
from flowedge.strategies.auto.step_times import StepTimes, TripTimes
from flowedge.strategies.events import Layer
from flowedge.strategies.pipeline_steps import is_worth_waiting
from tests.strategies.auto_scripts import layer_of

HALVING = np.append(1.0, 0.5 ** np.arange(1, 200))
ROWS = np.arange(1.0, 17.0)


def test_times_are_the_least_that_they_can_be_between_measured_rows():
    times = RowTimes()
    times.observe(2, 1.0)
    times.observe(8, 2.0)
    assert times.curve(8) == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.25, 1.5, 1.75, 2.0])
    assert times.seconds(14) == pytest.approx(3.0), "as between the two"


def test_transfer_times_are_linear_between_measured_rows_and_beyond_them():
    times = RowTimes(linear=True)
    assert times.curve(3).tolist() == [0.0, 0.0, 0.0]
    times.observe(2, 1.0)
    times.observe(6, 3.0)
    assert times.curve(8) == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])


def test_one_measurement_gives_a_line_that_is_nearly_flat():
    times = RowTimes()
    times.observe(64, 1.3)
    assert times.seconds(64) == pytest.approx(1.3)
    assert times.seconds(1) == pytest.approx(1.0, abs=0.01)


def test_times_never_fall_with_the_rows():
    times = RowTimes()
    times.observe(1, 2.0)
    times.observe(4, 1.0)
    assert times.curve(4).tolist() == [1.5, 1.5, 1.5, 1.5]


def test_a_change_of_the_times_is_followed():
    times = RowTimes()
    for seconds in [1.0] * 5 + [3.0] * 24:
        times.observe(4, seconds)
    assert times.seconds(4) == pytest.approx(3.0, rel=0.02)


def test_what_is_not_measured_at_present_changes_with_what_is():
    times = RowTimes()
    for rows, seconds in ((1, 1.0), (8, 2.0), (64, 4.0)):
        times.observe(rows, seconds)
    for _ in range(12):
        times.observe(8, 4.0)  # the device has become half as fast
    assert times.times(np.array([1.0, 64.0])) == pytest.approx([2.0, 8.0], rel=0.15)
    before = times.curve(64)
    times.observe(7, 3.8)
    assert times.curve(64)[[0, 63]] == pytest.approx(before[[0, 63]]), "noise changes nothing else"


def test_what_took_no_time_is_no_measure_of_a_factor():
    times = RowTimes()
    for rows, seconds in ((1, 0.0), (8, 1e-12), *[(1, 1.0), (8, 1.0)] * 4):
        times.observe(rows, seconds)
    assert np.all(times.curve(64) < 2.0)


def test_a_forward_below_the_root_is_also_one_over_a_single_node():
    times = StepTimes()
    times.observe_layer(Layer(0, (0,), np.zeros((1, 1)), np.zeros((1, 1)), 0.2), of_root=True)
    times.observe_layer(Layer(0, (1, 2, 3), np.zeros((3, 1)), np.zeros((3, 1)), 0.4), of_root=False)
    assert times.root_forward == pytest.approx(0.2)
    assert times.forwards(3) == pytest.approx([0.2, 0.8 / 3, 0.4])


def test_a_trip_is_the_time_of_its_stages_and_of_the_links():
    times = StepTimes()
    times.begin(2)
    quick_and_slow = (StageTime(1, 1.0), StageTime(1, 3.0))
    times.observe_trip(PipelineTrip(1, 4.5, quick_and_slow))
    times.observe_trip(PipelineTrip(1, 99.0, (StageTime(1, 1.0, 80.0), StageTime(1, 3.0, 14.5))))
    found = times.trips(1)
    assert (found.trip[0], found.first[0], found.interval[0]) == pytest.approx((4.5, 1.0, 3.0))


def test_a_link_that_becomes_slower_is_followed_whatever_the_rows():
    times = StepTimes()
    times.begin(1)
    for rows in (1, 8):
        times.observe_trip(PipelineTrip(rows, 1.0 + 0.1 * rows, (StageTime(rows, 1.0),)))
    for _ in range(12):
        times.observe_trip(PipelineTrip(8, 1.0 + 0.8 + 3.0, (StageTime(8, 1.0),)))
    assert times.trips(8).trip[[0, 7]] == pytest.approx([4.1, 4.8], rel=0.1)


def test_nodes_join_a_forward_while_they_bring_more_than_they_lengthen_it():
    probabilities, added_s = np.array([0.5, 0.2, 0.1, 0.01]), np.array([0.1, 0.2, 0.3, 0.4])
    assert nodes_beside(probabilities, added_s, 1.0, 1.0) == 2
    assert nodes_beside(probabilities, added_s, 1.0, 0.0) == 4, "nothing waits"
    assert nodes_beside(probabilities, added_s, 0.1, 1.0) == 0


def test_a_row_that_was_not_worth_a_place_is_not_worth_a_segment_of_its_own():
    plan = RowChoice(2, 1, 1.0, np.array([0.0, 0.2, 0.3]))
    assert plan.thresholds_behind(np.zeros(3, dtype=bool)).tolist() == [0.2, 0.2, 0.3]
    assert plan.thresholds_behind(np.array([True, False, True])).tolist() == [0.0, 0.2, 0.3]
    alone = RowChoice(1, 1, 1.0, np.array([0.0, 0.2]))
    assert alone.thresholds_behind(np.ones(2, dtype=bool)).tolist() == [0.0, 0.2]


def test_a_stage_that_computed_none_of_the_rows_tells_nothing():
    times = StepTimes()
    times.begin(2)
    times.observe_trip(PipelineTrip(2, 4.0, (StageTime(2, 1.0), StageTime(2, 1.0))))
    times.observe_trip(PipelineTrip(2, 1.0, (StageTime(2, 1.0), StageTime(0, 0.0))))
    assert times.trips(2).trip[1] == pytest.approx(4.0)


def test_a_narrow_link_sets_the_interval():
    times = StepTimes()
    times.begin(1)
    times.observe_trip(PipelineTrip(1, 1.2, (StageTime(1, 1.0),)))
    times.observe_trip(PipelineTrip(4, 7.2, (StageTime(4, 1.0),)))
    assert times.trips(4).interval == pytest.approx([1.0, 1.0, 2.0, 3.0]), (
        "a second a row on each of two links"
    )


def fed(seconds: FloatArray, draft_node_s: float = 0.0) -> CycleTimes:
    """Return times of a pipeline in which segments never wait for each other."""
    return CycleTimes(seconds, np.zeros(len(seconds)), np.full(len(seconds), draft_node_s))


def test_rows_that_cost_nothing_are_all_worth_it():
    plan = choose_rows(HALVING, fed(np.ones(16)), 2, 1.0, 1.0)
    assert plan.rows == 16
    assert plan.thresholds.tolist() == [0.0] * 16


def test_rows_that_cost_as_much_as_a_segment_go_alone():
    plan = choose_rows(HALVING, fed(ROWS), 2, 1.0, 1.0)
    assert plan.rows == 1
    assert plan.tokens_per_s == pytest.approx(1.5), "the root and a child in flight, a second a trip"


def test_a_jump_after_the_first_row_is_weighed_against_what_more_rows_reveal():
    jump = np.where(ROWS > 1, 3.0, 1.0)
    assert choose_rows(np.append(1.0, np.full(199, 0.01)), fed(jump), 2, 1.0, 1.0).rows == 1
    assert choose_rows(np.append(1.0, np.full(199, 0.9)), fed(jump), 2, 1.0, 1.0).rows == 16


def test_several_rows_have_to_be_clearly_better_where_they_take_much_longer_than_one():
    seconds = np.where(ROWS > 1, 2.0, 1.0)
    probabilities = np.append(1.0, np.full(15, 0.08))
    assert choose_rows(probabilities, fed(seconds), 1, 1.0, 1.0).rows == 1, "2.2 tokens in twice the time"
    likelier = np.append(1.0, np.full(15, 0.12))
    assert choose_rows(likelier, fed(seconds), 1, 1.0, 1.0).rows == 16, "2.8 tokens in twice the time"


def test_a_row_has_to_add_as_much_to_the_tokens_as_to_the_time():
    segments, seconds = 2, 10.0 + ROWS
    plan = choose_rows(HALVING, fed(seconds), segments, 1.0, 1.0)
    tokens = np.cumsum(HALVING)[plan.rows * segments - 1]
    worth = segments * plan.thresholds[1] / tokens
    assert worth == pytest.approx(1 / seconds[plan.rows - 1]), "the slope of T over T"
    assert choose_rows(HALVING, fed(seconds), segments, 1.0, 3.0).thresholds == pytest.approx(
        3 * plan.thresholds
    )
    assert 2 <= plan.rows < 16
    beyond = plan.thresholds[plan.rows :]
    assert beyond == pytest.approx(segments * plan.thresholds[1]), (
        "a row that one segment has more than others"
    )


def test_a_slow_draft_node_keeps_fewer_segments_in_flight():
    quick = choose_rows(HALVING, fed(np.ones(16), 0.1), 4, 1.0, 1.0)
    slow = choose_rows(HALVING, fed(np.ones(16), 1.0), 4, 1.0, 1.0)
    assert quick.tokens_per_s == pytest.approx(2.0, rel=0.01), "the whole tree, every second"
    assert slow.tokens_per_s == pytest.approx(2.0, rel=0.01), "in a single segment of two levels"
    assert choose_rows(HALVING, fed(np.ones(16), 1.0), 4, 0.5, 1.0).tokens_per_s == pytest.approx(1.5)


@given(seed=st.integers(0, 2**32), segments=st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_the_planned_rows_are_the_best_of_all(seed, segments):
    rng = np.random.default_rng(seed)
    probabilities = np.append(1.0, np.sort(rng.random(16 * segments - 1))[::-1])
    seconds = 2.0 + np.cumsum(rng.random(16))
    plan = choose_rows(probabilities, fed(seconds), segments, 1.0, 1.0)
    rates = [probabilities[: rows * segments].sum() / seconds[rows - 1] for rows in range(1, 17)]
    assert (plan.segments, rates[plan.rows - 1]) == (segments, max(rates))


def test_nodes_that_cost_nothing_are_all_drafted():
    count, tokens = nodes_of_forward(np.full(10, 0.05), np.ones(10), math.inf, 0.8, 9.0, 64)
    assert (count, tokens) == (10, pytest.approx(0.4))


def test_unlikely_nodes_are_left_out_where_nodes_take_time():
    probabilities, seconds = np.array([0.6, 0.2, 0.01, 0.01]), np.array([1.0, 1.1, 1.2, 1.3])
    assert nodes_of_forward(probabilities, seconds, math.inf, 1.0, 1.0, 64)[0] == 2
    assert nodes_of_forward(probabilities, seconds, 1.0, 1.0, 3.0, 64)[0] == 1, "0.2 tokens for 0.3"


def test_more_nodes_than_rows_are_in_flight_add_nothing():
    likely = np.full(10, 0.5)
    assert nodes_of_forward(likely, np.ones(10), 0.0, 1.0, 0.6, 2) == (2, pytest.approx(1.0))


def test_the_root_waits_for_children_that_are_there_soon():
    assert is_worth_waiting(0.1, 0.8, 1.0, 1.0)
    assert not is_worth_waiting(0.5, 0.8, 1.0, 1.0)
    assert not is_worth_waiting(1e-9, 0.8, 1.0, 1e-9), "a segment behind it would be as early"


def test_unlikely_rows_wait_longer_than_likely_ones():
    assert is_worth_waiting(0.5, 0.4, 0.3, 1.0)
    assert not is_worth_waiting(0.5, 0.4, 0.5, 1.0)


@pytest.mark.parametrize(("links_s", "segments"), [(0.0, 3), (0.1, 3), (0.25, 4), (0.9, 9), (100.0, 64)])
def test_more_segments_than_stages_are_in_flight_where_links_take_most_of_a_trip(links_s, segments):
    stage = np.full(4, 0.1)
    assert CycleTimes(3 * stage + links_s, stage, stage).segments(3) == segments


def test_a_return_is_expected_after_the_trip_and_after_the_segment_before():
    flight = SegmentsInFlight()
    assert flight.next_return(3.0) == math.inf
    times = TripTimes(np.array([4.0]), np.array([2.0]), np.array([2.0]), np.array([2.0]))
    flight.send(1.0, times, 1)
    assert (flight.next_return(2.0), flight.wait(2.0, times, 1)) == (3.0, 1.0)
    flight.send(1.5, times, 1)
    flight.take_back()
    assert (flight.next_return(2.0), flight.wait(2.0, times, 1)) == (5.0, 3.0)
    assert flight.next_return(99.0) == 0.0, "it is late"
    flight.all_died(2.0)
    assert flight.wait(2.0, times, 1) == 0.0


def test_segments_wait_for_each_other_in_front_of_the_slowest_stage_and_not_for_those_that_died():
    flight = SegmentsInFlight()
    # A first stage of 1 s, a link of 1 s, a stage of 5 s and 3 s behind it.
    times = TripTimes(np.array([10.0]), np.array([1.0]), np.array([5.0]), np.array([8.0]))
    for _ in range(3):
        flight.send(0.0, times, 1)
    assert flight.next_return(0.0) == 10.0
    # The slowest stage is 2 s away, and busy until 17 s; a quarter of its 5 s are kept in reserve.
    assert flight.wait(4.0, times, 1) == flight.wait(4.0, times, 9) == 11.0 - 1.25
    flight.keep([1, 3], now=4.0)
    assert flight.wait(4.0, times, 1) == 6.0 - 1.25
    flight.take_back()
    assert flight.next_return(10.0) == 5.0, "the third is behind the first"
    flight.keep([3], now=10.0)
    assert flight.next_return(10.0) == 5.0, "it has been in the slowest stage since 7 s"


def test_the_speed_is_a_guess_at_first():
    speed = Speed(7.0, 0.0)
    assert speed.tokens_per_s == 7.0
    speed.count(3, 2.0)
    assert speed.tokens_per_s == pytest.approx(1.5)
    speed.restart()
    assert speed.tokens_per_s == pytest.approx(1.5)
    speed.count(1, 2.5)
    assert speed.tokens_per_s == pytest.approx(2.0), "of the time since"


def test_the_speed_follows_what_comes_out():
    speed = Speed(1.0, 0.0)
    for step in range(1, 200):
        speed.count(2, step * 0.5)
    assert speed.tokens_per_s == pytest.approx(4.0, rel=0.01)


def test_a_forward_takes_what_the_draft_node_does_around_it_as_well():
    times = StepTimes()
    for _ in range(100):
        times.observe_handling(0.001)
    assert not times.forwards(3).any(), "no forward is known"
    times.observe_layer(layer_of(0.002), of_root=False)
    assert times.forwards(3) == pytest.approx(0.003, rel=0.01)
    assert not times.root_forward, "none below a root is known"
    times.observe_layer(layer_of(0.004), of_root=True)
    assert times.root_forward == pytest.approx(0.005, rel=0.01)


def test_a_draft_node_that_was_held_up_once_is_not_slow():
    times = StepTimes()
    times.observe_layer(layer_of(0.002), of_root=False)
    times.observe_handling(10.0)
    assert times.forwards(1)[0] < 0.0025


def test_a_rounding_of_the_clock_is_no_handling():
    times = StepTimes()
    times.observe_layer(layer_of(0.002), of_root=False)
    times.observe_handling(1e-12)
    assert times.forwards(1)[0] == 0.002
