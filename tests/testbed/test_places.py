"""Scenarios with places: pipelines on different devices, each with a model, in one benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.plan import cases
from flowedge_testbed.report.origin import devices_phrase
from flowedge_testbed.scenario import SHIPPED, Scenario, read_scenario
from tests.testbed.conftest import SMALL, Bench, ScenarioFile, results

PLACES: dict[str, Any] = {
    "boards": {
        "devices": {"draft_node": "orin-nano-8gb", "stages": {"device": "orin-nano-8gb", "count": 3}},
        "links": {"default": {"profile": "gigabit"}, "hops": {"d0": {"profile": "wifi5"}}},
        "emulated": {"model": "llama3.2-1b", "quant": "int4", "split": [6, 6, 4]},
    },
    "two PCs": {
        "devices": {"draft_node": "pc-8core", "stages": ["pc-rtx3060-12gb"]},
        "links": {"default": {"profile": "fibre-20ms"}},
        "emulated": {"model": "llama3.1-8b", "quant": "int4", "drafter": "small_lm"},
    },
}
PLACED: dict[str, Any] = {"devices": None, "links": None, "emulated": [], "places": PLACES}


def scenario(**changes: Any) -> Scenario:
    return Scenario.checked({**SMALL, **PLACED, **changes}, "a test")


def test_each_place_is_a_pipeline_under_its_name() -> None:
    boards, computers = cases(scenario(), Path())
    assert (boards.profile, computers.profile) == ("boards", "two PCs")
    assert (boards.emulation.split, boards.emulation.quant) == ((6, 6, 4), "int4")
    assert [link.mbps for link in boards.emulation.links] == [940, 940, 940, 300]
    assert computers.emulation.draft_node.title == "Desktop PC, 8 cores, no GPU"
    assert computers.emulation.drafter.kind == "small_lm"
    assert {link.latency_ms for link in computers.emulation.links} == {20}


def test_a_sweep_goes_through_every_place() -> None:
    swept = cases(scenario(sweep={"stages": [1, 2], "mbps": [50]}), Path())
    assert [(case.profile, case.emulation.num_stages) for case in swept] == [
        ("boards", 1),
        ("boards", 2),
        ("two PCs", 1),
        ("two PCs", 2),
    ]
    assert {case.emulation.mbps for case in swept} == {50}


def test_the_devices_of_all_places_are_told() -> None:
    told = devices_phrase([case.setup for case in cases(scenario(), Path())])
    assert "Llama-3.2 1B int4, Llama-3.1 8B int4 on 2 pipelines of 1 to 3 stages, made of Jetson Orin" in told
    assert "PC with a GeForce RTX 3060 12 GB; links of 200 to 940 Mbit/s and 0.5 to 20 ms" in told


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": SMALL["devices"]}, "places stand in place of devices, links and emulated"),
        ({"emulated": SMALL["emulated"]}, "places stand in place of devices, links and emulated"),
        ({"places": {"home": {**PLACES["boards"], "links": None}}}, "key places.home.links"),
    ],
)
def test_places_and_one_pipeline_exclude_each_other(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        scenario(**changes)


def test_a_scenario_without_a_pipeline_is_refused() -> None:
    with pytest.raises(BadRequestError, match="needs places, or devices, links and emulated"):
        cases(scenario(places={}), Path())
    with pytest.raises(BadRequestError, match="names no hosts"):
        cases(scenario(clock="real"), Path())


def test_the_regimes_are_of_many_kinds() -> None:
    """What the shipped places claim to span: sizes, formats, devices, links and numbers of stages."""
    asked = read_scenario(SHIPPED / "regimes.yaml")
    found = [case.emulation for case in cases(asked, SHIPPED)]
    assert len(found) >= 24
    assert {each.format_name for each in found} >= {"fp16", "int4", "nf4"}
    assert {each.num_stages for each in found} >= {1, 2, 3, 4, 8, 16}
    stages = {device.title for each in found for device in each.stages}
    assert len(stages) >= 8
    assert len({each.draft_node.title for each in found}) >= 8
    weights = [each.model.layers * each.model.hidden**2 for each in found]
    assert max(weights) / min(weights) > 100
    latencies = {link.latency_ms for each in found for link in each.links}
    assert {20, 50} <= latencies
    assert any(link.jitter_ms for each in found for link in each.links)
    assert asked.noise == ["shared"], "above temperature 0 like is compared with like"


def test_the_command_names_the_places() -> None:
    options = BenchOptions(SHIPPED / "regimes.yaml", Path("o"), places=("1b-int4-1rpi5",))
    assert options.command == "flowedge bench regimes --out o --places 1b-int4-1rpi5"


@pytest.mark.slow
def test_two_places_end_to_end(scenario_file: ScenarioFile, bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    placed = scenario_file(
        **PLACED,
        strategies=["auto", "autoregressive", "pipedec"],
        temperatures=[0, 1],
        noise=["shared"],
        report={"tables": ["places"], "plots": ["places"]},
    )
    said = bench(placed, out)
    found = results(out)
    assert said.begun == [(2 * 2 * 3, 0)]
    assert set(found["profiles"]) == set(PLACES)
    assert found["outputs_differ"] == []
    assert [(lead["place"], lead["temperature"]) for lead in found["leads"]["places"]] == [
        ("boards", 0),
        ("two PCs", 0),
        ("boards", 1),
        ("two PCs", 1),
    ]
    speeds = {
        (run["profile"], run["temperature"], run["method"]): run["tokens_per_s"] for run in found["runs"]
    }
    for lead in found["leads"]["places"]:
        at = lead["place"], lead["temperature"]
        others = [speeds[(*at, method)] for method in ("autoregressive", "pipedec")]
        assert lead["ratio_to_best_other"] == pytest.approx(speeds[(*at, "auto")] / max(others))
        assert lead["ratio_to_plain"] == pytest.approx(speeds[(*at, "auto")] / others[0])
    (told,) = (line for line in said.lines if line.startswith("Lead: "))
    assert f"geometric mean {found['leads']['geometric_mean']:.3f} of 4" in told
    report = (out / "report.md").read_text()
    assert "Temperature 1, shared noise" in report
    assert "| two PCs | " in report
    assert "](places.png)" in report
    only = bench(placed, out, places=("boards",))
    assert only.begun == [(6, 6)], "the runs of a place are found again"
    with pytest.raises(BadRequestError, match="no place moon in the scenario; it has boards, two PCs"):
        bench(placed, out, places=("moon",))
