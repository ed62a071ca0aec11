"""Options of methods, chosen from hit rates and step times of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.emulation.specpipe_width import level_width
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases, make_plan
from flowedge_testbed.profiles import library
from flowedge_testbed.profiles.documents import HitRates
from flowedge_testbed.prompts import Dataset
from flowedge_testbed.scenario import read_scenario
from testbed.tools.hit_rates import hit_rate
from testbed.tools.sample_runs import SCENARIO, SampleRuns

GROUPS = 16


def rates(**by_width: float) -> HitRates:
    values = {int(width.removeprefix("w")): rate for width, rate in by_width.items()}
    return HitRates(title="made up", source="", model="m", drafter="d", rates=values)


@pytest.fixture
def table1() -> PipelineProfile:
    return cases(read_scenario(SCENARIO), SCENARIO.parent)[0].emulation


def at_rate(emulation: PipelineProfile, mbps: float) -> PipelineProfile:
    return replace(emulation, links=tuple(link.model_copy(update={"mbps": mbps}) for link in emulation.links))


def test_a_level_is_as_wide_as_its_hits_pay_for(table1: PipelineProfile) -> None:
    assert level_width(table1, rates(w8=0.8, w64=0.8), GROUPS) == 8, "nothing is gained by more rows"
    assert level_width(table1, rates(w8=0.5, w64=0.9), GROUPS) == 64, "a miss refills the pipeline"


def test_slow_links_make_levels_narrow(table1: PipelineProfile) -> None:
    some = rates(w8=0.85, w64=0.9)
    assert level_width(at_rate(table1, 1000), some, GROUPS) == 64
    assert level_width(at_rate(table1, 10), some, GROUPS) == 8
    assert level_width(at_rate(table1, 200), some, GROUPS) == 64
    tapped = replace(table1, drafter=table1.model.drafters["eagle3"])
    assert level_width(at_rate(tapped, 200), some, GROUPS) == 8, "four times the bytes on the last link"


def test_the_bundled_pair_has_its_hit_rates(pair: ModelSet) -> None:
    found = library.hit_rates(pair.checkpoint.fingerprint, pair.drafter_fingerprint)
    assert found is not None, "measure them again: python -m testbed.tools.hit_rates"
    assert list(found.rates.values()) == sorted(found.rates.values()), "more rows, more hits"
    assert library.hit_rates("another", pair.drafter_fingerprint) is None


def test_a_plan_chooses_the_width_unless_it_is_given(
    scenario_file: Callable[..., Path], pair: ModelSet
) -> None:
    def planned(hit_rates: HitRates | None, **changes: Any) -> dict[str, float]:
        path = scenario_file(strategies=["specpipe"], **changes)
        scenario = read_scenario(path)
        prompts = [Dataset("own", ((1, 2, 3),), 0)]
        plan = make_plan(scenario, cases(scenario, path.parent), prompts, {}, hit_rates)
        assert {cell.options for cell in plan.cells} == {run.options for t in plan.tasks for run in t.runs}
        return dict(plan.cells[0].options)

    assert planned(rates(w4=0.9)) == {"width": 4}
    assert planned(None) == {}
    assert planned(rates(w4=0.9), strategy_options={"specpipe": {"width": 6}}) == {"width": 6}


def test_the_hit_rate_is_that_of_levels(pair: ModelSet, tmp_path: Path) -> None:
    runs = SampleRuns(pair, "none", tmp_path, 1, tmp_path)
    records = runs.records(runs.emulation("llama2-7b-fp16", "specpipe"), "specpipe", (("width", 8),))
    assert len(records) == 1
    misses = len(records[0].accepted_per_round) - 1
    assert hit_rate(records) == pytest.approx(1 - misses / (records[0].new_tokens - 1))
    assert 0 < hit_rate(records) < 1
