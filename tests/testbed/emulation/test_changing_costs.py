"""Places that change in the middle of a request: how events are read, what they change, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import Credit
from flowedge.core.sampling import SamplingParams
from flowedge.planning.profile_costs import HEADER_BYTES, ProfileCosts
from flowedge.planning.virtual_pipeline import DRAFT_NODE, device_of
from flowedge_testbed.emulation.changing_costs import (
    ChangingCosts,
    added_latency,
    events_of,
    link_slowdown,
    slowdown,
)
from flowedge_testbed.emulation.place import Place, PlaceEvent, from_the_start
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.runs import Case, Run, Task, by_setup
from flowedge_testbed.scenario import SHIPPED, Scenario, read_scenario
from tests.planning.test_profile_costs import BYTES_PER_S, emulation, forward
from tests.support.session_jobs import batch_of
from tests.testbed.changing import ChangedAnswer, both_answers, place_of
from tests.testbed.conftest import SMALL, Bench, ScenarioFile, results
from tests.testbed.emulation.test_middles import MIDDLE

BOARDS: dict[str, Any] = {
    "devices": SMALL["devices"],
    "links": SMALL["links"],
    "emulated": {"model": "llama2-7b"},
}
TOKENS = 24


def event(at_s: float = 0.0, **changes: Any) -> PlaceEvent:
    return PlaceEvent(at_s=at_s, **changes)


def scenario(events: Sequence[dict[str, Any]], **changes: Any) -> Scenario:
    placed = {
        "devices": None,
        "links": None,
        "emulated": [],
        "places": {"boards": {**BOARDS, "events": events}},
    }
    drawn = {"verification": "draft-node"}  # so that plain decoding too has work on the draft node
    return Scenario.checked({**SMALL, **placed, **drawn, **changes}, "a test")


def boards(*events: dict[str, Any]) -> Case:
    [case] = cases(scenario(events), Path())
    return case


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "v1", "slower": 2}, "key places.boards.events.0.at_s"),
        ({"at_s": -1, "device": "v1", "slower": 2}, "events.0.at_s.*greater than or equal to 0"),
        ({"at_s": 1, "device": "v1", "slower": 0}, "events.0.slower.*greater than or equal to 1"),
        ({"at_s": 1, "device": "v1", "slower": "inf"}, "events.0.slower.*finite"),
        ({"at_s": 1, "link": "v1", "add_ms": -30}, "events.0.add_ms.*greater than or equal to 0"),
        ({"at_s": 1, "slower": 2}, "give the one or the other"),
        ({"at_s": 1, "device": "v1", "link": "v1", "slower": 2}, "give the one or the other"),
        ({"at_s": 1, "device": "v1", "slower": 2, "add_ms": 3}, "link: v1 for the link that leaves v1"),
        ({"at_s": 1, "link": "d0"}, "nothing changes at d0: give slower, or add_ms"),
        ({"at_s": 1, "stage": "v1", "slower": 2}, "events.0.stage.*not permitted"),
    ],
)
def test_a_wrong_event_is_explained(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        scenario([given])


@pytest.mark.parametrize("name", ["v5", "m1", "d1", "draft_node"])
def test_an_event_is_of_a_device_of_the_place(name: str) -> None:
    with pytest.raises(
        BadRequestError, match=f"events: {name} is not a device; there are d0, v1, v2, v3, v4"
    ):
        boards({"at_s": 1, "device": name, "slower": 2})
    with pytest.raises(BadRequestError, match=f"events: {name} is not a device"):
        boards({"at_s": 1, "link": name, "add_ms": 2})
    swept = scenario([{"at_s": 1, "device": "v4", "slower": 2}], sweep={"stages": [4, 2]})
    with pytest.raises(BadRequestError, match=r"events: v4 is not a device; there are d0, v1, v2$"):
        cases(swept, Path())


def test_the_device_of_a_middle_model_may_change() -> None:
    made = replace(emulation(), middles=(MIDDLE,))
    events = events_of([event(5, link="m1", add_ms=8)], made)
    costs, now = ProfileCosts(made), 4.0
    changing = ChangingCosts(costs, events, lambda: now)
    before = changing.latency(device_of(1))
    now = 5.0
    assert (before, changing.latency(device_of(1))) == (0.007, pytest.approx(0.015))


def test_a_later_event_replaces_what_it_names_and_nothing_else() -> None:
    given = [
        event(60, device="v1", slower=1),
        event(20, device="v1", slower=2),
        event(20, link="v1", slower=3),
        event(30, link="v1", add_ms=30),
        event(40, link="v1", add_ms=0),
    ]
    events = events_of(given, emulation())
    assert [each.at_s for each in events] == [20, 20, 30, 40, 60]
    assert [slowdown(events, "v1", now) for now in (0, 19.9, 20, 59.9, 60)] == [1, 1, 2, 2, 1]
    assert [link_slowdown(events, "v1", now) for now in (19.9, 20, 60)] == [1, 3, 3]
    assert [added_latency(events, "v1", now) for now in (20, 30, 40)] == [0, 0.03, 0]
    assert slowdown(events, "v2", 99) == link_slowdown(events, "d0", 99) == 1
    known = from_the_start(given)
    assert [slowdown(known, "v1", 0), link_slowdown(known, "v1", 0), added_latency(known, "v1", 0)] == [
        1,
        3,
        0,
    ]


def test_each_cost_changes_with_its_device_or_link() -> None:
    made = emulation()
    given = [event(10, device="v2", slower=2), event(10, device="d0", slower=4)]
    given += [event(10, link="v1", add_ms=30), event(10, link="d0", slower=3)]
    plain, now = ProfileCosts(made), 9.9
    costs = ChangingCosts(ProfileCosts(made), events_of(given, made), lambda: now)
    job = batch_of(forward(2, 5))
    message = Credit("s")

    def factors() -> list[float]:
        return [
            *(costs.stage_job(stage, job) / plain.stage_job(stage, job) for stage in (0, 1)),
            costs.layer(1, job) / plain.layer(1, job),
            *(costs.transfer(sender, message) * BYTES_PER_S / HEADER_BYTES for sender in (0, DRAFT_NODE)),
            *(costs.latency(sender) / 0.002 for sender in (0, 1, DRAFT_NODE)),
            costs.speed(1, {1}),
        ]

    assert factors() == [1, 1, 1, 1, 1, 1, 1, 1, 1]
    now = 10.0
    assert factors() == pytest.approx([1, 2, 2, 1, 3, 16, 1, 1, 1])
    assert costs.message_bytes(0, message) == HEADER_BYTES


def test_nothing_has_happened_without_a_clock() -> None:
    made = emulation()
    costs = ChangingCosts(ProfileCosts(made), events_of([event(0, link="v1", add_ms=30)], made))
    assert costs.latency(0) == 0.002


def test_a_place_without_events_is_written_as_before() -> None:
    place = Place.model_validate(BOARDS)
    assert set(place.model_dump()) == {"devices", "links", "emulated"}
    changing = Place.model_validate({**BOARDS, "events": [{"at_s": 2, "link": "v1", "add_ms": 3}]})
    assert Place.model_validate(changing.model_dump()) == changing


EACH_KIND = [
    {"at_s": 3, "device": "v2", "slower": 2},
    {"at_s": 3, "device": "d0", "slower": 8},
    {"at_s": 3, "link": "v2", "add_ms": 30},
    {"at_s": 3, "link": "v1", "slower": 9},
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("given", EACH_KIND)
def test_an_answer_is_the_same_until_an_event_and_slower_behind_it(
    pair: ModelSet, tmp_path: Path, given: dict[str, Any]
) -> None:
    place = boards({**given, "at_s": 1})
    found = both_answers(pair, tmp_path, place, "flowspec", TOKENS)
    still = both_answers(pair, tmp_path, boards({**given, "at_s": 1e6}), "flowspec", TOKENS).changed
    assert 0 < found.token < TOKENS - 1
    assert found.changed.output == found.knowing.output == still.output
    assert found.changed.token_times_s[: found.token] == still.token_times_s[: found.token]
    assert still.latency_s < found.changed.latency_s < found.knowing.latency_s
    assert still.tokens_before(1e6) == TOKENS
    with pytest.raises(BadRequestError, match="none that came out later than token 24"):
        still.speed_from(TOKENS)


@pytest.mark.parametrize("given", EACH_KIND)
def test_plain_decoding_is_as_fast_behind_an_event_as_where_it_was_always_so(
    pair: ModelSet, tmp_path: Path, given: dict[str, Any]
) -> None:
    place = boards(given)
    found = both_answers(pair, tmp_path, place, "autoregressive", TOKENS)
    assert found.changed.token_times_s[found.token] >= 3 > found.changed.token_times_s[found.token - 1]
    assert found.share == pytest.approx(1, rel=1e-9)
    still = both_answers(pair, tmp_path, replace(place, events=()), "autoregressive", TOKENS).changed
    assert found.changed.speed_from(found.token) < 0.99 * still.speed_from(found.token)


def test_live_runs_are_grouped_by_the_events_of_their_pipeline() -> None:
    made = emulation()
    given = [(), (event(1, device="v1", slower=2),)]
    runs = tuple(Run(f"r{i}", "auto", (), made, 0, 128, events=events) for i, events in enumerate(given))
    tasks = [Task((number,), SamplingParams(), 8, runs) for number in (1, 2)]
    grouped = [(task.prompt, *(run.key for run in task.runs)) for task in by_setup(tasks)]
    assert grouped == [((1,), "r0"), ((2,), "r0"), ((1,), "r1"), ((2,), "r1")]


def test_a_device_may_recover(pair: ModelSet, tmp_path: Path) -> None:
    place = boards({"at_s": 1, "device": "v2", "slower": 3}, {"at_s": 3, "device": "v2", "slower": 1})
    found = both_answers(pair, tmp_path, place, "autoregressive", TOKENS)
    assert found.share == pytest.approx(1, rel=1e-9)
    assert found.changed.latency_s > found.knowing.latency_s


def test_the_virtual_clock_has_the_events_of_replay(pair: ModelSet, tmp_path: Path) -> None:
    [case] = cases(scenario(EACH_KIND, sweep={"stages": [2]}).model_copy(update={"clock": "virtual"}), Path())
    found: list[ChangedAnswer] = [
        both_answers(pair, tmp_path, case, "flowspec", 16, clock=clock) for clock in ("replay", "virtual")
    ]
    assert found[0].changed == found[1].changed


@pytest.mark.slow
def test_events_are_part_of_what_is_stored_and_leave_no_bounds(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    placed: dict[str, Any] = {
        "devices": None,
        "links": None,
        "emulated": [],
        "strategies": ["autoregressive"],
    }
    bench(scenario_file(**placed, places={"home": BOARDS}), out)
    (still,) = results(out)["runs"]
    assert still["share_of_bound"] == pytest.approx(1, abs=0.01)
    changing = scenario_file(**placed, places={"home": {**BOARDS, "events": [EACH_KIND[0] | {"at_s": 1}]}})
    assert bench(changing, out).begun == [(1, 0)], "it is another run"
    assert bench(changing, out).begun == [(1, 1)]
    (changed,) = results(out)["runs"]
    assert changed["tokens_per_s"] < still["tokens_per_s"]
    for name in ("share_of_bound", "predicted_ms"):
        assert still[name] is not None
        assert changed[name] is None
    load = {"clients": [2], "requests": 2}
    runs = [
        results(out)["load"][0]
        for place in (BOARDS, {**BOARDS, "events": [EACH_KIND[0] | {"at_s": 1}]})
        if bench(scenario_file(**placed, places={"home": place}, load=load), out)
    ]
    assert runs[0]["tokens_per_s"] > runs[1]["tokens_per_s"]


def test_the_shipped_places_change_early_in_an_answer(pair: ModelSet, tmp_path: Path) -> None:
    """Even a method that is four times as fast as plain decoding has half of its answer behind the event."""
    shipped = read_scenario(SHIPPED / "changing.yaml")
    for name in shipped.places:
        found = both_answers(pair, tmp_path, place_of(name), "autoregressive", 40)
        assert 0 < 4 * found.token < shipped.max_new_tokens / 2, name
        assert found.share == pytest.approx(1, rel=0.01), name
