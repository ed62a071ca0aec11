"""Servers of llama.cpp's RPC backend on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType

from flowedge.core.errors import DeadlineError, DeviceError
from testbed.tools.beside_llamacpp.installation import LlamaCpp

LOOPBACK = "127.0.0.1"
START_S, STOP_S = 30.0, 5.0
_POLL_S = 0.05


class RpcServers:
    """`count` servers of one thread each, which end when the context is left.

    Attributes:
        addresses, processes: host:port and process of each server, while the context is open.
    """

    def __init__(self, llamacpp: LlamaCpp, count: int) -> None:
        self._llamacpp = llamacpp
        self._count = count
        self.processes: list[subprocess.Popen[bytes]] = []
        self.addresses: tuple[str, ...] = ()

    def __enter__(self) -> RpcServers:
        """Start the servers.

        Raises:
            DeviceError: when a server ends instead.
            DeadlineError: when a server does not listen in time.
        """
        try:
            ports = [free_port() for _ in range(self._count)]
            for port in ports:
                command = [str(self._llamacpp.rpc_server), "-H", LOOPBACK, "-p", str(port), "-t", "1"]
                self.processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
            deadline = time.monotonic() + START_S
            for port, process in zip(ports, self.processes, strict=True):
                _await_listening(port, process, deadline)
        except BaseException:
            self._stop()
            raise
        self.addresses = tuple(f"{LOOPBACK}:{port}" for port in ports)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        end_processes(self.processes)
        self.processes, self.addresses = [], ()


def end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Have processes end, by force if they take too long."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


def _await_listening(port: int, process: subprocess.Popen[bytes], deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DeviceError(f"{LOOPBACK}:{port}", f"the RPC server ended with status {process.returncode}")
        with socket.socket() as tried:
            tried.settimeout(_POLL_S)
            if tried.connect_ex((LOOPBACK, port)) == 0:
                return
        time.sleep(_POLL_S)
    raise DeadlineError(f"the RPC server at {LOOPBACK}:{port} did not listen within {START_S:g} s")
