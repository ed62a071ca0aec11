"""Stages that slow down: what is noticed, and where the layers had better lie then."""

from __future__ import annotations

import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.planning.placement.drift import LEAST_WORK, better_division, slower_by
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.live_division import Division, divide
from tests.planning.placement.test_live_division import GOAL, LINK, NAMES, measured

STAGES = ("a", "b", "c")
FLEET = Fleet({"d0": measured(5.0), **{name: measured(4.0) for name in STAGES}}, LINK, {})


def division() -> Division:
    return divide(GOAL, FLEET, "d0", STAGES)


def work(found: Division, **slower: float) -> dict[str, list[tuple[int, float]]]:
    """Segments of 1 and 16 rows, which take 4 ms a layer, times what a stage is slower by."""
    seconds = {
        stage: layers * 0.004 * slower.get(stage, 1.0)
        for stage, layers in zip(found.stages, found.split, strict=True)
    }
    return {stage: [(1, each), (16, each)] * LEAST_WORK for stage, each in seconds.items()}


def test_stages_that_do_what_was_expected_keep_their_layers() -> None:
    found = division()
    factors = slower_by(found, work(found), DRAFT_NODE)
    assert factors == pytest.approx(dict.fromkeys(STAGES, 1.0))
    assert better_division(found, factors or {}) is None


def test_what_all_stages_have_in_common_moves_nothing() -> None:
    found = division()
    factors = slower_by(found, work(found, a=3.0, b=3.0, c=3.1), DRAFT_NODE)
    assert factors is not None and max(factors.values()) == pytest.approx(3.1 / 3)
    assert better_division(found, factors) is None


def test_the_lm_head_is_no_slowness_of_the_last_stage() -> None:
    found = division()
    head_s = GOAL.head_time_s(FLEET.devices["c"], 1)
    done = {**work(found), "c": [(rows, seconds + head_s) for rows, seconds in work(found)["c"]]}
    assert slower_by(found, done, LAST_STAGE) == pytest.approx(dict.fromkeys(STAGES, 1.0))
    drawn_elsewhere = slower_by(found, done, DRAFT_NODE)
    assert drawn_elsewhere is not None and drawn_elsewhere["c"] > 1


def test_a_stage_that_has_slowed_down_gives_layers_away() -> None:
    found = division()
    factors = slower_by(found, work(found, b=3.0), DRAFT_NODE)
    assert factors == pytest.approx({"a": 1.0, "b": 3.0, "c": 1.0})
    move = better_division(found, factors or {})
    assert move is not None
    before = dict(zip(found.stages, found.split, strict=True))
    after = dict(zip(move.division.stages, move.division.split, strict=True))
    assert sum(after.values()) == GOAL.model.layers and after["b"] < before["b"] / 2
    assert move.gain > 1.15
    said = move.words(NAMES, 12.0)
    assert said.startswith("bench takes 3.0 times as long as expected; with the layers attic ")
    assert said.endswith("moving takes about 12 s")
    again = slower_by(move.division, {stage: [(1, 1.0)] * LEAST_WORK for stage in STAGES}, DRAFT_NODE)
    assert again is not None, "the new division knows what the stages take now"
    known = work(move.division, b=3.0)
    factors = slower_by(move.division, known, DRAFT_NODE)
    assert factors == pytest.approx(dict.fromkeys(STAGES, 1.0))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("slower", "known"), [(0.9, 0.9), (1.0, 1.0), (1.7, 1.0), (2.0, 1.0), (6.0, 3.0)])
def test_a_stage_of_the_draft_node_may_take_twice_as_long(slower: float, known: float) -> None:
    """It drafts meanwhile, more or less."""
    found = divide(GOAL, FLEET, "d0", ("d0", "a", "b"))
    layers = found.split[0]
    done = work(found, d0=slower * 5.0 / 4.0)
    factors = slower_by(found, done, DRAFT_NODE)
    least = min(known, 1.0)
    assert layers and factors == pytest.approx({"d0": known / least, "a": 1 / least, "b": 1 / least})


def test_nothing_is_said_of_stages_that_have_hardly_computed() -> None:
    found = division()
    assert slower_by(found, {}, DRAFT_NODE) is None
    assert slower_by(found, {**work(found), "c": [(1, 1.0)] * (LEAST_WORK - 1)}, DRAFT_NODE) is None
