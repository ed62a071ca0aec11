"""Joining a cluster, renewing a certificate and fetching the revocation list, at the enrolment service."""

from __future__ import annotations

import datetime
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from cryptography import x509

from flowedge.cluster import certificates
from flowedge.cluster.certificate_role import text_of
from flowedge.cluster.certificates import utc_now
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.identities import Identities, kind_of, store_identity
from flowedge.cluster.join_token import JoinToken
from flowedge.cluster.member import (
    Member,
    authority_name,
    check_name,
    cluster_id,
    fingerprint,
    holder_of,
)
from flowedge.cluster.revocation import FRESH, OldListError, read_list
from flowedge.core.errors import AccessError, BadRequestError, DeviceLostError, FlowEdgeError
from flowedge.network.address import join_address, split_address
from flowedge.network.connection_failure import why_of_socket
from flowedge.network.grpc_status import from_status
from flowedge.v1 import cluster_pb2 as pb
from flowedge.v1 import cluster_pb2_grpc

ANSWER_S = 10.0  # deadline of each call
LIST_AGE = datetime.timedelta(minutes=5)  # a command fetches the revocation list when its own is older
REFRESH_S = 2.0  # a command waits at most this long for the revocation list
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]

T = TypeVar("T")

_log = logging.getLogger(__name__)


def join(
    token: JoinToken, name: str, default_name: str, state: Path, *, replace: bool = False
) -> CredentialStore:
    """Make a key, have it signed, and store the new identity in a state directory.

    name: of the new member; if empty, the token's name, or else `default_name`.
    replace: whether identities are replaced that cannot stay beside the new one.

    Raises:
        BadRequestError: when there are such identities, and `replace` is False.
        AccessError: when the service refuses, or is not the service that made the token.
        DeviceLostError: when the service answers at none of its addresses.
    """
    if name:
        check_name(name)
    if not replace:
        _check_no_other_identity(state, Member(token.cluster, token.roles, name))
    return _first(token.addresses, lambda address: _join_at(address, token, name, default_name, state))


def renew(store: CredentialStore) -> None:
    """Have a new key signed with the present certificate as proof, and use it. Errors as `join`."""
    own = store.credentials
    key = certificates.new_key()
    request = pb.RenewRequest(signing_request=certificates.request_for(key))
    tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)

    def ask(address: str) -> pb.Membership:
        host, _ = split_address(address)
        at = join_address(host, own.cluster.renewal_port)
        with _channel(at, tls, own.cluster_id) as channel:
            reply: pb.Membership = _call(at, cluster_pb2_grpc.RenewalStub(channel).Renew, request)
            return reply

    signed = _first(own.cluster.addresses, ask)
    certificate = certificates.read_certificate(signed.certificate)
    holder = certificates.verify(certificate, own.authority, utc_now())
    if certificate.public_key() != key.public_key() or holder.member != own.holder.member:
        raise AccessError(
            f"the enrolment service sent a certificate for {holder.member} that was not asked for"
        )
    store.replace_certificate(certificates.key_pem(key), certificate)
    store.replace_revoked(signed.revocation_list)


def refresh_revoked(store: CredentialStore) -> bool:
    """Fetch the revocation list; return whether other certificates are on it. Errors as `join`."""
    own = store.credentials
    tls = grpc.ssl_channel_credentials(own.authority_pem)

    def ask(address: str) -> bytes:
        with _channel(address, tls, own.cluster_id) as channel:
            stub = cluster_pb2_grpc.EnrolmentStub(channel)
            request = pb.RevokedRequest(number=store.revoked.number)
            return bytes(_call(address, stub.Revoked, request).revocation_list)

    return store.replace_revoked(_first(own.cluster.addresses, ask))


def refresh_credentials(
    store: CredentialStore, now: datetime.datetime, list_age: datetime.timedelta = LIST_AGE
) -> None:
    """Fetch the revocation list and renew the certificate if they are old. Waits REFRESH_S at most.

    list_age: the list is fetched if it is older.
    """
    due = certificates.renewal_time(store.credentials.holder)
    if now < min(store.revoked.next_update - FRESH + list_age, due):
        return

    def refresh() -> None:
        try:
            refresh_revoked(store)
            if due <= now < store.credentials.holder.not_after:
                renew(store)
        except OldListError as error:
            _log.warning("%s", error)
        except FlowEdgeError as error:
            level = logging.WARNING if now >= store.revoked.next_update else logging.INFO
            _log.log(level, "using the revocation list of %s: %s", store.revoked.next_update - FRESH, error)

    thread = threading.Thread(target=refresh, name="flowedge-credentials", daemon=True)
    thread.start()
    thread.join(REFRESH_S)


def _check_no_other_identity(state: Path, member: Member) -> None:
    """Refuse to join where another identity would have to be replaced."""
    present = Identities.open(state)
    for damaged in present.damaged_of(kind_of(member.roles)):
        raise BadRequestError(
            f"{state} holds an identity that cannot be used: {damaged.reason}; --replace replaces it, and "
            "--dir names another directory"
        )
    for store in present.replaced_by(member):
        raise BadRequestError(
            f"{state} already holds the identity of {store.member} in cluster {store.member.cluster}; "
            "--replace replaces it, and --dir names another directory"
        )


def _join_at(address: str, token: JoinToken, name: str, default_name: str, state: Path) -> CredentialStore:
    authority = _fetch_authority(address, token.fingerprint)
    key = certificates.new_key()
    request = pb.JoinRequest(
        secret=token.secret,
        name=name,
        default_name=default_name,
        signing_request=certificates.request_for(key),
    )
    tls = grpc.ssl_channel_credentials(certificates.pem_of(authority))
    with _channel(address, tls, cluster_id(authority)) as channel:
        signed = _call(address, cluster_pb2_grpc.EnrolmentStub(channel).Join, request)
    certificate = certificates.read_certificate(signed.certificate)
    member = certificates.verify(certificate, authority, utc_now()).member
    if certificate.public_key() != key.public_key():
        raise AccessError(f"{address} signed another key than the one that was made here")
    if member.roles != token.roles:
        raise AccessError(
            f"{address} signed a certificate for {member}, and the token is for {text_of(token.roles)}"
        )
    others = [other for other in token.addresses if other != address]
    cluster = ClusterInfo(signed.cluster_name, (address, *others), signed.renewal_port)
    credentials = Credentials(certificates.key_pem(key), certificate, authority, cluster)
    return store_identity(state, credentials, read_list(signed.revocation_list, authority))


def _fetch_authority(address: str, expected: str) -> x509.Certificate:
    """The CA's certificate, from a service that is not trusted yet: only the expected fingerprint is."""
    host, port = split_address(address)
    try:
        shown = ssl.get_server_certificate((host, port), timeout=ANSWER_S)
    except ssl.SSLError as error:
        raise AccessError(f"{address} is not an enrolment service: {error.reason or error}") from error
    except OSError as error:
        raise DeviceLostError(address, f"the connection failed: {why_of_socket(error)}") from error
    server = certificates.read_certificate(shown.encode())
    holder = holder_of(server)
    certificates.check_time(holder, utc_now())
    with _channel(address, grpc.ssl_channel_credentials(shown.encode()), holder.member.cluster) as channel:
        reply = _call(address, cluster_pb2_grpc.EnrolmentStub(channel).Authority, pb.AuthorityRequest())
    authority = certificates.read_certificate(reply.certificate)
    found = fingerprint(authority)
    if found != expected:
        raise _impostor(address, f"its CA has the fingerprint {found}, and the token is for {expected}")
    try:
        certificates.verify(server, authority, utc_now())
    except AccessError as error:
        raise _impostor(address, str(error)) from error
    return authority


def _impostor(address: str, reason: str) -> AccessError:
    _log.warning("refused to join through %s: %s", address, reason)
    return AccessError(f"{address} is not the service that made the token: {reason}; nothing was sent to it")


def _channel(address: str, tls: grpc.ChannelCredentials, cluster: str) -> grpc.Channel:
    name = ("grpc.ssl_target_name_override", authority_name(cluster))
    return grpc.secure_channel(address, tls, options=[*_OPTIONS, name])


def _call(address: str, method: Any, request: Any) -> Any:
    try:
        return method(request, timeout=ANSWER_S)
    except grpc.RpcError as error:
        raise from_status(error, address) from error


def _first(addresses: Sequence[str], ask: Callable[[str], T]) -> T:
    """The answer of the first address that answers. A refusal is an answer, and is raised."""
    failures: list[str] = []
    for address in addresses:
        try:
            return ask(address)
        except DeviceLostError as error:
            failures.append(str(error))
    reason = "; ".join(failures) or "none of its addresses is known"
    raise DeviceLostError(
        "the cluster's CA", f"{reason}. See that `flowedge cluster serve` runs there and its ports are open"
    )
