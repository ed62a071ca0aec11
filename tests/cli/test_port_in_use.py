"""A port in use is one sentence that names the port and what to do; gRPC writes nothing of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.processes import CLI


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def _run(*arguments: str, state: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(state), **variables}
    return run_command([*CLI, *arguments], env=environment)


def test_a_port_in_use_is_one_sentence(taken: int, tmp_path: Path) -> None:
    directory = tmp_path / "ca"
    agent = ["agent", "--name", "kitchen", "--no-advertise", "--log-level", "error"]
    assert (
        _run(
            "cluster", "init", "home", "--dir", str(directory), "--port", str(taken), state=tmp_path
        ).returncode
        == 0
    )
    with ThreadPoolExecutor(3) as pool:
        of_agent = pool.submit(_run, *agent, "--port", str(taken), state=tmp_path)
        metrics = pool.submit(_run, *agent, state=tmp_path, FLOWEDGE_METRICS__PORT=str(taken))
        authority = pool.submit(
            _run, "cluster", "serve", "--dir", str(directory), "--host", "127.0.0.1", state=tmp_path
        )
    in_use = f"port {taken} is in use by another program on 127.0.0.1; end that program"
    for done, device, remedy in (
        (of_agent.result(), "kitchen", ", or choose another port with --port or agent.port"),
        (metrics.result(), "kitchen", ", choose another port for metrics with metrics.port"),
        (
            authority.result(),
            "of the cluster's CA",
            "; a cluster's port is chosen with flowedge cluster init",
        ),
    ):
        assert done.returncode == 1
        assert done.stderr.startswith(f"flowedge: device {device}: {in_use}{remedy}")
        assert done.stderr.count("\n") == 1
