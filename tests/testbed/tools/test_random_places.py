"""Places drawn at random: the same for a seed, runnable, and of many kinds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from flowedge.planning.memory_fit import require_fit
from flowedge_testbed.plan import cases
from flowedge_testbed.scenario import Scenario, find_scenario, read_scenario
from testbed.tools.random_places import SESSION_ROWS, main, places

COUNT = 40


def test_a_seed_gives_the_same_places() -> None:
    assert places(3, 5) == places(3, 5)
    assert list(places(3, 5)) == list(places(3, COUNT))[:5]
    assert places(3, 5) != places(4, 5)


def test_drawn_places_fit_and_are_of_many_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["random_places", "--seed", "7", "--count", str(COUNT)])
    main()
    drawn = Scenario.checked(yaml.safe_load(capsys.readouterr().out), "the drawn scenario")
    chosen = read_scenario(find_scenario("regimes"))
    assert (drawn.strategies, drawn.temperatures, drawn.datasets) == (
        chosen.strategies,
        chosen.temperatures,
        chosen.datasets,
    )
    assert len(drawn.places) == COUNT
    found = cases(drawn, tmp_path)
    for case in found:
        require_fit(case.emulation, SESSION_ROWS)
        assert min(case.emulation.split) >= 1
    assert len({case.emulation.model.title for case in found}) >= 8
    assert {case.emulation.format_name for case in found} == {"fp16", "int4", "nf4"}
    assert len({case.emulation.num_stages for case in found}) >= 5
    assert len({case.emulation.draft_node.title for case in found}) >= 8
    assert any(len({device.title for device in case.emulation.stages}) > 1 for case in found)
    assert any(len({link.mbps for link in case.emulation.links}) > 1 for case in found)
    assert any(case.emulation.drafter.kind == "small_lm" for case in found)


def test_stages_are_unequal_where_that_is_asked_for(tmp_path: Path) -> None:
    found = places(3, 8, unequal=True)
    assert all(place.emulated.split is None for place in found.values()), "they have as many layers each"
    drawn = {name: place.model_dump(exclude_defaults=True) for name, place in found.items()}
    like = read_scenario(find_scenario("regimes")).model_dump(exclude_defaults=True)
    for case in cases(Scenario.checked({**like, "places": drawn}, "the drawn places"), tmp_path):
        assert len({device.title for device in case.emulation.stages}) > 1
