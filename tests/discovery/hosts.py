"""Processes on hosts that are network namespaces, for tests; none is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowedge.version import PROTOCOL_VERSION
from flowedge_testbed.paced.namespaces import Namespaces

DEADLINE_S = 120.0
CLI = [sys.executable, "-m", "flowedge.cli.main"]
AGENT = (
    "import sys; from flowedge.agent.main import serve; "
    "from flowedge.agent.config.agent_config import AgentConfig; "
    "from flowedge.agent.config.agent_config import DeviceSettings; "
    "from flowedge.discovery.settings import DiscoverySettings; "
    "from flowedge.security.settings import SecuritySettings; "
    "serve(AgentConfig(agent=DeviceSettings(host='0.0.0.0', name=sys.argv[1], port=int(sys.argv[2])), "
    "security=SecuritySettings(insecure=True), discovery=DiscoverySettings(ttl_s=2)))"
)


@contextmanager
def running(network: Namespaces, host: int, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a host; it is gone when the context ends."""
    process = subprocess.Popen(
        network.enter(host, command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def line(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    """The next line of a process that is wanted; others are skipped."""
    assert process.stdout is not None
    found: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            found.append(text)
            if wanted(text):
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(DEADLINE_S)
    assert found and wanted(found[-1]), f"it did not come; there were {found}"
    return found[-1]


@contextmanager
def agent(
    network: Namespaces, host: int, name: str, state: Path, port: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """A real agent on every network of a host."""
    command = ["env", f"FLOWEDGE_STATE_DIR={state}", sys.executable, "-c", AGENT, name, str(port)]
    with running(network, host, *command) as process:
        line(process, lambda text: "listening on" in text)
        yield process


@contextmanager
def advertised(network: Namespaces, host: int, device_id: str, name: str) -> Iterator[None]:
    """An announcement with no agent behind it."""
    command = [sys.executable, "-m", "tests.discovery.advertise", device_id, name, "0.0.0.0:5001"]
    with running(network, host, *command, str(PROTOCOL_VERSION), "2") as process:
        line(process, lambda text: text == "advertised\n")
        yield


def run(network: Namespaces, host: int, *command: str) -> str:
    done = subprocess.run(
        network.enter(host, command), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    warned = "--insecure" in command
    assert not done.stderr or (warned and done.stderr.startswith("--insecure: ")), done.stderr
    return done.stdout
