"""A cluster for notebooks and tests, as a program of a user has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import flowedge
from flowedge.core.errors import BadRequestError

SCRIPT = """
import os, sys, flowedge
cluster = flowedge.LocalCluster(stages=1)
print(cluster.client.generate("Hi", max_new_tokens=4).result().finish_reason, flush=True)
print(*(device.name for device in cluster.client.devices()), flush=True)
"""


def test_a_cluster_answers_and_ends() -> None:
    with flowedge.LocalCluster(stages=2) as cluster:
        client = cluster.client
        assert client is cluster.client
        devices = client.devices()
        assert [device.role for device in devices] == ["draft node", "stage", "stage"]

        async def ask() -> str:
            async with cluster.async_client() as other:
                return (await other.generate("Hi", max_new_tokens=4).result()).text

        assert asyncio.run(ask()) == client.generate("Hi", max_new_tokens=4).result().text
        address = cluster.address
    with flowedge.Client(address) as left, pytest.raises(flowedge.FlowEdgeError):
        left.describe()


def test_no_process_is_left_when_the_program_ends() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    reason, names = ran.stdout.splitlines()
    assert reason in ("eos", "length")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    for name in names.split():
        assert name not in listed


def test_arguments_are_checked_before_anything_is_started() -> None:
    with pytest.raises(BadRequestError, match="0 local stages"):
        flowedge.LocalCluster(stages=0)
