"""The paced clock: agents that take the time of emulated devices, and leave nothing behind."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.core.messages import Credit
from flowedge.planning.profile.model import LayerSize, ModelProfile
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.roofline import layer_s
from flowedge.planning.split import even_split
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from flowedge.protocol.link_kind import LinkKind
from flowedge_testbed.compare import compared, table
from flowedge_testbed.emulation.place import PlaceEvent
from flowedge_testbed.paced import namespaces
from flowedge_testbed.paced.namespaces import Namespaces, free_network
from flowedge_testbed.paced.paced_backend import why_loopback
from flowedge_testbed.paced.pacing import DevicePacing, PacedPipeline
from flowedge_testbed.paced.run_clock import RunClock
from flowedge_testbed.paced.timings import JobTiming, ScheduleAccuracy, TimingLog, TimingReader
from flowedge_testbed.profiles import library
from flowedge_testbed.stored_runs import read_load_record, read_record
from tests.drafting.eagle3_files import save_eagle3_head
from tests.planning.test_profile_costs import forward
from tests.support.commands import run_command
from tests.support.processes import CLI
from tests.support.session_jobs import batch_of
from tests.support.waiting import await_that
from tests.testbed.conftest import Bench, ScenarioFile, results

# Small enough that a test is short, slow enough that the real pair can keep up.
MODEL = {
    "title": "A model of 8 layers",
    "source": "made up",
    "layers": 8,
    "hidden": 2048,
    "intermediate": 5504,
    "heads": 16,
    "kv_heads": 16,
    "vocab": 32000,
    "drafters": {
        "eagle": {"kind": "eagle"},
        "eagle3": {"kind": "eagle3", "draft_vocab": 32000},
        "small_lm": {
            "kind": "small_lm",
            "layers": 4,
            "hidden": 1024,
            "intermediate": 2816,
            "heads": 16,
            "kv_heads": 16,
            "vocab": 32000,
        },
    },
}


@pytest.fixture
def networks() -> None:
    """Skips the test where network namespaces cannot be made."""
    if (reason := why_loopback()) is not None:
        pytest.skip(f"no network namespaces: {reason}")


def emulation(stages: int = 3, **links: float) -> PipelineProfile:
    model = library.model("llama2-7b")
    nano = library.device("orin-nano-8gb")
    link = library.link("lan-150").model_copy(update=links)
    # Each link has a latency of its own: 1 ms out of the first stage, 2 out of the second ..
    chain = [link.model_copy(update={"latency_ms": float(index + 1)}) for index in range(stages + 1)]
    split = tuple(even_split(model.layers, stages, larger_first=True))
    return PipelineProfile(
        model, "none", model.drafters["eagle"], nano, (nano,) * stages, tuple(chain), split
    )


EVENTS = (
    PlaceEvent(at_s=0, device="v1", slower=3),
    PlaceEvent(at_s=0, link="v1", slower=2, add_ms=30),
    PlaceEvent(at_s=900, device="v1", slower=9),
)


@pytest.fixture
def log(tmp_path: Path) -> TimingLog:
    return TimingLog(tmp_path / "timings")


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[RunClock]:
    with closing(RunClock(tmp_path / "clock")) as made:
        yield made


@pytest.mark.parametrize(
    ("place", "in_band_ms", "reply_ms"), [(DRAFT_NODE, 3, 1), (0, 4, 2), (1, 1, 3), (2, 2, 3)]
)
def test_a_message_is_late_by_the_link_it_came_over(
    log: TimingLog, clock: RunClock, place: int, in_band_ms: float, reply_ms: float
) -> None:
    pacing = DevicePacing(PacedPipeline(emulation(), 0, False), place, log, clock)
    assert pacing.latency(LinkKind.IN_BAND) == pytest.approx(in_band_ms / 1e3)
    assert pacing.latency(LinkKind.EXPRESS) == pytest.approx(4 / 1e3), "the draft node's"
    assert pacing.latency(LinkKind.REPLY) == pytest.approx(reply_ms / 1e3)


def test_events_happen_by_the_clock_of_a_run(log: TimingLog, clock: RunClock, tmp_path: Path) -> None:
    """The clock is the benchmark's, which the agent reads in another process."""
    job, message = batch_of(forward(1, 0)), Credit("s")
    with closing(RunClock(tmp_path / "clock")) as own:
        of_stage, of_draft_node = (
            DevicePacing(PacedPipeline(emulation(), 0, False, EVENTS), place, log, clock)
            for place in (0, DRAFT_NODE)
        )

        def costs() -> list[float]:
            return [
                of_stage.job(job), of_stage.layer(job), of_stage.transfer(message),
                of_stage.latency(LinkKind.REPLY), of_draft_node.latency(LinkKind.REPLY),
            ]  # fmt: skip

        before = costs()
        with own.running():
            behind = costs()
        between = costs()
        with own.running():
            assert costs() == behind
    assert clock.seconds() == float("-inf")
    assert between == before
    job_s, layer_s, transfer_s, after_s, before_s = before
    assert behind == pytest.approx([3 * job_s, 3 * layer_s, 2 * transfer_s, after_s, before_s + 0.03])


@pytest.mark.parametrize(("drafter", "widths"), [("eagle", (1, 1, 1)), ("eagle3", (2, 3, 4))])
def test_rows_have_the_emulated_size(
    log: TimingLog, clock: RunClock, drafter: str, widths: tuple[int, ...]
) -> None:
    single = library.model("llama2-7b").model_copy(update={"dtype": "float32"})
    for model, element in ((library.model("llama2-7b"), 2), (single, 4)):
        made = replace(emulation(), model=model, drafter=model.drafters[drafter])
        pipeline = PacedPipeline(made, 0, False)
        sent = [DevicePacing(pipeline, place, log, clock).row_bytes for place in range(3)]
        assert sent == [width * 4096 * element for width in widths]


def test_what_agents_are_told_survives_the_file(tmp_path: Path) -> None:
    pipeline = PacedPipeline(emulation(jitter_ms=0.5), 7, True, EVENTS)
    pipeline.write(tmp_path / "pipeline.json")
    assert PacedPipeline.read(tmp_path / "pipeline.json") == pipeline
    with pytest.raises(BadRequestError, match=r"absent\.json"):
        PacedPipeline.read(tmp_path / "absent.json")


def test_timings_come_out_once_and_add_up(tmp_path: Path) -> None:
    log, reader = TimingLog(tmp_path / "timings"), TimingReader(tmp_path / "timings")
    assert reader.take() == []
    in_time, late = JobTiming(0.1, 0.01, 0.0, 0.0005), JobTiming(0.1, 0.12, 0.05, 0.0525)
    log.add(in_time)
    assert reader.take() == [in_time]
    log.add(late)
    assert reader.take() == [late]
    kept = ScheduleAccuracy.of([in_time, late])
    assert (kept.jobs, kept.overruns, kept.overrun_share) == (2, 1, 0.5)
    assert kept.worst_ratio == pytest.approx(1.5)
    assert kept.worst_late_ms == pytest.approx(52.5)
    assert "1 of 2 jobs (50.00%, at worst 1.50 times the slot)" in kept.line()
    assert ScheduleAccuracy.of([]).worst_ratio == 1.0


def test_addresses_are_private_and_meet_no_route() -> None:
    used = [ipaddress.IPv4Network("10.0.0.0/8"), ipaddress.IPv4Network("172.16.0.0/13")]
    for _ in range(20):
        found = free_network(used)
        assert found.is_private
        assert not any(found.overlaps(network) for network in used)
    with pytest.raises(DeviceError, match="no private addresses"):
        free_network([ipaddress.IPv4Network("0.0.0.0/1"), ipaddress.IPv4Network("128.0.0.0/1")])


def test_the_table_has_the_ratio_of_what_both_ran() -> None:
    entry = {"profile": "m", "dataset": "d", "temperature": 0, "noise": "plain", "ttft_ms": 10}
    entry["point"] = {"mbps": 125}
    model = [{**entry, "method": name, "tokens_per_s": 4.0} for name in ("flowspec", "naive_pp")]
    paced = [{**entry, "method": "flowspec", "tokens_per_s": 3.0}]
    (row,) = compared(model, paced, {"flowspec": {"overrun_share": 0.0123}})
    assert (row.method, row.ratio) == ("flowspec", 0.75)
    assert "| flowspec | 4.000 | 3.000 | 0.750 | 10 | 10 | 1.2% |" in table([row], "replay")


@pytest.fixture
def scenario(scenario_file: ScenarioFile, tmp_path: Path) -> Path:
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(MODEL), encoding="utf-8")
    return scenario_file(
        emulated=[{"model": "model.yaml", "split": [2, 6]}],  # the real pair's is [4, 4]
        devices={"draft_node": "orin-nano-8gb", "stages": {"device": "orin-nano-8gb", "count": 2}},
    )


def children() -> set[psutil.Process]:
    """Processes that this one has started; other tests may have some that outlive a test."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    subprocess.run([*CLI, "agent", "--help"], capture_output=True, check=True)  # what agents are forked from
    monkeypatch.setattr(sys, "executable", CLI[0])
    monkeypatch.setattr(namespaces, "why_not", lambda: "the test wants none")
    why_loopback.cache_clear()
    yield
    why_loopback.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("on_loopback")
def test_agents_on_loopback_give_the_tokens_of_replay(
    scenario_file: ScenarioFile, scenario: Path, bench: Bench, tmp_path: Path
) -> None:
    before = children()
    content = yaml.safe_load(scenario.read_text())
    scenario_file(**{**content, "strategies": ["autoregressive", "flowspec"], "max_new_tokens": 8})
    head = save_eagle3_head(tmp_path / "head", hidden=256, vocab=4096, draft_vocab=1000)
    drafter = (str(head), "ngram")
    said = bench(scenario, tmp_path / "paced", clock="paced", drafter=drafter)
    assert any("loopback" in line and "the test wants none" in line for line in said.lines)
    assert any("jobs" in line for line in said.lines)
    check_same_tokens(scenario, bench, tmp_path, drafter=drafter)
    facts = json.loads((tmp_path / "paced" / "run.json").read_text())
    assert facts["network"] == {"kind": "loopback", "because": "the test wants none"}
    assert facts["schedule"]["jobs"] > 0
    assert children() <= before


@pytest.mark.slow
@pytest.mark.usefixtures("on_loopback")
def test_a_stage_becomes_slower_in_the_middle_of_a_paced_answer(
    scenario_file: ScenarioFile, scenario: Path, bench: Bench, tmp_path: Path
) -> None:
    content = yaml.safe_load(scenario.read_text())
    place = {"devices": content["devices"], "links": content["links"], "emulated": content["emulated"][0]}
    tokens, at_s, slower = 24, 0.3, 8
    place["events"] = [{"at_s": at_s, "device": "v1", "slower": slower}]
    alone = {"devices": None, "links": None, "emulated": [], "strategies": ["autoregressive"]}
    changing = scenario_file(**{**content, **alone, "places": {"home": place}, "max_new_tokens": tokens})
    found = {}
    for clock in ("paced", "replay"):
        bench(changing, tmp_path / clock, clock=clock)
        (file,) = (tmp_path / clock / "runs").glob("*.json")
        found[clock] = read_record(tmp_path / clock, file.stem)
    paced, replayed = found["paced"], found["replay"]
    assert paced is not None
    assert replayed is not None
    assert paced.output == replayed.output
    # A busy machine makes an answer later and not earlier: so more of its jobs come behind the event, and all
    # of these take as long as the slower stage does.
    assert 0 < replayed.tokens_before(at_s) < tokens - 1
    assert paced.stages[0].busy_s >= 0.9 * replayed.stages[0].busy_s
    assert paced.stages[1].busy_s < replayed.stages[0].busy_s


@pytest.mark.proof
@pytest.mark.usefixtures("on_loopback")
def test_a_hierarchy_on_paced_agents_makes_the_steps_of_replay(
    scenario_file: ScenarioFile, scenario: Path, bench: Bench, tmp_path: Path
) -> None:
    content = yaml.safe_load(scenario.read_text())
    nano = "orin-nano-8gb"
    hierarchy = scenario_file(
        **{
            **content,
            "emulated": [{**content["emulated"][0], "middles": ["small_lm"]}],
            "devices": {**content["devices"], "middles": [[nano, nano]]},
            "strategies": ["autoregressive", "pipespec_sync", "pipespec"],
            "max_new_tokens": 8,
        }
    )
    runs = {}
    for clock in ("paced", "replay"):
        bench(hierarchy, tmp_path / clock, clock=clock, drafter=("bundled",), middles=("bundled-small",))
        written = results(tmp_path / clock)
        assert written["outputs_differ"] == []
        runs[clock] = {run["method"]: run for run in written["runs"]}
    for method in ("pipespec_sync", "pipespec"):
        assert set(runs["paced"][method]["use"]) == {"d0", "v1", "v2", "m1", "m2"}
    # One model works at a time, so that no time of a device decides what is drafted.
    paced, replayed = (runs[clock]["pipespec_sync"] for clock in ("paced", "replay"))
    assert paced["verifiers"] == replayed["verifiers"]
    assert paced["rollbacks"] == replayed["rollbacks"]


@pytest.mark.proof
@pytest.mark.usefixtures("on_loopback")
def test_a_load_on_paced_agents_gives_the_answers_of_replay(
    scenario_file: ScenarioFile, scenario: Path, bench: Bench, tmp_path: Path
) -> None:
    before = children()
    content = yaml.safe_load(scenario.read_text())
    load = {"clients": [2], "requests": 3, "new_tokens": [6, 12]}
    loaded = scenario_file(
        **{**content, "strategies": ["flowspec"], "load": load, "report": {"plots": ["gantt"]}}
    )
    found = {}
    for clock in ("paced", "replay"):
        bench(loaded, tmp_path / clock, clock=clock)
        (file,) = (tmp_path / clock / "runs").glob("*.json")
        found[clock] = read_load_record(tmp_path / clock, file.stem)
        assert results(tmp_path / clock)["outputs_differ"] == []
        assert (tmp_path / clock / "gantt-flowspec.png").read_bytes().startswith(b"\x89PNG")
    paced, replayed = found["paced"], found["replay"]
    assert paced is not None
    assert replayed is not None
    # Which requests are counted, and their answers, do not depend on the clock.
    assert [(each.number, each.output) for each in paced.requests] == [
        (each.number, each.output) for each in replayed.requests
    ]
    for record in (paced, replayed):
        assert set(record.use.busy) == {"d0", "v1", "v2"}
        assert all(0 < each.ttft_s < each.latency_s for each in record.requests)
    assert all(0 < each.queued_s < each.ttft_s for each in replayed.requests)
    assert children() <= before


@pytest.mark.proof
@pytest.mark.usefixtures("networks")
def test_agents_in_namespaces_give_the_tokens_of_replay(scenario: Path, bench: Bench, tmp_path: Path) -> None:
    before = interfaces(), children()
    bench(scenario, tmp_path / "paced", clock="paced")
    check_same_tokens(scenario, bench, tmp_path)
    facts = json.loads((tmp_path / "paced" / "run.json").read_text())
    assert facts["network"] == {"kind": "namespaces"}
    assert interfaces() == before[0]
    assert children() <= before[1]


def check_same_tokens(scenario: Path, bench: Bench, tmp_path: Path, **options: str) -> None:
    """By the paced clock and by replay; and no quicker than one forward of each stage for each round."""
    bench(scenario, tmp_path / "replay", clock="replay", **options)
    found, sent = {}, {}
    nano = library.device("orin-nano-8gb")
    forward = 2 * layer_s(nano, LayerSize.of(ModelProfile.model_validate(MODEL)), 1, 0, "none")
    for clock in ("paced", "replay"):
        written = results(tmp_path / clock)
        assert written["outputs_differ"] == []
        files = (tmp_path / clock / "runs").glob("*.json")
        records = [read_record(tmp_path / clock, file.stem) for file in files]
        assert all(records)
        found[clock] = {record.output for record in records if record is not None}
        plain = [record for record in records if record is not None and not record.draft_layers]
        sent[clock] = [stage.bytes_sent for record in plain for stage in record.stages]
        for record in records:
            assert record is not None
            forwards = record.segments - record.empty_segments
            assert record.stages[0].busy_s >= 0.9 * forward * forwards, "a job takes its slot"
    assert found["paced"] == found["replay"]
    # A header is of about 64 bytes, which shows where nothing but token ids is sent.
    sizes = pytest.approx(sent["replay"], rel=0.02, abs=128)
    assert sent["paced"] == sizes, "rows have the emulated size on the wire"


HOLDER = """
import time
from flowedge_testbed.paced.namespaces import Namespaces
network = Namespaces(2)
network.start()
print(network.interface, *network.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("networks")
def test_nothing_is_left_of_a_network_whose_owner_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        interface, *pids = owner.stdout.readline().split()
        assert interface in interfaces()
    finally:
        owner.kill()
        owner.wait(10)
    await_that(lambda: interface not in interfaces(), "a link outlived its owner")
    await_that(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), "a namespace outlived its owner")


@pytest.mark.usefixtures("networks")
def test_two_networks_do_not_meet() -> None:
    before = interfaces()
    with Namespaces(1) as one, Namespaces(2) as other:
        assert len({*one.hosts, *other.hosts}) == 3
        listing = run_command(other.enter(1, ["ip", "-4", "-oneline", "address"]), check=True)
        assert other.hosts[1] in listing.stdout
        assert not any(host in listing.stdout for host in (*one.hosts, other.hosts[0]))
        other.limit(0, 150.0)
        other.limit(0, 1000.0)
    assert interfaces() == before


def interfaces() -> set[str]:
    return set(psutil.net_if_addrs()) | {path.name for path in Path("/sys/class/net").iterdir()}
