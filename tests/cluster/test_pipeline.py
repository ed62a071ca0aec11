"""The output of a pipeline of cluster members is the plain model's."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.cluster.certificate_role import CertificateRole
from tests.cluster.clusters import Cluster, members
from tests.support.seams import set_own_security


@pytest.fixture
def own_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_own_security(monkeypatch, None)


@pytest.mark.slow
def test_output_over_mutual_tls_is_the_plain_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own_process_is_left_alone: None
) -> None:
    cluster = Cluster(tmp_path, 1)  # its service is off, which a cluster has to live with
    states = [
        cluster.member("d0", CertificateRole.DRAFT_NODE),
        *(cluster.member(n, CertificateRole.AGENT) for n in ("v1", "v2")),
    ]
    client = cluster.member("laptop", CertificateRole.CLIENT)
    with members(states) as running:
        peers = ",".join(agent.address for agent in running)
        options = ["--temperature", "0.7", "--seed", "5", "--max-new-tokens", "12", "--check"]
        prompt = [
            "--model",
            "bundled",
            "--prompt",
            "Tell me a story about a lamp.",
            "--cluster-dir",
            str(client),
        ]
        assert run(["generate", "--model", "bundled", "--peers", peers, *prompt, *options]) == 0
        assert "check: the output is identical to the plain model's" in capsys.readouterr().err
        assert run(["release", running[0].address, "--cluster-dir", str(client)]) == 0
        both = f"{running[0].address}+,{running[1].address}"  # the draft node is a stage as well
        assert run(["generate", "--model", "bundled", "--peers", both, *prompt, *options]) == 0
        assert "check: the output is identical to the plain model's" in capsys.readouterr().err
        assert not any("refused" in line or "Handshake failed" in line for a in running for line in a.lines)
