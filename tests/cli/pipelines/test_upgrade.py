"""`flowedge upgrade`: the order of devices, what stops it, and a cluster whose answers go on meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flowedge.cli.pipelines.upgrade_plan import Duty, Restart, check_new, command_for, restarts
from flowedge.client import Client
from flowedge.core.errors import BadRequestError, ProtocolError
from tests.cli.pipelines.test_pipelines import IDLE
from tests.support.background import meanwhile
from tests.support.commands import run_command
from tests.support.processes import CLI, AgentProcess, agents

STAGES = "10.0.0.3:1", "10.0.0.1:1"
SHELF = {
    "10.0.0.2:1": replace(IDLE, name="d0", role="draft node", stage_addresses=STAGES, standby="10.0.0.4:1"),
    "10.0.0.4:1": replace(IDLE, name="d1", stands_by_for="10.0.0.2:1"),
    "10.0.0.1:1": replace(IDLE, name="v1", role="stage"),
    "10.0.0.3:1": replace(IDLE, name="v2", role="stage", version="0.2.0"),
    "10.0.0.5:1": replace(IDLE, name="spare"),
}
V1 = Restart("v1", "10.0.0.1:7070", Duty.STAGE, "0.1.0", 11, "x")


def test_what_is_least_at_stake_comes_first() -> None:
    steps = restarts(SHELF)
    assert [(step.name, str(step.duty)) for step in steps] == [
        ("spare", "idle"),
        ("v1", "stage"),
        ("v2", "stage"),
        ("d1", "standby"),
        ("d0", "draft node"),
    ]


def test_devices_with_the_version_are_left_out() -> None:
    assert [step.name for step in restarts(SHELF, ["v1", "v2"], "0.2.0")] == ["v1"]
    with pytest.raises(BadRequestError, match="no device is named v7; there are d0, d1, spare, v1, v2"):
        restarts(SHELF, ["v7"])


def test_a_protocol_that_the_others_do_not_speak_stops_it() -> None:
    new, others = replace(IDLE, name="v1", version="0.2.0", protocol_version=99), [IDLE]
    with pytest.raises(ProtocolError, match=r"device v1 speaks protocol 99 now.* --together"):
        check_new(new, "0.2.0", others, last=False)
    check_new(new, "0.2.0", others, last=True)
    with pytest.raises(BadRequestError, match=r"version 0\.2\.0 after the command, not 0.3.0"):
        check_new(new, "0.3.0", [], last=True)


def test_a_command_has_the_device_in_it_and_nothing_else() -> None:
    command = "ssh {host} 'echo {name} ${HOME} {address}'"
    assert command_for(command, V1) == "ssh 10.0.0.1 'echo v1 ${HOME} 10.0.0.1:7070'"
    with pytest.raises(BadRequestError, match=r"use \{host\}"):
        command_for("restart {name}", replace(V1, name="v1; reboot"))
    assert command_for("restart {host}", replace(V1, name="v1; reboot")) == "restart 10.0.0.1"


@contextmanager
def restarting(processes: list[AgentProcess], directory: Path) -> Iterator[None]:
    """Start each agent again for which there is a file with its name, as a service manager would."""

    def watch(ended: threading.Event) -> None:
        while not ended.is_set():
            for process in processes:
                asked = directory / process.name
                if asked.exists():
                    process.signal(signal.SIGTERM)
                    process.wait()
                    process.start()
                    asked.unlink()
            time.sleep(0.05)

    with meanwhile(watch):
        yield


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_answers_go_on_while_every_agent_is_started_again(tmp_path: Path) -> None:
    asked = {"max_new_tokens": 200, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    with agents(["v1", "v2", "v3"]) as stages:
        addresses = [each.address for each in stages]
        kept = {"model": "bundled", "stages": addresses[:2], "spares": addresses[2:]}
        with agents(["d0"], settings={"pipeline": kept}) as (draft_node,):
            processes = [draft_node, *stages]
            peers = ",".join(each.address for each in processes)
            upgrade = [*CLI, "upgrade", "--peers", peers, "--wait", "60"]
            with Client(draft_node.address, retries=1000, timeout_s=240) as client:
                client.await_ready(120)
                whole, texts, done = client.generate("Hi", **asked).result(), list[str](), threading.Event()  # type: ignore[arg-type]

                def ask() -> None:
                    while not done.is_set():
                        texts.append(client.generate("Hi", **asked).result().text)  # type: ignore[arg-type]

                asking = threading.Thread(target=ask)
                asking.start()
                with restarting(processes, tmp_path):
                    command = (
                        f"touch {tmp_path}/{{name}}; while test -e {tmp_path}/{{name}}; do sleep 0.1; done"
                    )
                    run = run_command([*upgrade, "--run", command])
                done.set()
                asking.join()
                assert run.returncode == 0, run.stderr
                assert [line.split()[1] for line in run.stdout.splitlines()[:4]] == ["v3", "v1", "v2", "d0"]
                assert run.stdout.count("as before") == 4
                assert set(texts) == {whole.text}
                failed = run_command([*upgrade, "--devices", "v1", "--run", "echo no space left; false"])
                assert failed.returncode == 1
                assert "device v1: its command ended with 1: no space left" in failed.stderr
