"""gRPC servers that ask every caller for a certificate, and plaintext ones where that is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from flowedge.security.credentials.credentials import CredentialStore
from flowedge.security.process import Security
from flowedge.security.tls.guard import Guard


def new_server(
    options: Sequence[tuple[str, Any]],
    security: Security,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> tuple[grpc.aio.Server, Guard | None]:
    """A server to add services to; with an identity, a guard stands before all of them.

    interceptors: between the guard and the services.
    """
    if security.store is None:
        return grpc.aio.server(options=options, interceptors=interceptors), None
    guard = Guard.of(security.store)
    return grpc.aio.server(options=options, interceptors=(guard, *interceptors)), guard


def add_port(server: grpc.aio.Server, address: str, security: Security) -> int:
    """Has a server listen; the port, or 0. RuntimeError when the address cannot be had."""
    if security.store is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, member_credentials(security.store)))


def member_credentials(store: CredentialStore) -> grpc.ServerCredentials:
    """Mutual TLS; each new connection is shown the latest certificate."""
    return renewed_credentials(lambda: _configuration(store), require_client=True)


def renewed_credentials(
    configuration: Callable[[], grpc.ServerCertificateConfiguration], *, require_client: bool
) -> grpc.ServerCredentials:
    """Credentials that are asked for anew at each handshake."""
    return grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=require_client
    )


def _configuration(store: CredentialStore) -> grpc.ServerCertificateConfiguration:
    identity = store.identity
    return grpc.ssl_server_certificate_configuration(
        [(identity.key_pem, identity.certificate_pem)], root_certificates=identity.authority_pem
    )
