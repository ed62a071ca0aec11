"""Joining a cluster by its token, and attacks on it: wrong tokens, proxies and false services."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.certificates import pem_of
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.join_token import JoinToken
from tests.cluster.clusters import Cluster, now
from tests.cluster.impostor import impostor, posing_as
from tests.support.processes import CLI, FlowEdgeProcess


def join(token: str, name: str, state: Path, *options: str) -> int:
    """`flowedge join` with the token in a file; its exit code."""
    state.parent.mkdir(parents=True, exist_ok=True)
    file = state.parent / f"{state.name}.token"
    file.write_text(token, encoding="ascii")
    return run(["join", "--token-file", str(file), "--name", name, "--dir", str(state), *options])


def lured(token: str, address: str) -> str:
    """The token with another address: someone on the way answers in place of the service."""
    parsed = JoinToken.decode(token)
    return JoinToken((address,), parsed.fingerprint, parsed.secret, parsed.roles).encode()


def test_a_device_joins_once_with_a_token(
    cluster: Cluster, service: FlowEdgeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = cluster.token(CertificateRole.DRAFT_NODE)
    assert join(token, "shelf", tmp_path / "shelf") == 0
    assert (
        f"shelf (draft-node) is a member of cluster home ({cluster.authority.id})" in capsys.readouterr().out
    )
    files = sorted((tmp_path / "shelf" / "identity").iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*files, files[0].parent))
    service.line("shelf (draft-node) joined from")

    assert join(token, "desk", tmp_path / "desk") == 1
    assert "used already" in capsys.readouterr().err
    service.line("refused flowedge.v1.Enrolment/Join from", "used already")
    assert not (tmp_path / "desk").exists()

    assert join(cluster.token(), "shelf2", tmp_path / "shelf") == 2
    assert "--replace replaces it" in capsys.readouterr().err
    assert join(cluster.token(), "shelf2", tmp_path / "shelf", "--replace") == 0
    assert CredentialStore.open(tmp_path / "shelf").credentials.holder.member.name == "shelf2"


def test_a_token_on_standard_input_is_in_no_list_of_processes(
    cluster: Cluster, service: FlowEdgeProcess, tmp_path: Path
) -> None:
    token = cluster.token()
    command = [*CLI, "join", "--name", "pipe", "--dir", str(tmp_path / "pipe")]
    joining = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown = (
        Path(f"/proc/{joining.pid}/cmdline").read_bytes() + Path(f"/proc/{joining.pid}/environ").read_bytes()
    )
    out, err = joining.communicate(token.encode(), timeout=60)
    assert joining.returncode == 0, err
    assert b"pipe (agent) is a member of cluster home" in out
    assert token.encode() not in shown
    assert err == b""


def test_a_token_among_the_arguments_is_warned_of(
    cluster: Cluster, service: FlowEdgeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["join", cluster.token(), "--name", "seen", "--dir", str(tmp_path / "seen")]) == 0
    assert "the token was in the list of processes" in capsys.readouterr().err
    both = ["join", "-", "--token-file", str(tmp_path / "missing")]
    assert run(both) == 2
    assert run(["join", "--token-file", str(tmp_path / "missing")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_the_command_that_makes_a_token_says_how_it_is_given(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cluster", "token", "--dir", str(cluster.ca)]) == 0
    out, err = capsys.readouterr()
    assert JoinToken.decode(out).secret
    assert "flowedge join -" in err
    assert out.strip() not in err


def test_an_expired_token_is_refused(
    cluster: Cluster, service: FlowEdgeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = now() - datetime.timedelta(hours=1)
    assert join(cluster.token(made=made), "late", tmp_path / "late") == 1
    assert "the join token expired on" in capsys.readouterr().err
    service.line("refused flowedge.v1.Enrolment/Join from", "the join token expired on")


def test_a_proxy_with_its_own_certificate_is_told_nothing(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The proxy may even pass on the real CA's certificate, which is public."""
    other = Cluster(tmp_path / "other", 1)
    key, certificate, _ = other.authority.service_credentials(now())
    token = cluster.token()
    for shown, reason in (
        (other.authority, "its CA has the fingerprint"),
        (cluster.authority, f"issued by cluster {other.authority.id}, not by {cluster.authority.id}"),
    ):
        caplog.clear()
        with impostor(key, certificate, pem_of(shown.certificate)) as (servicer, address):
            assert join(lured(token, address), "shelf", tmp_path / "lured") == 1
        assert servicer.heard == [], "the secret stays here"
        assert reason in capsys.readouterr().err
        assert f"refused to join through {address}" in caplog.text
    assert not (tmp_path / "lured").exists()


def test_a_member_cannot_pose_as_the_service(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent that was taken over has a certificate of the cluster, but not the service's name."""
    with posing_as(cluster.member("traitor", CertificateRole.AGENT)) as (servicer, address):
        assert join(lured(cluster.token(), address), "shelf", tmp_path / "lured") == 1
    assert servicer.heard == []


def test_the_commands_of_the_cas_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--dir", str(tmp_path / "ca")]
    assert run(["cluster", "init", "attic", *state, "--lifetime", "30d"]) == 0
    assert run(["cluster", "init", "attic", *state]) == 2
    assert "nothing was changed" in capsys.readouterr().err
    assert run(["cluster", "token", "--role", "client", "--ttl", "5m", "--address", "ca.lan", *state]) == 0
    token = JoinToken.decode(capsys.readouterr().out)
    assert token.addresses == ("ca.lan:7443",)
    assert run(["cluster", "token", "--role", "king", *state]) == 2
    assert run(["cluster", "revoke", "admin", *state]) == 0
    assert run(["cluster", "revoke", "admin", *state]) == 2
    capsys.readouterr()
    assert run(["cluster", "list", *state]) == 0
    assert "revoked" in capsys.readouterr().out
