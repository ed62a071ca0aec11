"""What a running agent does with what the CA's service sends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.process import Security
from flowedge.cluster.tls import credential_renewal
from flowedge.cluster.tls.credential_renewal import renewing_credentials
from flowedge.cluster.tls.guard import Guard
from flowedge.cluster.tls.renewable_server import RenewableServer
from flowedge.core.errors import AccessError, DeviceLostError
from tests.cluster.clusters import MINUTE, Cluster, now
from tests.support.loops import in_loop

WAIT_S = 10


class CallOf:
    """The context of a call that a member has made."""

    def __init__(self, caller: CredentialStore) -> None:
        self._certificate = caller.credentials.certificate_pem

    def auth_context(self) -> Mapping[str, Any]:
        return {"x509_pem_cert": (self._certificate,)}

    def peer(self) -> str:
        return "ipv4:10.0.0.9:40000"

    def done(self) -> bool:
        return False


async def end_of_call(guard: Guard, caller: CredentialStore, begun: asyncio.Event) -> None:
    context = cast("grpc.aio.ServicerContext[Any, Any]", CallOf(caller))
    async with guard.ends_when_revoked("/flowedge.v1.Measure/Ping", context):
        begun.set()
        await asyncio.Event().wait()


@in_loop(120.0)
async def test_a_list_that_comes_with_a_renewal_ends_the_calls_of_revoked_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 1)  # its service cannot be reached
    own = CredentialStore.open(cluster.member("kitchen", CertificateRole.AGENT))
    thief = CredentialStore.open(cluster.member("thief", CertificateRole.AGENT))

    def cannot_be_reached(_: CredentialStore) -> bool:
        raise DeviceLostError("the cluster's CA", "it is off")

    def renew(store: CredentialStore) -> None:
        cluster.authority.revoke("thief", now())
        store.replace_revoked(cluster.authority.revocation_list(now()))

    monkeypatch.setattr(credential_renewal, "refresh_revoked", cannot_be_reached)
    monkeypatch.setattr(credential_renewal, "renew", renew)
    monkeypatch.setattr(credential_renewal, "renewal_time", lambda *_: now() - MINUTE)
    guard, begun = Guard(lambda: own.revoked), asyncio.Event()
    call = asyncio.create_task(end_of_call(guard, thief, begun))
    await begun.wait()
    server = cast(RenewableServer, None)  # the certificate stays, so there is nothing to show
    async with renewing_credentials(Security(own), guard, server, 60.0):
        with pytest.raises(AccessError, match=r"thief \(agent\).*has been revoked"):
            await asyncio.wait_for(call, WAIT_S)
