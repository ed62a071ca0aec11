"""`flowedge profile`: profiles that the testbed reads and runs on, and refusals before a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.device.compute import cpu_dtypes
from flowedge.planning.measuring import profiler
from flowedge.planning.profile.measured_profiles import link_profile
from flowedge.planning.profile.measurement import LinkMeasurement
from flowedge.planning.profile.pipeline import SHORT_DTYPES
from flowedge.planning.profile.profile_files import SCENARIO, file_stem, profile_files
from flowedge_testbed.plan import cases
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import read_scenario
from tests.support.processes import AgentProcess

QUICK = ["--repeats", "1", "--stack-mib", "4", "--link-mib", "1", "--round-trips", "5"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--out"),
        (["nowhere", "--out", "{out}"], "host:port"),
        (["127.0.0.1:1", "127.0.0.1:1", "--out", "{out}"], "named twice"),
        (["--repeats", "0", "--out", "{out}"], "--repeats"),
        (["--quant", "int3", "--out", "{out}"], "nf4"),
    ],
)
def test_wrong_usage(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["profile", *(argument.replace("{out}", str(out)) for argument in arguments)]) == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()


def test_an_agent_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "127.0.0.1:1", "--out", str(tmp_path / "out")]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_files_that_are_there_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flowedge.planning.measuring.run.measure_here", lambda *_: pytest.fail("it was measured")
    )
    (tmp_path / SCENARIO).write_text("mine")
    assert run(["profile", "--out", str(tmp_path)]) == 2
    assert f"already has {SCENARIO}; --force" in capsys.readouterr().err
    assert (tmp_path / SCENARIO).read_text() == "mine"
    assert run(["profile", "--out", str(tmp_path / SCENARIO)]) == 2


@pytest.mark.proof
def test_this_machine_is_measured_and_its_profile_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "a device")
    monkeypatch.setitem(profiler.COMPARED_HIDDEN, "cpu", 256)
    (tmp_path / SCENARIO).write_text("replaced")
    assert run(["profile", "--out", str(tmp_path), "--force", *QUICK, "--drafter", "none"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / SCENARIO)
    assert {path.name for path in tmp_path.iterdir()} == {"a-device.yaml", "model-bundled.yaml", SCENARIO}
    device, model = (
        library.device("a-device.yaml", tmp_path),
        library.model("model-bundled.yaml", tmp_path),
    )
    assert device.measured is not None
    assert device.measured.draft is None
    assert device.measured.holds_for_layers(model, "none")
    assert device.measured.holds_for_head(model)
    [case] = cases(read_scenario(tmp_path / SCENARIO), tmp_path)
    assert case.emulation.stages == (device, device)
    assert list(device.measured.layer_ms) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert device.memory_efficiency == 1
    assert device.dequantise_gweights_s is not None
    assert device.quantised is not None
    assert set(device.quantised.layer_ms) == {"none", "int8", "nf4", "int4", "w8a16"}
    assert all(list(table) == list(device.measured.layer_ms) for table in device.quantised.layer_ms.values())
    assert (model.layers, model.dtype) == (8, cpu_dtypes()[0])


def _bench(directory: Path, options: list[str]) -> None:
    """Runs the scenario that was written with one short prompt."""
    (directory / "mt_bench.jsonl").write_text('{"prompt": "Hi"}\n')
    scenario = directory / SCENARIO
    text = scenario.read_text()
    assert "max_new_tokens: 64" in text
    scenario.write_text(text.replace("max_new_tokens: 64", "max_new_tokens: 6"))
    out = directory / "bench"
    assert (
        run(["bench", str(scenario), "--out", str(out), "--samples", "1", "--processes", "1", *options]) == 0
    )
    found = json.loads((out / "results.json").read_text())
    name = f"model-bundled.yaml-{SHORT_DTYPES[cpu_dtypes()[0]]}"
    assert [entry["profile"] for entry in found["runs"]] == [name] * len(found["runs"])
    assert all(entry["tokens_per_s"] > 0 for entry in found["runs"])


@pytest.mark.proof
def test_an_agent_is_measured(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = idle_agents[0]
    assert run(["profile", agent.address, "--out", str(tmp_path), *QUICK, "--drafter", "none"]) == 0
    assert f"{agent.name}: " in capsys.readouterr().err
    device = library.device(f"{agent.name}.yaml", tmp_path)
    assert device.measured is not None
    assert device.measured.draft is None
    assert device.measured.quant == "none"
    assert list(device.measured.layer_ms) == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.proof
def test_a_ring_of_agents_is_measured(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = [agent.address for agent in idle_agents[:2]]
    names = [agent.name for agent in idle_agents[:2]]
    assert run(["profile", *hosts, "--out", str(tmp_path), *QUICK]) == 0
    assemble(PipelineSpec(draft_node=hosts[0], stages=(hosts[1],)), lambda *_: None)
    assert run(["profile", *hosts, "--out", str(tmp_path / "other"), *QUICK]) == 1
    assert f"flowedge release {hosts[0]}" in capsys.readouterr().err
    forth, back = (f"link-{a}-{b}.yaml" for a, b in (names, reversed(names)))
    scenario = read_scenario(tmp_path / SCENARIO)
    assert scenario.hosts is not None
    assert [scenario.hosts.draft_node, *scenario.hosts.stages] == hosts
    [case] = cases(scenario, tmp_path)
    emulation = case.emulation
    assert emulation.links == (library.link(back, tmp_path), library.link(forth, tmp_path))
    assert emulation.draft_node == library.device(f"{names[0]}.yaml", tmp_path)
    assert emulation.stages == (library.device(f"{names[1]}.yaml", tmp_path),)
    assert emulation.split == (8,)
    assert all(link.mbps > 0 and link.latency_ms > 0 for link in emulation.links)
    assert emulation.draft_node.measured is not None
    assert emulation.draft_node.measured.draft is not None
    _bench(tmp_path, ["--strategies", "naive_pp"])


def test_links_have_half_of_the_median_round_trip() -> None:
    link = link_profile("a", "b", LinkMeasurement(bytes=10**6, seconds=0.1, round_trips=(0.5, 0.002, 0.001)))
    assert (link.mbps, link.latency_ms) == (80, 1)


def test_file_names_are_told_apart() -> None:
    files = profile_files(["pi", "pi", "scenario", "link-a"], "/models/llama 7b", with_links=True)
    assert files.devices == ("pi.yaml", "pi-2.yaml", "scenario-2.yaml", "a-2.yaml")
    assert files.links[0] == "link-pi-pi-2.yaml"
    assert files.links[-1] == "link-a-2-pi.yaml"
    assert files.model == "model-llama-7b.yaml"
    assert len(set(files.names)) == len(files.names)
    assert file_stem("../…") == "device"
