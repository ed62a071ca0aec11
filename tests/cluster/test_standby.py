"""In a cluster only a member that may lead pipelines stands by for a draft node."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.client.assembly import release
from flowedge.cluster.certificate_role import CertificateRole
from tests.cluster.clusters import Cluster, members
from tests.support.seams import set_own_security
from tests.support.stage_config import assembled
from tests.support.waiting import await_that

pytestmark = pytest.mark.slow
LONG = {"max_new_tokens": 200, "ignore_eos": True}


@pytest.mark.proof
def test_an_answer_goes_on_at_a_standby_with_the_certificate_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 1)  # its service is off
    roles = {"d0": CertificateRole.DRAFT_NODE, "v1": CertificateRole.AGENT, "d1": CertificateRole.DRAFT_NODE}
    states = [cluster.member(name, role) for name, role in roles.items()]
    boss = cluster.security("boss", CertificateRole.ADMIN)
    set_own_security(monkeypatch, boss)
    with members(states) as (draft_node, stage, standby):
        assembled([draft_node, stage], standby=stage.address)
        assert draft_node.line("the pipeline has no standby", "certificate is for v1 (agent)")
        release([draft_node.address], pipeline="")
        assembled([draft_node, stage], standby=standby.address)
        with (
            Client(draft_node.address, security=boss) as client,
            Client(standby.address, security=boss) as at,
        ):
            await_that(lambda: bool(at.describe().stands_by_for), "it does not stand by", 30.0)
            whole = client.generate("What is a river?", **LONG).result()  # type: ignore[arg-type]
            answer, lost = client.generate("What is a river?", **LONG), False  # type: ignore[arg-type]
            for _ in answer:
                if not lost and len(answer.token_ids) > 20:
                    lost = True
                    draft_node.kill()
            assert lost
            assert answer.token_ids == whole.token_ids
