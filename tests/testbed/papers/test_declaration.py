"""Every experiment of a paper is measured by a shipped scenario, or says in a sentence why it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flowedge.core.errors import BadRequestError
from flowedge_testbed.bench.options import BenchOptions, overridden
from flowedge_testbed.papers.declaration import PAPERS, Experiment, Series, read_paper
from flowedge_testbed.papers.paper_bench import smaller
from flowedge_testbed.scenario import SHIPPED, Scenario, shipped_scenarios

EXPERIMENTS = {
    f"{paper}/{name}": experiment
    for paper in PAPERS
    for name, experiment in read_paper(paper).experiments.items()
}
MOST_QUICK_POINTS = 12  # of a sweep; each is a run of every method


@pytest.mark.parametrize("named", EXPERIMENTS)
def test_an_experiment_is_measured_or_says_why_not(named: str) -> None:
    experiment = EXPERIMENTS[named]
    if experiment.scenario is None:
        assert experiment.reason is not None
        assert experiment.reason.endswith(".") and len(experiment.reason.split()) > 5
        return
    scenario = experiment.read_scenario()
    assert set(experiment.methods) <= set(scenario.strategies)
    quick = scenario.quickened()
    points = 1
    for values in quick.sweep.values():
        points *= len(values)
    assert points <= MOST_QUICK_POINTS
    for series in experiment.series.values():
        for fields in (series.ours, series.over):
            assert {name for name in fields if name.startswith("option.")} <= set(scenario.sweep)
            assert fields.get("dataset") in {None, *scenario.datasets}
            assert fields.get("temperature") in {None, *scenario.temperatures}
            assert fields.get("profile") in {None, *profiles(scenario)}


def profiles(scenario: Scenario) -> set[str]:
    """Return the names of the emulated pipelines as results give them, with every format of the drafter."""
    found = scenario.emulated_places()
    names = {name for name, _ in found if name is not None}
    formats = [
        (place.emulated, "fp16" if place.emulated.quant == "none" else place.emulated.quant)
        for _, place in found
    ]
    return names | {f"{emulated.model}-{quant}" for emulated, quant in formats}


def test_every_scenario_of_a_paper_is_an_experiment() -> None:
    named = {experiment.scenario for experiment in EXPERIMENTS.values()}
    assert {path.stem for path in (SHIPPED / "papers").glob("*.yaml")} <= named


def test_a_remark_is_a_sentence() -> None:
    assert not [name for name, each in EXPERIMENTS.items() if each.remark and not each.remark.endswith(".")]


def test_published_values_come_from_the_file_or_from_paper_results() -> None:
    path = Series(published="table1_main/T=0/llama2-7b/flowspec/tokens_per_s")  # type: ignore[arg-type]
    assert path.published["mt_bench"] == 9.43
    assert Series(published={125: 8.76, "mean": "2 to 3"}).published == {"125": 8.76, "mean": "2 to 3"}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="nothing under table9"):
        Series(published="table9")  # type: ignore[arg-type]


def test_an_experiment_has_a_scenario_or_a_reason() -> None:
    with pytest.raises(ValueError, match="give the scenario"):
        Experiment(shows="nothing")
    with pytest.raises(ValueError, match="no series"):
        Experiment(shows="something", scenario="ablation")
    with pytest.raises(BadRequestError, match="no scenario 'tabel2'"):
        Experiment(
            shows="x", scenario="tabel2", series={"a": Series(ours={"method": "auto"})}
        ).read_scenario()


def test_a_name_that_is_wrong_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(BadRequestError, match=r"no paper 'flowspce'; known are flowspec, "):
        read_paper("flowspce")
    with pytest.raises(BadRequestError, match=r"no experiment 'table9'; known are table1, "):
        read_paper("flowspec").chosen("table9")


def test_a_quick_run_has_the_compared_methods_alone() -> None:
    experiment = read_paper("flowspec").experiments["table2"]
    scenario, asked = experiment.read_scenario(), BenchOptions(Path("x.yaml"), Path("out"), quick=True)
    quick = smaller(asked, scenario, [experiment])
    assert quick.strategies == ("naive_pp", "pruned_pp", "flowspec_no_sbd", "flowspec_paper")
    assert (quick.samples, quick.noise) == (1, ("plain",))
    whole = BenchOptions(Path("x.yaml"), Path("out"))
    assert smaller(whole, scenario, [experiment]) == whole
    assert "specpipe-figure16" in shipped_scenarios()


def test_a_variant_whose_name_has_a_comma_can_be_named_on_the_command_line() -> None:
    scenario = read_paper("flowspec").experiments["barrier"].read_scenario()
    split = ("naive_pp", "pipedec", "pipedec", "PipeDec's barrier")
    asked = BenchOptions(Path("x.yaml"), Path("out"), strategies=split)
    methods = ["naive_pp", "pipedec", "pipedec, PipeDec's barrier"]
    assert overridden(scenario, asked).strategies == methods
    assert overridden(scenario, replace(asked, strategies=tuple(methods))).strategies == methods
