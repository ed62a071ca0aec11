"""The gRPC server of a device: in mutual TLS with its credentials, or in plaintext."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import grpc

from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.process import METADATA_KEY, Security
from flowedge.cluster.tls.call_admission import AnyCaller, CallAdmission, CallerCheck
from flowedge.cluster.tls.guard import Guard
from flowedge.cluster.tls.renewable_server import RenewableServer, ServerIdentity
from flowedge.core.errors import AccessError
from flowedge.network.grpc_handlers import Context


class SecretCheck(AnyCaller):
    """The check of an agent that a command has started for itself."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def check(self, method: str, context: Context) -> None:  # noqa: ARG002
        """Raise AccessError if the call does not carry the secret."""
        shown = dict(context.invocation_metadata() or ()).get(METADATA_KEY, "")
        if not hmac.compare_digest(str(shown).encode(), self._secret):
            raise AccessError(
                "this agent was started by a command for itself and serves no other program; start an "
                "agent of your own: flowedge agent"
            )


def guard_of(security: Security) -> Guard | None:
    """Return the guard of a device's server; None in plaintext."""
    store = security.store
    return Guard(lambda: store.revoked) if store is not None else None


def check_of(security: Security, guard: Guard | None) -> CallerCheck | None:
    """Return the check of the callers of a device's server; None if everyone may call it."""
    return SecretCheck(security.secret) if guard is None and security.secret else guard


def new_server(
    options: Sequence[tuple[str, Any]], security: Security, guard: Guard | None, admission: CallAdmission
) -> RenewableServer:
    """Make the server of a device, in plaintext if the device has no credentials.

    Args:
        guard: see `guard_of`.
        admission: of calls that `check_of` lets pass.
    """
    store = security.store
    if store is None or guard is None:
        return RenewableServer(options, admission)
    return RenewableServer(options, admission, lambda: _identity(store), guard.connections)


def server_credentials(
    key_pem: bytes, certificate_pem: bytes, authority_pem: bytes, *, require_client: bool
) -> grpc.ServerCredentials:
    """Return credentials that never change (see RenewableServer)."""
    return grpc.ssl_server_credentials(
        [(key_pem, certificate_pem)], authority_pem, require_client_auth=require_client
    )


def _identity(store: CredentialStore) -> ServerIdentity:
    own = store.credentials
    credentials = server_credentials(own.key_pem, own.certificate_pem, own.authority_pem, require_client=True)
    return ServerIdentity(credentials, own.holder.not_after)
