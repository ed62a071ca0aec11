"""Agents with a cache of their own and nothing else on their disks, as processes that can be killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc

from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc

START_S = 90.0
_LISTENING = re.compile(r"listening on (\S+:\d+)")


class EmptyDevice:
    """One agent; it uses no directory of this machine but its cache.

    Attributes:
        address: the same after every start; log: of all starts.
    """

    def __init__(self, name: str, root: Path, peers: Sequence[str] = ()) -> None:
        self.name, self.cache, self.log = name, root / name, root / f"{name}.log"
        self.address = ""
        self._config = root / f"{name}.toml"
        self.ask(peers)
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, peers: Sequence[str]) -> None:
        """From the next start on it asks these agents for weights."""
        listed = ", ".join(f'"{peer}"' for peer in peers)
        self._config.write_text(f"[weights]\ndirectories = false\npeers = [{listed}]\n", encoding="utf-8")

    def launch(self) -> None:
        """Start it; see `wait`."""
        port = self.address.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "flowedge.cli.main", "agent", "--name", self.name, "--port", port]
        command += ["--no-advertise", "--config", str(self._config), "--cache-dir", str(self.cache)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--exit-with-parent"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            )
        self._starts = len(_LISTENING.findall(self.text())) + 1

    def wait(self) -> None:
        """Until it listens."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while len(found := _LISTENING.findall(self.text())) < self._starts:
            assert self._process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        self.address = found[-1]

    def text(self) -> str:
        """What it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        """By SIGKILL."""
        self._end(kill=True)

    def stop(self) -> None:
        """As systemd does."""
        self._end(kill=False)

    def catalogue(self) -> pb.CatalogueReply:
        """What it has, and what went over its links."""
        with grpc.insecure_channel(self.address) as channel:
            reply: pb.CatalogueReply = rpc.WeightsStub(channel).Catalogue(pb.CatalogueRequest(), timeout=10)
        return reply

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        (process.kill if kill else process.terminate)()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
            raise AssertionError(f"{self.name} did not stop when told to: {self.text()}") from None
        finally:
            if process.stdin is not None:
                process.stdin.close()


def start_all(devices: Sequence[EmptyDevice]) -> None:
    """All at once."""
    for device in devices:
        device.launch()
    for device in devices:
        device.wait()
