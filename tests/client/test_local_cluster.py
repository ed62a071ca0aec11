"""A cluster for notebooks and tests, as a program of a user has it."""

from __future__ import annotations

import sys

import pytest

import flowedge
from flowedge.core.errors import BadRequestError
from tests.support.commands import run_command

SCRIPT = """
import asyncio, flowedge
cluster = flowedge.LocalCluster(stages=2)
client = cluster.client
assert client is cluster.client
async def ask():
    async with cluster.async_client() as other:
        return await other.generate("Hi", max_new_tokens=4).result()
answer = client.generate("Hi", max_new_tokens=4).result()
assert asyncio.run(ask()).text == answer.text
devices = client.devices()
assert [device.role for device in devices] == ["draft node", "stage", "stage"]
print(answer.finish_reason, *(device.name for device in devices))
"""


@pytest.mark.proof
def test_a_cluster_answers_and_ends_with_its_program() -> None:
    """That it ends with its context is shown by the example of docs/client.md."""
    ran = run_command([sys.executable, "-c", SCRIPT])
    assert ran.returncode == 0, ran.stderr
    reason, *names = ran.stdout.split()
    assert reason in ("eos", "length")
    listed = run_command(["ps", "-eo", "args"], check=True).stdout
    for name in names:
        assert name not in listed


def test_arguments_are_checked_before_anything_is_started() -> None:
    with pytest.raises(BadRequestError, match="0 local stages"):
        flowedge.LocalCluster(stages=0)
