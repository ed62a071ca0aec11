"""An agent without a role is light, quick to serve and can be found."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest

from flowedge.agent import main
from flowedge.agent.local_cluster import LocalCluster
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import CheckpointError
from flowedge.discovery.discovery import discover
from tests.support.commands import run_command
from tests.support.free_ports import free_port
from tests.support.large_vocabulary import make_model
from tests.support.processes import agents

MEGABYTE = 10**6


def test_idle_agent_is_small_and_serves_soon() -> None:
    name = f"idle-{uuid.uuid4().hex[:8]}"
    with agents([name], advertise=True, fresh=True) as (agent,):
        found = asyncio.run(discover(10.0, want=[name]))
        assert [(device.name, device.address) for device in found] == [(name, agent.address)]
        device = agent.describe()
        assert (device.name, device.role, device.weight_bytes) == (name, "", 0)
        assert device.memory_total > device.memory_available > 0
        assert agent.resident_bytes() < 120 * MEGABYTE
        print(f"an idle agent holds {agent.resident_bytes() / MEGABYTE:.0f} MB")


IDLE = """
import asyncio, sys, grpc.aio
from flowedge.agent.agent_config import AgentConfig, DeviceSettings
from flowedge.agent.main import run_agent
from flowedge.v1 import agent_pb2 as pb, agent_pb2_grpc as rpc

async def main(port):
    running = asyncio.create_task(run_agent(AgentConfig(agent=DeviceSettings(port=port, name="idle"))))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        device = await rpc.AgentStub(channel).Describe(pb.DescribeRequest(), timeout=60, wait_for_ready=True)
    assert device.name == "idle" and not device.role
    print("\\n".join(sys.modules))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

asyncio.run(main(int(sys.argv[1])))
"""


def modules_of_an_idle_agent() -> set[str]:
    command = [sys.executable, "-c", IDLE, str(free_port())]
    said = run_command(command, check=True).stdout
    return {name.strip() for name in said.splitlines()}


def test_an_idle_agent_has_imported_nothing_that_computes() -> None:
    """An idle agent listens, advertises itself and answers; modules that compute are imported with a role."""
    modules = modules_of_an_idle_agent()
    assert {"flowedge.agent.roles.draft_node_role", "flowedge.discovery.discovery"} <= modules
    assert not modules & {"torch", "transformers", "bitsandbytes", "tokenizers", "safetensors"}
    assert "flowedge.agent.roles.compute_side" not in modules


def test_agents_import_torch_in_two_places() -> None:
    """Imports inside of functions are marked; the agent has two: the side that computes, and tokenizers."""
    package = Path(main.__file__).parent
    marked = [
        (path.name, line.strip())
        for path in sorted(package.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "PLC0415" in line
    ]
    assert [(name, line.split("  #")[0]) for name, line in marked] == [
        ("agent.py", "from flowedge.agent.roles.compute_side import ComputeSide"),
        (
            "begun_answer.py",
            "from flowedge.agent.services import prompt_preparation",
        ),
    ]


@pytest.mark.proof
def test_an_agent_that_is_idle_again_keeps_no_memory(tmp_path: Path) -> None:
    """Neither after roles that were released nor after set-ups that were refused when much was loaded.

    Of what the C library does not give back, no more is there after the last time than after the second.
    """
    size = 1 << 17
    model, other = make_model(tmp_path / "model", size), make_model(tmp_path / "other", size - 1)
    with LocalCluster(1) as cluster:
        draft_node, stage = (agent.address for agent in cluster.agents)
        held: list[list[int]] = []
        for drafter, refused in [("ngram", False)] * 6 + [(str(other), True)] * 6:
            spec = PipelineSpec(model=str(model), draft_node=draft_node, stages=(stage,), drafter=drafter)
            expected = pytest.raises(CheckpointError, match="tokenizer") if refused else nullcontext()
            with expected:
                assemble(spec, lambda *_: None)
                with Client(draft_node) as client:
                    client.generate(text="the words", max_new_tokens=4).result()
            release([draft_node, stage], "")
            held.append([settled_bytes(agent.pid) for agent in cluster.agents])
        print([[number // MEGABYTE for number in each] for each in held])
        for first, last in ((held[1], held[5]), (held[7], held[11])):
            assert all(after < before + 60 * MEGABYTE for before, after in zip(first, last, strict=True))


def settled_bytes(pid: int) -> int:
    """Return the memory that a process holds by itself once that has stopped to change."""

    def anonymous() -> int:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))

    last, now = 0, anonymous()
    while now != last:
        time.sleep(0.5)
        last, now = now, anonymous()
    return now
