"""Where the methods of a scenario draw tokens, and that a report says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.strategies.registry import STRATEGIES
from flowedge_testbed.plan import cases
from flowedge_testbed.report.draw_places import drawn_line
from flowedge_testbed.scenario import Scenario, find_scenario, read_scenario
from tests.testbed.conftest import SMALL, Bench, ScenarioFile, results

ON_D0 = ["naive_pp", "pruned_pp", "flowspec_no_sbd", "flowspec_paper", "pipedec"]


def scenario(**changes: Any) -> Scenario:
    return Scenario.checked({**SMALL, **changes}, "a test")


def test_methods_of_papers_draw_where_their_papers_do() -> None:
    asked = scenario(strategies=list(STRATEGIES))
    there = {method: asked.verification_of(method) for method in STRATEGIES}
    assert [method for method in STRATEGIES if there[method] == "draft-node"] == ON_D0
    assert {there[method] for method in ("auto", "flowspec", "autoregressive")} == {"auto"}
    assert {there[method] for method in ("specpipe", "pipeinfer", "pipespec")} == {"last-stage"}


def test_a_scenario_says_the_place_of_a_method_or_of_all() -> None:
    variants = {"there": {"strategy": "flowspec_paper"}, "as its strategy": {"strategy": "pipedec"}}
    named = {"there": "last-stage", "pipedec": "last-stage"}
    methods = ["flowspec_paper", *variants, "auto"]
    asked = scenario(strategies=methods, variants=variants, verification=named)
    places = [asked.verification_of(method) for method in methods]
    assert places == ["draft-node", "last-stage", "last-stage", "auto"]
    assert scenario(verification="draft-node").verification_of("flowspec") == "draft-node"
    with pytest.raises(BadRequestError, match="unknown strategy 'nowhere'"):
        scenario(verification={"nowhere": "auto"})
    with pytest.raises(BadRequestError, match="verification"):
        scenario(verification={"auto": "v1"})


def test_a_method_has_the_pipeline_of_its_place() -> None:
    [case] = cases(scenario(strategies=["naive_pp", "auto"]), Path())
    on_d0, shipped = case.emulation_of("naive_pp"), case.emulation_of("auto")
    assert (on_d0.verification, shipped.verification) == ("draft-node", "last-stage")
    assert case.emulation == shipped


@pytest.mark.slow
def test_a_report_names_the_place_of_each_method(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    variants = {"naive_pp on the last stage": {"strategy": "naive_pp"}}
    named = {"naive_pp on the last stage": "last-stage"}
    methods = ["naive_pp", *variants]
    bench(scenario_file(strategies=methods, variants=variants, verification=named), tmp_path / "out")
    here, there = results(tmp_path / "out")["runs"]
    assert (here["verification"], there["verification"]) == ("draft-node", "last-stage")
    assert here["tokens"] == there["tokens"]
    assert here["tokens_per_s"] != there["tokens_per_s"]
    report = (tmp_path / "out" / "report.md").read_text()
    said = "Tokens are drawn on D0 by naive_pp; on the last stage by naive_pp on the last stage."
    assert said in " ".join(report.split())


def test_pipelines_that_draw_at_different_places_are_counted() -> None:
    entries = [
        {"method": "auto", "profile": name, "point": {}, "verification": place}
        for name, place in (("a", "draft-node"), ("b", "last-stage"), ("c", "last-stage"))
    ]
    counted = "D0 or the last stage by auto (D0 in 1 of 3 pipelines)."
    assert drawn_line(entries) == f"- Tokens are drawn on {counted}"
    real = [{"method": "auto", "profile": "lan", "point": {}, "verification": "auto"}]
    assert drawn_line(real) == "- Tokens are drawn where the hosts measured less time by auto."


def test_the_shipped_comparison_has_the_papers_method_on_both_places() -> None:
    path = find_scenario("flowspec-place")
    for case in cases(read_scenario(path), path.parent):
        methods = ("flowspec_paper", "flowspec_paper on the last stage", "auto on D0", "auto")
        places = [case.emulation_of(method).verification for method in methods]
        assert places == ["draft-node", "last-stage", "draft-node", "last-stage"]
