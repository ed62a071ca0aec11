"""Clusters of processes on this machine end when they should, however their parent ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc as health_rpc

from flowedge.agent import local_cluster
from flowedge.agent.local_cluster import LocalCluster, shared_threads
from flowedge.cli.pipelines.opening import open_planned
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client import Client
from flowedge.cluster.process import METADATA_KEY
from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError
from flowedge.v1 import agent_pb2
from flowedge.v1 import agent_pb2_grpc as agent_rpc
from tests.support.commands import run_command
from tests.support.processes import CLI
from tests.support.waiting import await_that

PARENT = """
import sys, time
from flowedge.agent.local_cluster import LocalCluster
cluster = LocalCluster(1)
cluster.start()
print(*(agent.pid for agent in cluster.agents), flush=True)
time.sleep(600)
"""


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the agents of a LocalCluster forked: a stand-in for Python is what it starts and signals."""
    monkeypatch.setattr(sys, "executable", CLI[0])


def test_agents_are_real_processes_and_end_with_the_context() -> None:
    with LocalCluster(2, name="kitchen") as cluster:
        pids = [agent.pid for agent in cluster.agents]
        assert len(set(pids)) == 3
        assert cluster.draft_node.name.startswith("kitchen-")
        assert cluster.draft_node.name.endswith("-d0")
        for agent in cluster.agents:
            with Client(agent.address, silence_s=20) as client:
                assert client.describe().name == agent.name
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("cores", "others", "threads"),
    [(8, 1, (2, 6)), (8, 4, (1, 1)), (2, 1, (1, 1)), (1, 1, (1, 1)), (64, 3, (16, 16)), (8, 0, (2, 6))],
)
def test_agents_of_a_machine_share_its_cores(cores: int, others: int, threads: tuple[int, int]) -> None:
    assert shared_threads(cores, others) == threads


def test_the_threads_of_agents_are_told_to_them(forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowedge.agent.local_cluster.physical_cores", lambda: 8)
    with LocalCluster(1) as cluster:
        told = [psutil.Process(agent.pid).environ()["FLOWEDGE_AGENT__THREADS"] for agent in cluster.agents]
    assert told == ["2", "6"]


CHATTY = """
import select
import sys
print("x listening on 127.0.0.1:1", flush=True)
sys.stdin.readline()
for number in range(4000):
    print(f"line {number}", "-" * 90)
ended = False
while not ended:  # a line that is written while the log is shortened may be lost
    print("the last line", flush=True)
    ended = bool(select.select([sys.stdin], [], [], 0.2)[0])
"""


def test_a_log_keeps_its_latest_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 20_000  # bytes; the agent writes 400,000
    monkeypatch.setattr(local_cluster, "LOG_BYTES", most)
    monkeypatch.setattr(local_cluster, "_LOG_LOOK_S", 0.01)
    command = [sys.executable, "-c", CHATTY]
    with LocalCluster(1, draft_node=False, command=lambda _, __: command) as cluster:
        (agent,) = cluster.agents
        assert agent.log.parent == cluster.logs
        assert agent.process.stdin is not None
        agent.process.stdin.write(b"go on\n")
        agent.process.stdin.flush()
        await_that(lambda: agent.last_output_line() == "the last line" and agent.log.stat().st_size <= most)
        lines = agent.log.read_text(encoding="utf-8").splitlines()
        assert all(line.startswith("line ") or line == "the last line" for line in lines)
    with pytest.raises(BadRequestError, match="no logs"):
        _ = cluster.logs


def test_agents_import_nothing_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpc.py").write_text("raise SystemExit('a file of somebody else was run')")
    monkeypatch.chdir(tmp_path)
    with LocalCluster(1, draft_node=False) as cluster:
        assert cluster.stages[0].address


def test_other_programs_neither_find_the_agents_nor_may_call_them(forked: None) -> None:
    with LocalCluster(1, name="hidden") as cluster:
        address = cluster.draft_node.address
        for options in (["--timeout", "2"], ["--peers", address]):
            command = [*CLI, "devices", "--json", *options]
            done = run_command(command)
            assert "hidden-" not in done.stdout
        assert "was started by a command for itself" in done.stdout
        for metadata in ((), ((METADATA_KEY, "guessed"),)):
            with grpc.insecure_channel(address) as channel:
                for call, request in (
                    (agent_rpc.AgentStub(channel).Describe, agent_pb2.DescribeRequest()),
                    (agent_rpc.AgentStub(channel).Release, agent_pb2.ReleaseRequest()),
                    (health_rpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest()),
                ):
                    with pytest.raises(grpc.RpcError) as refused:
                        call(request, timeout=10, metadata=metadata)
                    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with Client(address) as client:
            assert client.describe().name == cluster.draft_node.name


@pytest.mark.proof
def test_an_agent_that_is_only_stopped_ends_too() -> None:
    with LocalCluster(1) as cluster:
        pid = cluster.draft_node.pid
        cluster.draft_node.process.send_signal(signal.SIGSTOP)
    assert not psutil.pid_exists(pid)


def test_agents_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.wait(10)
    await_that(lambda: not any(psutil.pid_exists(pid) for pid in pids), "an agent outlived its parent")


def test_an_agent_that_ends_at_its_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    cluster = LocalCluster(1, name="broken")
    with pytest.raises(DeviceError, match=r"broken-.*-d0.*ended at its start"):
        cluster.start()
    assert cluster.agents == []


def test_an_agent_that_does_not_listen_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    cluster = LocalCluster(1, start_timeout_s=0.5)
    with pytest.raises(DeadlineError, match=r"did not listen within 0\.5 s"):
        cluster.start()
    assert cluster.agents == []


def test_an_agent_that_ends_is_started_again_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_FIRST_S", 0.05)
    told: list[str] = []
    set_ups: list[set[int]] = []

    def set_up() -> None:
        set_ups.append({agent.pid for agent in cluster.agents})
        if len(set_ups) == 1:
            raise DeviceError("v1", "it is not ready yet")

    with LocalCluster(1) as cluster:
        cluster.keep_up(lambda device, text: told.append(f"{device}: {text}"), set_up)
        stage, before = cluster.stages[0], cluster.stages[0].pid
        stage.process.kill()
        await_that(lambda: len(set_ups) == 2, "the pipeline was not set up again")
        assert before not in set_ups[1]
        assert f"{stage.name}: its agent was ended by signal 9, so it is started again" in told
        assert any("not set up again: device v1: it is not ready yet; next try in" in text for text in told)
        with Client(stage.address, silence_s=20) as client:
            assert client.describe().name == stage.name
        for agent in cluster.agents:
            agent.process.kill()
        await_that(lambda: len(set_ups) == 3, "two agents were not started again")
        pids = set_ups[0] | set_ups[2]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_pipeline_whose_stage_was_killed_answers_again(forked: None) -> None:
    def answer(client: Client) -> str:
        return client.generate("Hello", max_new_tokens=4, ignore_eos=True).result().text

    with (
        open_planned(
            PipelineRequest(model="bundled", stages=2, drafter=("bundled",)),
            lambda *_: None,
            lambda request: request,
        ) as planned,
        Client(planned.draft_node, retries=50, timeout_s=120) as client,
    ):
        expected, draft_node = answer(client), client.describe()
        _, stage = draft_node.stage_addresses
        (process,) = (each for each in psutil.process_iter() if stage.rpartition(":")[2] in ports_of(each))
        process.kill()
        await_that(lambda: client.describe().pipeline not in ("", draft_node.pipeline), "it stays broken")
        assert answer(client) == expected


def ports_of(process: psutil.Process) -> set[str]:
    """Return the ports on which a process listens."""
    with contextlib.suppress(psutil.Error):
        return {
            str(each.laddr.port) for each in process.net_connections() if each.status == psutil.CONN_LISTEN
        }
    return set()


@pytest.mark.parametrize("stages", [0, -1, 1000])
def test_numbers_of_stages_that_make_no_sense(stages: int) -> None:
    with pytest.raises(BadRequestError, match="local stages"):
        LocalCluster(stages)
