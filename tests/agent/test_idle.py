"""An agent without a role is light, quick to serve and can be found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid

from flowedge.discovery.discovery import discover
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


def test_the_agent_does_not_import_torch() -> None:
    program = (
        "import sys, flowedge.agent.main, flowedge.discovery.discovery; "
        "print([name for name in ('torch', 'transformers', 'bitsandbytes') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
