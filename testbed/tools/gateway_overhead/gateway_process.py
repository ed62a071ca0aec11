"""A gateway as a process of this machine, for the tools that measure one."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowedge.cluster.process import VARIABLE, process_secret
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.device.process import module_command

_START_S = 120.0
_STOP_S = 30.0
_LISTENING = re.compile(r"listening on (\S+:\d+)(?=[\s\S]*^models: )", re.MULTILINE)


@dataclass(frozen=True)
class StartedGateway:
    """A gateway that listens, and whose pipelines are open.

    Attributes:
        folder: where the gateway and the agents that it started keep their state and their logs.
    """

    address: str
    pid: int
    folder: Path


@contextmanager
def started_gateway(*options: str) -> Iterator[StartedGateway]:
    """Yield `flowedge serve` with these options, which ends afterwards.

    Raises:
        DeviceError: when it ends at its start.
        DeadlineError: when it does not listen in time.
    """
    command = [*module_command("flowedge.cli.main"), "serve", *options]
    command += ["--listen", "127.0.0.1:0", "--config", os.devnull, "--exit-with-parent"]
    with tempfile.TemporaryDirectory(prefix="flowedge-measured-") as folder:
        log = Path(folder) / "gateway.log"
        own = {"FLOWEDGE_STATE_DIR": folder, "TMPDIR": folder, VARIABLE: process_secret()}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, "PYTHONUNBUFFERED": "1"},
            )
        try:
            yield StartedGateway(_address_in(log, process), process.pid, Path(folder))
        finally:
            process.terminate()
            process.communicate(timeout=_STOP_S)


def _address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        text = log.read_text(encoding="utf-8")
        found = _LISTENING.search(text)
        if found:
            return found.group(1)
        if ended:
            raise DeviceError("gateway", f"it ended at its start: {text.strip()[-500:]}")
        time.sleep(0.05)
    raise DeadlineError(f"the gateway did not listen within {_START_S:g} s")
