"""Whether `auto` drafts, and with how many segments in flight, by what it has measured."""

from __future__ import annotations

import pytest

from flowedge.strategies.auto.probation import DraftingProbation, Mode


def test_drafting_that_is_slower_stops_and_is_tried_rarely():
    trial, drafted = DraftingProbation(), []
    for _ in range(1000):
        trial.decide(1, predicted=9.0, measured=1.0 if trial.drafts else 2.0, plain=2.0)
        drafted.append(trial.drafts)
    assert drafted[:8] == [True] * 7 + [False]
    assert 0 < sum(drafted[100:]) <= 32, "a few trials of eight tokens"


def test_plain_decoding_that_is_slower_than_was_predicted_gives_way():
    trial = DraftingProbation()
    for _ in range(80):
        trial.decide(1, predicted=9.0, measured=1.5 if trial.drafts else 1.0, plain=2.0)
    assert trial.drafts


def test_drafting_that_cannot_pay_is_not_tried():
    trial = DraftingProbation()
    for _ in range(100):
        trial.decide(1, predicted=1.0, measured=2.0, plain=2.0)
        assert not trial.drafts


def test_drafting_is_judged_by_its_speed_and_not_by_the_prediction_once_it_has_one():
    trial = DraftingProbation()
    for step in range(100):
        trial.decide(1, predicted=9.0 if step < 8 else 1.0, measured=3.0, plain=2.0)
    assert trial.drafts


def test_the_second_session_begins_with_plain_decoding_to_know_its_speed():
    trial = DraftingProbation(one_host=True)
    trial.begin(1)
    for _ in range(20):
        trial.decide(1, predicted=9.0, measured=3.0, plain=2.0)
    assert trial.drafts
    trial.begin(1)
    assert not trial.drafts
    for _ in range(8):
        trial.decide(1, predicted=9.0, measured=4.0, plain=2.0)
    assert not trial.drafts, "plain decoding is faster than was predicted"
    trial.begin(1)
    assert not trial.drafts, "the third session knows it"


def test_where_each_device_has_a_host_of_its_own_the_prediction_of_plain_decoding_is_believed():
    trial = DraftingProbation()
    for _ in range(3):
        trial.begin(4)
        assert speeds_of(trial, {Mode.ALL: 2.2}, 60) == [Mode.ALL] * 60


def test_a_session_begins_by_drafting_where_that_paid_on_the_whole_though_not_in_the_last_text():
    trial = DraftingProbation()
    for gain, count in ((2.0, 100), (0.8, 20)):
        trial.begin(1)
        for _ in range(count):
            trial.decide(1, predicted=9.0, measured=2.0 * gain if trial.drafts else 2.0, plain=2.0)
    assert not trial.drafts
    trial.begin(1)
    assert trial.drafts
    for _ in range(60):  # several such texts, of which each stops drafting soon
        trial.begin(1)
        for _step in range(20):
            trial.decide(1, predicted=9.0, measured=1.6 if trial.drafts else 2.0, plain=2.0)
    trial.begin(1)
    assert not trial.drafts


def test_a_session_goes_on_drafting_where_the_one_before_it_gained():
    trial = DraftingProbation()
    for _ in range(3):
        trial.begin(1)
        for _step in range(20):
            trial.decide(1, predicted=9.0, measured=3.0 if trial.drafts else 1.0, plain=2.0)
        assert trial.drafts
    trial.begin(1)
    assert trial.drafts


def test_drafting_is_tried_at_once_where_plain_decoding_has_become_slower():
    trial = DraftingProbation()
    drafted = []
    for step in range(100):
        plain = 2.0 if step < 60 else 1.0
        trial.decide(1, predicted=9.0, measured=1.0 if trial.drafts else plain, plain=2.0)
        drafted.append(trial.drafts)
    assert not any(drafted[10:60])
    assert drafted[60]


def test_what_was_measured_counts_as_much_more_or_less_as_the_pipeline_has_become_faster_or_slower():
    trial = DraftingProbation(one_host=True)
    for _ in range(2):
        trial.begin(1)
        for _ in range(20):
            trial.decide(1, predicted=9.0, measured=3.0 if trial.drafts else 2.0, plain=2.0)
    assert trial.drafts
    for _ in range(20):  # everything takes three times as long
        trial.decide(1, predicted=3.0, measured=1.0, plain=2.0 / 3)
        assert trial.drafts, "it is faster than plain decoding still"
    assert trial.plain_tokens_per_s == pytest.approx(2.0 / 3)


def test_drafting_is_measured_anew_where_the_pipeline_has_become_another():
    trial = DraftingProbation()
    assert not any(trial.decide(1, predicted=9.0, measured=3.0, plain=2.0) for _ in range(30))
    assert trial.decide(1, predicted=18.0, measured=3.1, plain=4.0), "the mean has only begun to rise"
    assert not any(trial.decide(1, predicted=18.0, measured=3.5, plain=4.0) for _ in range(7))
    assert trial.drafts


def test_drafting_that_pays_goes_on():
    trial = DraftingProbation()
    assert not any(trial.decide(1, predicted=9.0, measured=3.0, plain=2.0) for _ in range(100))
    assert trial.drafts


def speeds_of(trial: DraftingProbation, speeds: dict[Mode, float], tokens: int) -> list[Mode]:
    """Decode so many tokens, each mode with its speed; returns the mode of each."""
    modes = []
    for _ in range(tokens):
        modes.append(trial.mode)
        trial.decide(1, predicted=9.0, measured=speeds[trial.mode], plain=2.0)
    return modes


def test_lookup_alone_is_tried_before_plain_decoding_and_goes_on_while_it_costs_nothing():
    speeds = {Mode.ALL: 1.95, Mode.LOOKUP: 1.99, Mode.PLAIN: 2.0}
    modes = speeds_of(DraftingProbation(looks_up=True), speeds, 120)
    assert modes == [Mode.ALL] * 16 + [Mode.LOOKUP] * 104
    assert Mode.LOOKUP not in speeds_of(DraftingProbation(), speeds, 400)


def test_lookup_alone_that_is_slower_than_plain_decoding_is_tried_rarely():
    trial = DraftingProbation(looks_up=True)
    modes = []
    for _ in range(2000):
        modes.append(trial.mode)
        trial.decide(1, predicted=1.5, measured=1.9 if trial.drafts else 2.0, plain=2.0)
    assert modes[0] is Mode.LOOKUP or modes[1] is Mode.LOOKUP, "all drafters are predicted to be slower"
    assert Mode.ALL not in modes[2:]
    assert 0 < modes[200:].count(Mode.LOOKUP) < 0.2 * 1800


def test_lookup_alone_gives_way_to_all_drafters_where_these_are_faster():
    trial = DraftingProbation(looks_up=True)
    trial.mode = Mode.LOOKUP
    modes = speeds_of(trial, {Mode.ALL: 3.0, Mode.LOOKUP: 2.2}, 400)
    assert set(modes[:100]) == {Mode.LOOKUP} and set(modes[-100:]) == {Mode.ALL}
    modes = speeds_of(trial, {Mode.ALL: 2.0, Mode.LOOKUP: 4.0}, 400)
    assert modes[-100:].count(Mode.LOOKUP) > 60


@pytest.mark.parametrize(
    ("speeds", "last"),
    [
        ({Mode.PLAIN: 3.0, Mode.ALL: 2.6, Mode.ONE: 4.0}, Mode.ONE),  # on a shared processor
        ({Mode.PLAIN: 2.0, Mode.ALL: 5.0, Mode.ONE: 3.0}, Mode.ALL),
        ({Mode.PLAIN: 2.0, Mode.ALL: 3.0, Mode.ONE: 5.0}, Mode.ONE),
        ({Mode.PLAIN: 4.0, Mode.ALL: 3.0, Mode.ONE: 3.5}, Mode.PLAIN),
    ],
)
def test_the_third_session_shows_what_a_single_segment_in_flight_brings(
    speeds: dict[Mode, float], last: Mode
) -> None:
    trial = DraftingProbation(one_host=True)
    trial.begin(4)
    assert Mode.ONE not in speeds_of(trial, speeds, 40)
    trial.begin(4)
    assert speeds_of(trial, speeds, 40)[:8] == [Mode.PLAIN] * 8
    trial.begin(4)
    assert speeds_of(trial, speeds, 40)[:16] == [Mode.ONE] * 16
    trial.begin(4)
    modes = speeds_of(trial, speeds, 2000)
    assert modes[0] is last
    assert modes.count(last) > 0.9 * len(modes), "what is slower is tried rarely"


def test_a_single_segment_gives_way_when_several_have_become_faster() -> None:
    trial, speeds = DraftingProbation(one_host=True), {Mode.PLAIN: 3.0, Mode.ALL: 2.6, Mode.ONE: 4.0}
    for _ in range(3):
        trial.begin(4)
        speeds_of(trial, speeds, 40)
    assert trial.mode is Mode.ONE
    speeds[Mode.ALL] = 8.0
    assert speeds_of(trial, speeds, 300)[-1] is Mode.ALL


def test_a_pipeline_of_one_stage_has_one_segment_in_flight_in_any_case() -> None:
    trial, speeds = DraftingProbation(one_host=True), {Mode.PLAIN: 2.0, Mode.ALL: 3.0}
    for _ in range(5):
        trial.begin(1)
        assert Mode.ONE not in speeds_of(trial, speeds, 40)


def test_a_trial_that_a_short_answer_cuts_off_goes_on_with_the_next() -> None:
    trial, speeds = DraftingProbation(one_host=True), {Mode.PLAIN: 3.0, Mode.ALL: 2.6, Mode.ONE: 4.0}
    for tokens in (40, 40, 10):
        trial.begin(4)
        speeds_of(trial, speeds, tokens)
    trial.begin(4)
    assert speeds_of(trial, speeds, 20) == [Mode.ONE] * 20
