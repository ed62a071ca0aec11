"""Scenarios with load on the emulating clocks: repeatable, equal by either clock, lossless, and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge_testbed.load.load_plan import LoadPlan, make_load_plan
from flowedge_testbed.plan import cases
from flowedge_testbed.prompts import Dataset
from flowedge_testbed.scenario import SHIPPED, Scenario, read_scenario
from flowedge_testbed.stored_runs import read_load_record
from tests.testbed.conftest import SMALL, Bench, ScenarioFile, results

LOADED: dict[str, Any] = {
    "strategies": ["autoregressive", "naive_pp", "in batches", "flowspec"],
    "variants": {"in batches": {"strategy": "naive_pp"}},
    "samples": 2,
    "max_new_tokens": 8,
    "load": {"clients": [1, 3], "requests": 4, "new_tokens": [4, 8], "static_batches": ["in batches"]},
}
SHORT_LOAD = {"clients": [3], "requests": 2, "new_tokens": [2, 4], "static_batches": ["in batches"]}
PROMPTS = Dataset("own", ((1, 2, 3, 4), (5, 6, 7), (9, 8, 7, 6, 5)), 0)


def plan(**changes: Any) -> LoadPlan:
    scenario = Scenario.checked({**SMALL, **LOADED, **changes}, "a test")
    return make_load_plan(scenario, cases(scenario, Path()), [PROMPTS], {}, None)


def test_each_method_has_a_run_at_each_point() -> None:
    made = plan(load={"clients": [1, 3], "arrivals_per_s": [0.5], "requests": 4, "warm_up": 2})
    assert made.num_runs == 3 * 3, "without static batches the variant has the runs of its strategy"
    assert len(made.cells) == 4 * 3
    assert [len(task.runs) for task in made.tasks] == [3, 3, 3]
    points = [(cell.load.point.label, cell.load.counted) for cell in made.cells[:3]]
    assert points == [("1 client", range(2, 6)), ("3 clients", range(6, 10)), ("0.5 requests/s", range(2, 6))]
    assert made.tasks[0].requests.new_tokens == (8, 8)
    static = {(cell.method, cell.load.point.value): cell.load for cell in plan().cells}
    assert static["naive_pp", 1] == static["in batches", 1], "one client's batches are its requests"
    assert static["naive_pp", 3] != static["in batches", 3]
    assert static["in batches", 3].static_batches


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"load": {"requests": 3}}, "a load has no point; give clients or arrivals_per_s"),
        ({"load": {"clients": [2], "static_batches": ["moon"]}}, "names moon, which is no method here"),
        ({"load": {"arrivals_per_s": [2], "static_batches": ["naive_pp"]}}, "static_batches are of clients"),
        ({"load": {"clients": [2], "new_tokens": [9, 4]}}, "new_tokens goes from 9 to 4"),
        ({"load": {"clients": [2], "new_tokens": [4, 9]}}, "load.new_tokens goes up to 9, max_new_tokens is"),
        ({"seeds": [0, 1]}, "a load takes one seed"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        plan(**changes)


def test_the_caches_of_all_clients_have_to_fit() -> None:
    with pytest.raises(CapacityError, match="stage 1 does not fit on Jetson Orin Nano"):
        plan(load={"clients": [2000], "requests": 1})


@pytest.mark.parametrize("name", ["load", "load-quick"])
def test_the_shipped_scenarios_can_be_planned(name: str) -> None:
    shipped = read_scenario(SHIPPED / f"{name}.yaml")
    for scenario in (shipped, Scenario.checked(shipped.quickened().model_dump(), "quick")):
        made = make_load_plan(scenario, cases(scenario, SHIPPED), [PROMPTS], {}, None)
        assert len(made.cells) >= made.num_runs > 0


@pytest.mark.proof
@pytest.mark.slow
def test_two_runs_write_the_same_results(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowedge_testbed.bench.benchmark.git_revision", lambda: None)
    load = {"clients": [2], "arrivals_per_s": [1.5], "requests": 2, "think_s": 0.3, "new_tokens": [2, 4]}
    scenario = scenario_file(
        **{**LOADED, "load": load, "strategies": ["auto"], "temperatures": [1], "noise": ["shared"]}
    )
    for name in ("a", "b"):
        bench(scenario, tmp_path / name)
    first, second = [(tmp_path / name / "results.json").read_bytes() for name in ("a", "b")]
    assert first == second
    assert [entry["load"] for entry in json.loads(first)["load"]] == ["clients", "arrivals_per_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "load"),
    [
        pytest.param(1, SHORT_LOAD, id="short"),
        *(pytest.param(t, LOADED["load"], id=f"{t}", marks=pytest.mark.proof) for t in (0, 1)),
    ],
)
def test_replay_gives_the_figures_of_the_virtual_clock(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, temperature: int, load: dict[str, Any]
) -> None:
    scenario = scenario_file(**{**LOADED, "load": load}, temperatures=[temperature], noise=["shared"])
    for clock in ("replay", "virtual"):
        bench(scenario, tmp_path / clock, clock=clock)
    replayed, computed = results(tmp_path / "replay"), results(tmp_path / "virtual")
    assert replayed["load"] == computed["load"]
    assert replayed["outputs_differ"] == computed["outputs_differ"] == []


@pytest.mark.slow
def test_a_load_of_one_client_has_the_times_of_single_requests(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    """One client at a time is what a scenario without load measures: the same gaps between tokens."""
    alone = {
        **LOADED,
        "strategies": ["flowspec"],
        "variants": {},
        "links": {"default": {"profile": "lan-150"}},
    }
    bench(scenario_file(**{**alone, "load": None}), tmp_path / "single")
    bench(scenario_file(**{**alone, "load": {"clients": [1], "requests": 2}}), tmp_path / "load")
    (single,) = results(tmp_path / "single")["runs"]
    (loaded,) = results(tmp_path / "load")["load"]
    assert loaded["tokens"] == single["tokens"]
    assert loaded["itl_p99_ms"] == pytest.approx(single["itl_p99_ms"])
    assert loaded["itl_p50_ms"] == pytest.approx(single["itl_p50_ms"])


@pytest.mark.proof
@pytest.mark.slow
def test_the_report_of_a_load(scenario_file: ScenarioFile, bench: Bench, tmp_path: Path) -> None:
    load = {**LOADED["load"], "requests": 3, "new_tokens": [2, 4]}
    scenario, out = scenario_file(**{**LOADED, "load": load}, report={"plots": ["gantt"]}), tmp_path / "out"
    said = bench(scenario, out)
    found = results(out)
    assert said.begun == [(7, 0)]
    assert said.done == 7
    assert found["runs"] == []
    assert found["outputs_differ"] == []
    assert [(entry["method"], entry["at"]) for entry in found["load"]] == [
        (method, clients) for method in LOADED["strategies"] for clients in (1, 3)
    ]
    by_method = {(entry["method"], entry["at"]): entry for entry in found["load"]}
    for entry in found["load"]:
        assert entry["requests"] == 3
        assert entry["tokens_per_s"] > 0
        assert 0 < entry["slowest_share"] <= 1
        assert entry["ttft_p50_ms"] <= entry["ttft_p99_ms"] <= entry["latency_p99_ms"]
        assert entry["queued_mean_ms"] < entry["ttft_p99_ms"]
        assert set(entry["busy"]) == {"d0", "v1", "v2", "v3", "v4"}
        assert 1 <= entry["rows_a_forward"]["p50"] <= entry["rows_a_forward"]["p99"]
    plain, batched = by_method["naive_pp", 3], by_method["in batches", 3]
    assert by_method["naive_pp", 1]["itl_p99_ms"] == by_method["in batches", 1]["itl_p99_ms"]
    assert batched["queued_mean_ms"] > plain["queued_mean_ms"], "a request waits for the batch before it"
    assert by_method["autoregressive", 3]["tokens_per_s"] > 2 * by_method["autoregressive", 1]["tokens_per_s"]
    report = (out / "report.md").read_text()
    assert "| 3 clients | flowspec | " in report
    assert "Most tokens:" in report
    assert "Every method gave the same answer to the same request, at every load." in report
    assert "In static batches: in batches." in report
    for name in (
        "load-llama2-7b-fp16-0.png",
        "load-llama2-7b-fp16-0-curve.png",
        "gantt-naive_pp.png",
        "gantt-flowspec.png",
    ):
        assert f"]({name})" in report
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    for file in (out / "runs").glob("*.json"):
        assert read_load_record(out, file.stem) is not None
    next((out / "traces").glob("*.json")).unlink()
    assert bench(scenario, out).begun == [(7, 6)], "stored points are used again, but one without a chart"
