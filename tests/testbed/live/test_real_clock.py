"""The real clock: a scenario on agents, which are processes of this machine, and refusals."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flowedge_testbed
from flowedge.cli.main import run as flowedge
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.client.clock_offset import ClockOffset
from flowedge.client.transcript import typed_statistics
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.core.errors import BadRequestError, CapacityError, FlowEdgeError, ProtocolError
from flowedge.core.ids import pipeline_label
from flowedge.live.timeline import TimelineEvent
from flowedge_testbed.live.live_run import trace_of
from flowedge_testbed.live.real_backend import RealBackend
from flowedge_testbed.live.timelines import DeviceTimeline
from flowedge_testbed.runs import Task
from flowedge_testbed.stored_runs import read_record, read_trace
from flowedge_testbed.trace import Interval, PruneMark
from tests.cluster.clusters import Cluster as SecureCluster
from tests.cluster.clusters import members
from tests.support.processes import AgentProcess, agents
from tests.support.seams import set_own_security
from tests.testbed.conftest import Bench, ScenarioFile, results

STRATEGIES = ["naive_pp", "flowspec"]
LIVE: dict[str, Any] = {
    "clock": "real",
    "devices": None,
    "links": None,
    "emulated": [],
    "strategies": STRATEGIES,
    "report": {"tables": ["table1", "table2", "table3"], "plots": ["bars"]},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[AgentProcess]]:
    """A draft node and two stages."""
    token = uuid.uuid4().hex[:6]
    at_once = {"deadlines": {"recovery_s": 0.0}}
    with agents([f"bench-{token}-{place}" for place in ("d0", "v1", "v2")], settings=at_once) as running:
        yield running


def hosts_of(cluster: list[AgentProcess]) -> dict[str, Any]:
    addresses = [agent.address for agent in cluster]
    return {"draft_node": addresses[0], "stages": addresses[1:], "dtype": "float32"}


def roles_of(cluster: list[AgentProcess]) -> list[str]:
    roles = []
    for agent in cluster:
        with Client(agent.address, silence_s=20) as client:
            roles.append(client.describe().role)
    return roles


def outputs(out: Path) -> set[str]:
    return {json.loads(file.read_text())["output"] for file in (out / "runs").glob("*.json")}


@pytest.mark.proof
@pytest.mark.slow
def test_a_load_on_agents_is_measured(
    cluster: list[AgentProcess], scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    load = {"clients": [2], "arrivals_per_s": [1], "requests": 2, "new_tokens": [6, 12]}
    changes = {**LIVE, "strategies": ["autoregressive"], "load": load, "report": {"plots": ["gantt"]}}
    out = tmp_path / "real"
    bench(scenario_file(**changes, hosts=hosts_of(cluster)), out)
    assert roles_of(cluster) == ["idle"] * 3
    written = results(out)
    assert written["outputs_differ"] == []
    assert [(entry["load"], entry["at"], entry["requests"]) for entry in written["load"]] == [
        ("clients", 2, 2),
        ("arrivals_per_s", 1, 2),
    ]
    for entry in written["load"]:
        assert entry["emulated"] is False
        assert entry["tokens_per_s"] > 0
        assert 0 < entry["ttft_p50_ms"] <= entry["latency_p99_ms"]
        assert set(entry["busy"]) == {"d0", "v1", "v2"}
    assert "clocks of the devices matched to within" in (out / "report.md").read_text()
    too_many = {**changes, "load": {**load, "requests": 70}}
    with pytest.raises(BadRequestError, match="a load of up to 74 requests is too long for agents"):
        bench(scenario_file(**too_many, hosts=hosts_of(cluster)), tmp_path / "long")


@pytest.mark.proof
@pytest.mark.slow
def test_a_hierarchy_is_measured(
    cluster: list[AgentProcess], scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    draft_node, stage, middle = (agent.address for agent in cluster)
    hosts = {"draft_node": draft_node, "stages": [stage], "middles": [middle], "dtype": "float32"}
    changes = {"pair": {"middles": ["bundled-small"]}, "strategies": ["autoregressive", "pipespec"]}
    out = tmp_path / "real"
    bench(scenario_file(**{**LIVE, **changes, "report": {"tables": ["pipespec"]}}, hosts=hosts), out)
    written = results(out)
    assert written["outputs_differ"] == []
    alone, hierarchy = written["runs"]
    assert set(alone["use"]) == {"d0", "v1"}
    assert set(hierarchy["use"]) == {"d0", "v1", "m1"}
    assert all(use["busy"] > 0 for use in hierarchy["use"].values())
    assert [verifier["tokens"] > 0 for verifier in hierarchy["verifiers"]] == [True, True]
    assert all(milliseconds > 0 for milliseconds in hierarchy["model_ms"])
    assert f"M1 {middle}" in (out / "report.md").read_text()


@pytest.mark.slow
def test_agents_are_measured(
    cluster: list[AgentProcess], scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    out = tmp_path / "real"
    asked = {**LIVE["report"], "plots": ["bars", "gantt"]}
    scenario = str(scenario_file(**{**LIVE, "report": asked}, hosts=hosts_of(cluster)))
    assert flowedge(["bench", scenario, "--out", str(out)]) == 0
    assert roles_of(cluster) == ["idle"] * 3

    written = results(out)
    assert written["clock"] == "real"
    assert written["outputs_differ"] == []
    assert written["profiles"]["bundled-fp32"]["hosts"] == [agent.address for agent in cluster]
    assert [run["method"] for run in written["runs"]] == STRATEGIES
    for run in written["runs"]:
        assert (run["tokens"], run["stages"], run["mbps"], run["emulated"]) == (12, 2, None, False)
        assert run["tokens_per_s"] > 0
        assert 0 < run["ttft_ms"] < run["latency_ms"]
        assert set(run["use"]) == {"d0", "v1", "v2"}
        for use in run["use"].values():
            assert sum(use.values()) == pytest.approx(1)
            assert use["busy"] > 0
        assert run["energy_j_per_token"] is None
        assert run["link_bytes"]["v1"] > run["link_bytes"]["d0"] > 0
    assert json.loads((out / "run.json").read_text())["measured_tokens"] == 24

    report = (out / "report.md").read_text()
    assert "Measured, nothing is emulated: bundled-fp32 on D0 127.0.0.1:" in report
    assert "in the paper" not in report
    assert "paper |" not in report
    assert "clocks of the devices matched to within" in report
    for strategy in STRATEGIES:
        assert (out / f"gantt-{strategy}.png").read_bytes().startswith(b"\x89PNG")

    for file in (out / "runs").glob("*.json"):
        record, trace = read_record(out, file.stem), read_trace(out, file.stem)
        assert record is not None
        assert trace is not None
        assert record.latency_s == pytest.approx(record.ttft_s + sum(record.itl_s))
        assert {interval.place for interval in trace.intervals} == {-1, 0, 1}
        forwards = [interval for interval in trace.intervals if interval.kind in ("forward", "prefill")]
        assert -trace.uncertainty_s <= min(interval.start for interval in forwards) < record.ttft_s
        assert trace.prunes
        assert trace.express_bytes > 0

    again = bench(Path(scenario), out)  # without agents' help: nothing is left to do
    assert again.begun == [(2, 2)]
    assert roles_of(cluster) == ["idle"] * 3

    emulating = scenario_file(strategies=STRATEGIES)
    bench(emulating, tmp_path / "replay", clock="replay")
    assert outputs(tmp_path / "replay") == outputs(out)
    assert len(outputs(out)) == 1


@pytest.mark.slow
def test_agents_of_a_cluster_are_measured_with_its_credentials(
    scenario_file: ScenarioFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_own_security(monkeypatch, None)
    home = SecureCluster(tmp_path, 1)  # its service is off
    states = [home.member("d0", CertificateRole.DRAFT_NODE), home.member("v1", CertificateRole.AGENT)]
    client = home.member("anna", CertificateRole.CLIENT)
    with members(states) as agents_of_it:
        changes = {**LIVE, "strategies": ["flowspec"], "hosts": hosts_of(agents_of_it)}
        command = ["bench", str(scenario_file(**changes)), "--clock", "real", "--out", str(tmp_path / "out")]
        assert flowedge([*command, "--cluster-dir", str(client)]) == 0
    runs = results(tmp_path / "out")["runs"]
    assert [run["tokens"] for run in runs] == [12]


def test_a_pipeline_that_is_there_is_used_and_left(
    cluster: list[AgentProcess], scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    hosts = hosts_of(cluster)
    spec = PipelineSpec(
        draft_node=hosts["draft_node"], stages=tuple(hosts["stages"]), drafter=("bundled",), dtype="float32"
    )
    pipeline = assemble(spec, lambda *_: None)
    # With device profiles there is energy; a sweep of options is one pipeline.
    changes = {
        **LIVE,
        "strategies": ["flowspec"],
        "devices": {"draft_node": "orin-nano-8gb", "stages": {"device": "orin-nano-8gb", "count": 2}},
        "sweep": {"option.depth": [3, 4]},
    }
    bench(scenario_file(**changes, hosts=hosts), tmp_path / "out")
    with Client(spec.draft_node) as client:
        assert client.describe().pipeline == pipeline_label(pipeline)
    runs = results(tmp_path / "out")["runs"]
    assert [run["point"] for run in runs] == [{"option.depth": 3}, {"option.depth": 4}]
    assert all(run["energy_j_per_token"] > 0 for run in runs)


@pytest.mark.proof
def test_the_template_works_with_hosts_filled_in(
    cluster: list[AgentProcess], bench: Bench, tmp_path: Path
) -> None:
    form = (Path(flowedge_testbed.__file__).parent / "scenarios" / "lan-template.yaml").read_text()
    hosts = hosts_of(cluster)
    for name, address in zip(
        ("d0.local:7070", "v1.local:7070", "v2.local:7070"),
        (hosts["draft_node"], *hosts["stages"]),
        strict=True,
    ):
        assert name in form
        form = form.replace(name, address)
    (tmp_path / "lan.yaml").write_text(form)
    bench(tmp_path / "lan.yaml", tmp_path / "out", quick=True)
    written = results(tmp_path / "out")
    assert [run["tokens"] for run in written["runs"]] == [16] * 5
    assert written["outputs_differ"] == []


HOSTS = {"draft_node": "127.0.0.1:1", "stages": ["127.0.0.1:2", "127.0.0.1:3"]}
EMULATED = {"devices": {"draft_node": "orin-nano-8gb", "stages": ["orin-nano-8gb"]}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "names no hosts"),
        ({"hosts": HOSTS, "sweep": {"mbps": [1, 2], "option.depth": [3]}}, "sweep: mbps cannot be varied"),
        ({"hosts": HOSTS, "sweep": {"stages": [1]}}, "sweep: stages cannot be varied"),
        (
            {"hosts": HOSTS, "emulated": [{"model": "llama2-7b"}, {"model": "vicuna-7b"}]},
            "real hosts run one",
        ),
        ({"hosts": HOSTS, "prefill_rows": 64}, "prefill_rows is 64"),
        ({"hosts": HOSTS, **EMULATED}, "devices has 1 stages and middles, but hosts has 2"),
        ({"hosts": {**HOSTS, "split": [8]}}, "hosts.split is for 1 stages"),
        ({"hosts": {**HOSTS, "stages": ["127.0.0.1:2"] * 2}}, "named twice"),
        ({"hosts": {**HOSTS, "stages": ["nonsense"]}}, "nonsense"),
        ({"clock": "replay", "hosts": HOSTS}, "emulates nothing: --clock replay needs places"),
    ],
)
def test_what_real_hosts_cannot_do_is_refused(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequestError, match=said):
        bench(scenario_file(**{**LIVE, **changes}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_hosts_are_part_of_a_runs_key(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    from flowedge_testbed.plan import cases, make_plan
    from flowedge_testbed.prompts import Dataset
    from flowedge_testbed.scenario import read_scenario

    def key(**hosts: Any) -> str:
        scenario = read_scenario(scenario_file(**{**LIVE, "hosts": {**HOSTS, **hosts}}))
        plan = make_plan(scenario, cases(scenario, tmp_path), [Dataset("own", ((1, 2),), 0)], {}, None)
        return plan.tasks[0].runs[0].key

    others = [{"draft_node": "127.0.0.1:9"}, {"stages": HOSTS["stages"][::-1]}, {"quant": "nf4"}]
    assert len({key(), key(), *(key(**other) for other in others)}) == 4


def test_a_trace_begins_with_the_requests_arrival() -> None:
    draft_node = DeviceTimeline(
        "d0:1",
        (
            TimelineEvent("request", 100.0, 100.0, 0),
            TimelineEvent("draft", 100.5, 101.0, 10),
            TimelineEvent("cache", 100.1, 100.2, 0),
        ),
        0,
        ClockOffset(0.0, 0.001),
    )
    stage = DeviceTimeline(
        "v1:1",
        (
            TimelineEvent("forward", 101.0, 102.0, 4),
            TimelineEvent("prune", 102.5, 102.5, 0),
            TimelineEvent("transfer", 102.0, 103.0, 4),
        ),
        0,
        ClockOffset(-7.0, 0.003),
    )
    trace = trace_of([draft_node, stage], 77, [-1, 0])
    assert trace.intervals == [
        Interval(-1, "draft", 0.5, 1.0, 10),
        Interval(-1, "cache", pytest.approx(0.1), pytest.approx(0.2), 0),
        Interval(0, "forward", 1.0, 2.0, 4),
        Interval(0, "transfer", 2.0, 3.0, 4),
    ]
    assert trace.prunes == [PruneMark(0, 2.5)]
    assert trace.express_bytes == 77
    assert trace.uncertainty_s == pytest.approx(0.004)
    assert type(trace).from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    with pytest.raises(CapacityError, match="v1:1 has forgotten 3 events"):
        trace_of([draft_node, DeviceTimeline("v1:1", (), 3, ClockOffset(0, 0))], 0, [-1, 0])
    with pytest.raises(ProtocolError, match="0 arrivals"):
        trace_of([stage, stage], 0, [-1, 0])


def test_statistics_off_the_wire_are_checked() -> None:
    report = {"report": {"device": "d0"}, "use": 0.5}
    good: dict[str, Any] = {
        "session": "s", "strategy": "flowspec", "seed": 1, "finish_reason": "length", "prompt_tokens": 3,
        "new_tokens": 2, "ttft_s": 0.1, "decode_s": 0.2, "total_s": 0.4, "tokens_per_s": 5.0, "itl_s": [0.2],
        "counters": {"accepted_per_round": [2]}, "draft_node": report, "stages": [report],
        "link_bytes": {"d0": 1, "express": 2}, "verification": "draft-node",
    }  # fmt: skip
    typed = typed_statistics(good)
    assert (typed.itl_s, typed.counters.accepted_per_round, typed.stages[0].use) == ((0.2,), (2,), 0.5)
    for wrong, said in (
        ({"ttft_s": "soon"}, "bad ttft_s"),
        ({"decode_s": float("nan")}, "decode_s of nan"),
        ({"itl_s": [-1.0]}, "itl_s.0 of -1"),
        ({"new_tokens": 5}, "1 times between 5 tokens"),
        ({"stages": [{"use": 1}]}, "bad stages.0.report"),
    ):
        with pytest.raises(ProtocolError, match=said):
            typed_statistics({**good, **wrong})


def test_an_agent_lost_on_the_way_leaves_what_is_finished(
    cluster: list[AgentProcess],
    scenario_file: ScenarioFile,
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last test of this file: its cluster is one agent short from here on."""
    measure = RealBackend.measure

    def killing(clock: RealBackend, task: Task) -> Any:
        for found in measure(clock, task):
            yield found
            cluster[2].kill()

    monkeypatch.setattr(RealBackend, "measure", killing)
    one_pipeline = {**LIVE, "verification": "auto", "hosts": hosts_of(cluster)}
    scenario = scenario_file(**one_pipeline)
    with pytest.raises(FlowEdgeError, match=r"bench-\w+-v2") as caught:
        bench(scenario, tmp_path / "out")
    assert caught.value.code == "device_lost"
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 1
    assert not (tmp_path / "out" / "results.json").exists()
    with Client(cluster[1:][0].address, silence_s=20) as client:
        assert client.describe().role == "idle"
