"""gRPC servers: in mutual TLS with credentials, where the caller of every RPC is checked, or in plaintext."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from flowedge.core.errors import DeviceError
from flowedge.net.calls.admission import CallAdmission
from flowedge.net.calls.receiving import SERVER_OPTIONS
from flowedge.security.credentials.credentials import CredentialStore
from flowedge.security.process import Security
from flowedge.security.tls.guard import Guard


def guard_of(security: Security) -> Guard | None:
    """Return the guard of a device's servers; None in plaintext."""
    store = security.store
    return Guard(lambda: store.revoked) if store is not None else None


def new_server(options: Sequence[tuple[str, Any]], admission: CallAdmission) -> grpc.aio.Server:
    """Make a server of whose calls every one goes through the admission."""
    return grpc.aio.server(options=[*options, *SERVER_OPTIONS], interceptors=(admission,))


def add_port(server: grpc.aio.Server, address: str, security: Security, device: str) -> int:
    """Let a server of a device listen at an address; return the port. Errors as in `listen`."""
    store = security.store
    if store is None:
        return listen(server.add_insecure_port, address, device=device)
    credentials = renewed_credentials(lambda: _configuration(store), require_client=True)
    return listen(server.add_secure_port, address, credentials, device=device)


def listen(add: Callable[..., int], address: str, *credentials: grpc.ServerCredentials, device: str) -> int:
    """Call a server's method that adds a port; return the port.

    Raises:
        DeviceError: when the server cannot listen there; it names `device`.
    """
    try:
        port = int(add(address, *credentials))
    except RuntimeError as error:
        raise DeviceError(device, f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise DeviceError(device, f"cannot listen on {address}")
    return port


def renewed_credentials(
    configuration: Callable[[], grpc.ServerCertificateConfiguration], *, require_client: bool
) -> grpc.ServerCredentials:
    """Server credentials that show the latest certificate to each new connection."""
    return grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=require_client
    )


def _configuration(store: CredentialStore) -> grpc.ServerCertificateConfiguration:
    own = store.credentials
    return grpc.ssl_server_certificate_configuration(
        [(own.key_pem, own.certificate_pem)], root_certificates=own.authority_pem
    )
