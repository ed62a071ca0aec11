"""An agent without a role is light, quick to serve and can be found."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

from flowedge.agent import main
from flowedge.discovery.discovery import discover
from tests.support.commands import run_command
from tests.support.free_ports import free_port
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
        ("generation_service.py", "from flowedge.agent.services.prompt_preparation import read_prompt"),
    ]
