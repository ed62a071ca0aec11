"""A cluster, its CA's service and its members, for tests."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import CertificateRole, Roles
from flowedge.cluster.certificates import key_pem, new_key, read_certificate, request_for
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.process import Security
from flowedge.cluster.revocation import read_list
from tests.support.processes import AgentProcess, FlowEdgeProcess, running

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

    def token(self, *roles: CertificateRole, name: str = "", made: datetime.datetime | None = None) -> str:
        """A join token for 15 minutes, of an agent if no role is given."""
        granted, ttl = frozenset(roles or [CertificateRole.AGENT]), 15 * MINUTE
        made_at = made or now()
        return self.authority.new_token(granted, ttl, [self.address], now=made_at, name=name).encode()

    def member(
        self, name: str, role: CertificateRole | Roles, issued: datetime.datetime | None = None
    ) -> Path:
        """The state directory of a new member, whose certificate was issued then."""
        when = issued or now()
        key = new_key()
        roles = frozenset({role}) if isinstance(role, CertificateRole) else role
        secret = self.authority.new_token(roles, MINUTE, [self.address], now=when).secret
        signed = self.authority.join(secret, name, request_for(key), when)
        ca = self.authority.certificate
        info = ClusterInfo("home", (self.address,), self.port + 1)
        credentials = Credentials(key_pem(key), read_certificate(signed.certificate), ca, info)
        CredentialStore.create(self.directory / name, credentials, read_list(signed.revocation_list, ca))
        return self.directory / name

    def security(
        self, name: str, role: CertificateRole | Roles, issued: datetime.datetime | None = None
    ) -> Security:
        """The credentials of a new member."""
        return Security(CredentialStore.open(self.member(name, role, issued)))


@contextmanager
def enrolment_service(cluster: Cluster) -> Iterator[FlowEdgeProcess]:
    """`flowedge cluster serve`."""
    where = ["--dir", str(cluster.ca), "--host", "127.0.0.1"]
    service = FlowEdgeProcess("cluster", "serve", *where, "--exit-with-parent")
    with running(service):
        assert service.address == cluster.address
        yield service


@contextmanager
def members(
    states: Sequence[Path], *, logs_grpc: bool = False, **more: Mapping[str, Any]
) -> Iterator[list[AgentProcess]]:
    """Agents on loopback, each with the credentials of a state directory.

    Args:
        logs_grpc: whether gRPC's own library logs, which is told before it is imported.
        more: sections of settings.
    """
    settings = {"security": {"refresh_s": 0.3}, "metrics": {"enabled": False}, **more}
    made = [
        AgentProcess(
            "",
            "--host",
            "127.0.0.1",
            "--no-advertise",
            settings=settings,
            environment={
                "FLOWEDGE_STATE_DIR": str(state),
                **({"GRPC_VERBOSITY": "INFO"} if logs_grpc else {}),
            },
            fresh=logs_grpc,
        )
        for state in states
    ]
    with running(*made):
        yield made
