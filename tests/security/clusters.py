"""A cluster with its CA's service and agents as real processes, for tests; none is left behind."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flowedge.security.authority.authority import Authority
from flowedge.security.credentials.certificate_role import CertificateRole
from flowedge.security.credentials.certificates import key_pem, new_key, read_certificate, request_for
from flowedge.security.credentials.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.security.credentials.revocation import read_list
from flowedge.security.process import Security

DEADLINE_S = 60.0
OLD = datetime.timedelta(days=200)  # the cluster is, so that members can have certificates that are
MINUTE = datetime.timedelta(minutes=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


@dataclass
class Cluster:
    """A CA in a directory, its service's port, and a directory for each member."""

    directory: Path
    port: int
    authority: Authority = field(init=False)

    def __post_init__(self) -> None:
        self.authority = Authority.create(
            self.directory / "ca", "home", now=now() - OLD, addresses=[self.address], port=self.port
        )

    @property
    def ca(self) -> Path:
        return self.directory / "ca"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def token(
        self, role: CertificateRole = CertificateRole.AGENT, *, made: datetime.datetime | None = None
    ) -> str:
        """A join token for 15 minutes."""
        ttl = 15 * MINUTE
        return self.authority.new_token(role, ttl, [self.address], now=made or now()).encode()

    def member(self, name: str, role: CertificateRole, issued: datetime.datetime | None = None) -> Path:
        """The state directory of a new member, whose certificate was issued then."""
        when = issued or now()
        key = new_key()
        secret = self.authority.new_token(role, MINUTE, [self.address], now=when).secret
        signed = self.authority.join(secret, name, request_for(key), when)
        ca = self.authority.certificate
        info = ClusterInfo("home", (self.address,), self.port + 1)
        credentials = Credentials(key_pem(key), read_certificate(signed.certificate), ca, info)
        CredentialStore.create(self.directory / name, credentials, read_list(signed.revocation_list, ca))
        return self.directory / name

    def security(self, name: str, role: CertificateRole, issued: datetime.datetime | None = None) -> Security:
        """What a new member shows and asks of others."""
        return Security(CredentialStore.open(self.member(name, role, issued)))


class Process:
    """A process whose output is kept; `address` is where it says that it listens."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flowedge.cli.main", *arguments, "--exit-with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
        )
        threading.Thread(target=self._collect, daemon=True).start()

    @property
    def address(self) -> str:
        return self.line("listening on ").rsplit("listening on ", 1)[1].strip()

    def line(self, *texts: str, after: int = 0) -> str:
        """The first line with all these texts, from number `after` on; it is waited for."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for line in self.lines[after:]:
                if all(text in line for text in texts):
                    return line
            assert self.process.poll() is None, f"it ended: {self.lines}"
            assert time.monotonic() < deadline, f"no line with {texts} in {self.lines}"
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(15)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self.lines.append(line.rstrip())
        except ValueError:  # it has been closed
            return


@contextmanager
def enrolment_service(cluster: Cluster) -> Iterator[Process]:
    """`flowedge cluster serve`."""
    service = Process(["cluster", "serve", "--dir", str(cluster.ca), "--host", "127.0.0.1"], {})
    try:
        assert service.address == cluster.address
        yield service
    finally:
        service.stop()


@contextmanager
def agents(states: Sequence[Path], *options: str) -> Iterator[list[Process]]:
    """`flowedge agent` on loopback for each state directory, all started at once."""
    running: list[Process] = []
    try:
        for state in states:
            arguments = ["agent", "--host", "127.0.0.1", "--config", os.devnull, *options]
            environment = {
                "FLOWEDGE_STATE_DIR": str(state),
                "FLOWEDGE_SECURITY__REFRESH_S": "0.3",
                "FLOWEDGE_METRICS__ENABLED": "false",
            }
            running.append(Process(arguments, environment))
        for agent in running:
            assert agent.address
        yield running
    finally:
        for agent in running:
            agent.stop()


def free_ports() -> int:
    """A port that is free, and the next one is as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
