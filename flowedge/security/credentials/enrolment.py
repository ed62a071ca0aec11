"""What a member asks of its cluster's enrolment service: to join, a new certificate, the revocation list."""

from __future__ import annotations

import datetime
import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from flowedge.core.errors import AccessError, BadRequestError, DeviceLostError
from flowedge.net.address import join_address, split_address
from flowedge.net.grpc_status import from_status
from flowedge.security.credentials.certificates import (
    check_time,
    key_pem,
    new_key,
    read_certificate,
    request_for,
    verify,
)
from flowedge.security.credentials.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.security.credentials.member import authority_name, check_name, cluster_id, holder_of
from flowedge.security.credentials.revocation import read_list
from flowedge.security.credentials.token import JoinToken
from flowedge.v1 import cluster_pb2 as pb
from flowedge.v1 import cluster_pb2_grpc

ANSWER_S = 10.0  # the service has so long for each answer
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]

T = TypeVar("T")

_log = logging.getLogger(__name__)


def join(
    token: JoinToken, name: str, default_name: str, state: Path, *, replace: bool = False
) -> CredentialStore:
    """Makes a key, has it signed for the token's secret, and stores the identity.

    name: of the new member; when it is empty the token's, or else the default one.
    replace: an identity that is there already.
    Raises BadRequestError when there is one and it is to stay, AccessError when the service is not the one
    that the token is from, or refuses, DeviceLostError when none of its addresses answers.
    """
    if name:
        check_name(name)
    if CredentialStore.exists(state) and not replace:
        holder = CredentialStore.open(state).identity.holder
        raise BadRequestError(
            f"{state} holds the identity of {holder.member} in cluster {holder.member.cluster} already; "
            "--replace gives it up"
        )
    return _first(token.addresses, lambda address: _join_at(address, token, name, default_name, state))


def renew(store: CredentialStore) -> None:
    """Has a new key signed, shown with the present certificate, and takes it into use. Errors as `join`."""
    identity = store.identity
    key = new_key()
    request = pb.RenewRequest(signing_request=request_for(key))
    credentials = grpc.ssl_channel_credentials(
        identity.authority_pem, identity.key_pem, identity.certificate_pem
    )

    def ask(address: str) -> pb.Membership:
        host, _ = split_address(address)
        at = join_address(host, identity.cluster.renewal_port)
        with _channel(at, credentials, identity.cluster_id) as channel:
            reply: pb.Membership = _call(at, cluster_pb2_grpc.RenewalStub(channel).Renew, request)
            return reply

    signed = _first(identity.cluster.addresses, ask)
    certificate = read_certificate(signed.certificate)
    holder = verify(certificate, identity.authority, _now())
    if certificate.public_key() != key.public_key() or holder.member != identity.holder.member:
        raise AccessError(
            f"the enrolment service signed a certificate for {holder.member} that was not asked for"
        )
    store.renewed(key_pem(key), certificate)
    store.receive_revoked(signed.revocation_list)


def refresh_revoked(store: CredentialStore) -> bool:
    """Fetches the revocation list; whether it says something new. Errors as `join`."""
    identity = store.identity
    credentials = grpc.ssl_channel_credentials(identity.authority_pem)

    def ask(address: str) -> bytes:
        with _channel(address, credentials, identity.cluster_id) as channel:
            stub = cluster_pb2_grpc.EnrolmentStub(channel)
            return bytes(_call(address, stub.Revoked, pb.RevokedRequest()).revocation_list)

    return store.receive_revoked(_first(identity.cluster.addresses, ask))


def _join_at(address: str, token: JoinToken, name: str, default_name: str, state: Path) -> CredentialStore:
    authority = _fetch_authority(address, token.fingerprint)
    key = new_key()
    request = pb.JoinRequest(
        secret=token.secret, name=name, default_name=default_name, signing_request=request_for(key)
    )
    credentials = grpc.ssl_channel_credentials(authority.public_bytes(serialization.Encoding.PEM))
    with _channel(address, credentials, cluster_id(authority)) as channel:
        signed = _call(address, cluster_pb2_grpc.EnrolmentStub(channel).Join, request)
    certificate = read_certificate(signed.certificate)
    verify(certificate, authority, _now())
    if certificate.public_key() != key.public_key():
        raise AccessError(f"{address} signed another key than the one that was made here")
    others = [other for other in token.addresses if other != address]
    cluster = ClusterInfo(signed.cluster_name, (address, *others), signed.renewal_port)
    identity = Credentials(key_pem(key), certificate, authority, cluster)
    return CredentialStore.create(state, identity, read_list(signed.revocation_list, authority))


def _fetch_authority(address: str, fingerprint: str) -> x509.Certificate:
    """The CA's certificate, from a service that nobody vouches for; the fingerprint is what is trusted."""
    host, port = split_address(address)
    try:
        shown = ssl.get_server_certificate((host, port), timeout=ANSWER_S)
    except ssl.SSLError as error:
        raise AccessError(f"{address} is no enrolment service: {error.reason or error}") from error
    except OSError as error:
        raise DeviceLostError(address, f"the connection failed: {error}") from error
    server = read_certificate(shown.encode())
    holder = holder_of(server)
    check_time(holder, _now())
    with _channel(address, grpc.ssl_channel_credentials(shown.encode()), holder.member.cluster) as channel:
        reply = _call(address, cluster_pb2_grpc.EnrolmentStub(channel).Authority, pb.AuthorityRequest())
    authority = read_certificate(reply.certificate)
    found = hashlib.sha256(authority.public_bytes(serialization.Encoding.DER)).hexdigest()
    if found != fingerprint:
        raise _impostor(address, f"its CA has the fingerprint {found}, and the token is for {fingerprint}")
    try:
        verify(server, authority, _now())
    except AccessError as error:
        raise _impostor(address, str(error)) from error
    return authority


def _impostor(address: str, reason: str) -> AccessError:
    _log.warning("refused to join through %s: %s", address, reason)
    return AccessError(f"{address} is not the service that made the token: {reason}; nothing was sent to it")


def _channel(address: str, credentials: grpc.ChannelCredentials, cluster: str) -> grpc.Channel:
    name = ("grpc.ssl_target_name_override", authority_name(cluster))
    return grpc.secure_channel(address, credentials, options=[*_OPTIONS, name])


def _call(address: str, method: Any, request: Any) -> Any:
    try:
        return method(request, timeout=ANSWER_S)
    except grpc.RpcError as error:
        raise from_status(error, address) from error


def _first(addresses: Sequence[str], ask: Callable[[str], T]) -> T:
    """The answer of the first address at which there is one; a refusal is one, and is raised."""
    failures: list[str] = []
    for address in addresses:
        try:
            return ask(address)
        except DeviceLostError as error:
            failures.append(str(error))
    raise DeviceLostError("the cluster's CA", "; ".join(failures) or "no address of it is known")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
