"""The candidates of a plan against all that there are, on small fleets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal
from flowedge.planning.placement.layouts import BOTH, Search, layouts, layouts_in_order
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.model import ModelProfile
from flowedge.planning.split import divided, least_bound

MODEL = ModelProfile(
    title="small",
    source="a test",
    layers=5,
    hidden=1024,
    intermediate=4096,
    heads=8,
    kv_heads=8,
    vocab=32_000,
    drafters={"eagle": {"kind": "eagle"}},  # type: ignore[dict-item]
)
GOAL = Goal(MODEL, context=1024)
NAMES = "abcd"


def board(memory_gib: float, gb_s: float) -> DeviceProfile:
    return DeviceProfile(
        title="board",
        source="a test",
        memory_gib=memory_gib,
        memory_bandwidth_gb_s=gb_s,
        memory_efficiency=1.0,
        tflops=4.0,
        layer_overhead_ms=0.1,
    )


def cable(mbps: float, latency_ms: float) -> LinkProfile:
    return LinkProfile(title="cable", source="a test", mbps=mbps, latency_ms=latency_ms)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    names = NAMES[: draw(st.integers(1, 4))]
    boards = st.builds(board, st.sampled_from([0.25, 0.4, 0.6, 2.0]), st.sampled_from([10.0, 25.0, 60.0]))
    cables = st.builds(cable, st.sampled_from([50.0, 1000.0]), st.sampled_from([0.1, 2.0, 20.0]))
    devices = {name: draw(boards) for name in names}
    pairs = [frozenset(pair) for pair in combinations(names, 2)]
    links = {pair: draw(cables) for pair in pairs} if draw(st.booleans()) else {}
    return Fleet(devices, draw(cables), links)


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations(range(1, layers), stages - 1):
        yield tuple(after - before for before, after in zip((0, *cuts), (*cuts, layers), strict=True))


@dataclass(frozen=True)
class Times:
    """The times of one layout: of a round, and of the device that takes the longest."""

    round_s: float
    slowest_s: float


def every_time(goal: Goal, fleet: Fleet) -> Iterator[Times]:
    """Yield the times of all layouts that fit."""
    row, boards = goal.model.hidden * goal.model.stored_bytes, fleet.devices
    for draft_node in boards:
        held, draft_s = goal.draft_node_bytes, goal.draft_time_s(boards[draft_node])
        if held > boards[draft_node].memory_gib * 2**30:
            continue
        for count, at_last in product(range(1, min(len(boards), goal.model.layers) + 1), (False, True)):
            for stages in permutations(boards, count):
                if draft_node in stages[1:-1] or (at_last and stages[-1] == draft_node):
                    continue
                links = [
                    fleet.between(one, other) for one, other in pairwise([draft_node, *stages, draft_node])
                ]
                link_s = sum(SEGMENT_ROWS * row / link.bytes_per_s + link.latency_ms / 1e3 for link in links)
                head_s = goal.head_time_s(boards[stages[-1] if at_last else draft_node])
                alone_s = draft_s if at_last else draft_s + head_s
                most = []
                for number, name in enumerate(stages):
                    tables = (number == 0) + (at_last and number == count - 1)
                    beside = tables * goal.table_bytes + (held if name == draft_node else 0.0)
                    most.append(goal.most_layers(boards[name], beside))
                for split in splits(goal.model.layers, count):
                    if any(layers > cap for layers, cap in zip(split, most, strict=True)):
                        continue
                    spent = [
                        layers * goal.layer_time_s(boards[name]) * (BOTH if name == draft_node else 1.0)
                        for layers, name in zip(split, stages, strict=True)
                    ]
                    total = sum(spent) + link_s + head_s + draft_s
                    spent[-1] += head_s if at_last else 0.0
                    yield Times(total, max(*spent, alone_s))


def compare_with_every_layout(fleet: Fleet) -> None:
    every, found = list(every_time(GOAL, fleet)), layouts(GOAL, fleet)
    assert bool(every) == bool(found)
    if every:
        assert found[0].round_s == pytest.approx(min(each.round_s for each in every))
        least = min(layout.slowest_s for layout in found)
        assert least == pytest.approx(min(each.slowest_s for each in every))
        assert all(
            any(
                (each.round_s, each.slowest_s) == pytest.approx((layout.round_s, layout.slowest_s))
                for each in every
            )
            for layout in found
        ), "each is a layout that fits"


@pytest.mark.proof
@settings(max_examples=120, deadline=None)
@given(fleets())
def test_the_quickest_round_and_the_least_slowest_device_are_found(fleet: Fleet) -> None:
    compare_with_every_layout(fleet)


@pytest.mark.proof
@settings(max_examples=2_000, deadline=None)
@given(fleets())
def test_they_are_found_in_many_fleets(fleet: Fleet) -> None:
    compare_with_every_layout(fleet)


@settings(max_examples=40, deadline=None)
@given(fleets(), st.sampled_from([0.4, 2.0]), st.sampled_from([10.0, 60.0]))
def test_another_device_makes_no_round_longer(fleet: Fleet, memory_gib: float, gb_s: float) -> None:
    before = layouts(GOAL, fleet)
    larger = Fleet({**fleet.devices, "e": board(memory_gib, gb_s)}, fleet.link, fleet.links)
    after = layouts(GOAL, larger)
    if before:
        assert after[0].round_s <= before[0].round_s * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(fleets())
def test_a_given_order_is_divided_as_well(fleet: Fleet) -> None:
    names = [*fleet.devices]
    if len(names) < 3:
        return
    given_parts = layouts_in_order(GOAL, fleet, names[0], names[1:])
    assert all((each.draft_node, each.stages) == (names[0], tuple(names[1:])) for each in given_parts)
    if len(names) == 3 and not fleet.links:
        free = layouts(GOAL, fleet, Search(leaders=(names[0],), apart=True, all_devices=True))
        assert bool(given_parts) <= bool(free)
        if given_parts:
            assert free[0].round_s <= given_parts[0].round_s * (1 + 1e-9)


def test_the_fastest_devices_take_as_many_layers_as_the_bound_allows() -> None:
    assert divided(10, [1.0, 2.0, 3.0], [10, 10, 10], float("inf")) == [8, 1, 1]
    assert divided(10, [1.0, 2.0, 3.0], [5, 10, 10], float("inf")) == [5, 4, 1]
    assert least_bound(10, [1.0, 2.0, 3.0], [10, 10, 10]) == 6.0
    assert divided(10, [1.0, 2.0, 3.0], [10, 10, 10], 6.0) == [6, 3, 1]
    assert divided(10, [1.0, 2.0], [4, 4], float("inf")) is None
    assert divided(1, [1.0, 2.0], [4, 4], float("inf")) is None
    assert least_bound(10, [1.0, 2.0], [4, 4]) is None


@st.composite
def lines(draw: st.DrawFn) -> tuple[int, list[float], list[int], list[float]]:
    """Layers, and for each of up to 16 stages seconds of a layer, most layers, and seconds beside them."""
    count = draw(st.integers(1, 16))
    seconds = st.integers(1, 100).map(float)
    times = draw(st.lists(seconds, min_size=count, max_size=count))
    most = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    return draw(st.integers(1, 80)), times, most, [0.0] * (count - 1) + [draw(seconds)]


@settings(max_examples=150, deadline=None)
@given(lines(), st.floats(1.0, 3.0))
def test_divisions_are_those_of_an_integer_programme(
    line: tuple[int, list[float], list[int], list[float]], slack: float
) -> None:
    layers, times, most, fixed = line
    count = len(times)
    bounds = Bounds([1] * count, most)
    total = LinearConstraint([[1] * count], layers, layers)
    # The least time of the slowest stage, as a variable behind the layers of each.
    rows = np.hstack([np.diag(times), -np.ones((count, 1))])
    found = milp(
        [0.0] * count + [1.0],
        integrality=[1] * count + [0],
        bounds=Bounds([1] * count + [0.0], [*map(float, most), np.inf]),
        constraints=[
            LinearConstraint([[1] * count + [0]], layers, layers),
            LinearConstraint(rows, -np.inf, [-each for each in fixed]),
        ],
    )
    assume(found.status in (0, 2))  # solved, or infeasible
    least = least_bound(layers, times, most, fixed)
    assert (least is None) == (not found.success)
    if least is None:
        return
    assert least == pytest.approx(max(found.fun, *fixed), rel=1e-6)
    bound = least * slack + 1e-6
    below = LinearConstraint(np.diag(times), -np.inf, [bound - each for each in fixed])
    best = milp(times, integrality=[1] * count, bounds=bounds, constraints=[total, below])
    split = divided(layers, times, most, bound, fixed)
    assert split is not None and best.success
    assert np.dot(split, times) == pytest.approx(best.fun, rel=1e-6)


def test_what_a_stage_does_beside_its_layers_counts() -> None:
    assert least_bound(10, [1.0, 1.0], [10, 10], [0.0, 4.0]) == 7.0
    assert divided(10, [1.0, 1.0], [10, 10], 7.0, [0.0, 4.0]) == [7, 3]
