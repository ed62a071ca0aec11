"""Finding out who is at an address, before anything is said to them.

gRPC's Python API shows a caller no certificate. So the caller first completes a TLS handshake of its own and
judges the certificate that it is shown; then it has gRPC connect and demand just that certificate, by the DNS
name that only it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import socket
import ssl
from dataclasses import dataclass

from cryptography import x509

from flowedge.core.errors import AccessError, DeviceLostError
from flowedge.core.log_fields import about
from flowedge.net.address import split_address
from flowedge.security.credentials.certificate_role import SERVING
from flowedge.security.credentials.certificates import verify
from flowedge.security.credentials.credentials import Credentials, CredentialStore
from flowedge.security.credentials.member import CertificateHolder

ANSWER_S = 5.0  # the other side has so long to connect and show its certificate

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedPeer:
    """Who is there, and the identity that is shown to them."""

    holder: CertificateHolder
    identity: Credentials


def introduce(address: str, store: CredentialStore, name: str | None) -> VerifiedPeer:
    """Blocks until it is known who is at an address; `name` is who it has to be, if that is known.

    Raises AccessError, which is logged, for anyone but a device of this cluster whose certificate is valid
    and not revoked; DeviceLostError when nobody answers.
    """
    identity = store.identity
    try:
        with socket.create_connection(split_address(address), ANSWER_S) as plain:
            plain.settimeout(ANSWER_S)
            with _context(store).wrap_socket(plain) as encrypted:
                shown = encrypted.getpeercert(binary_form=True)
                _leave(encrypted)
    except ssl.SSLError as error:
        raise _refused(address, _handshake_reason(error)) from error
    except OSError as error:
        raise DeviceLostError(address, f"the connection failed: {error}") from error
    return _judge(address, shown, store, identity, name)


async def introduce_async(address: str, store: CredentialStore, name: str | None) -> VerifiedPeer:
    """`introduce` for asyncio."""
    identity = store.identity
    host, port = split_address(address)
    try:
        opening = asyncio.open_connection(host, port, ssl=_context(store), server_hostname="")
        _, writer = await asyncio.wait_for(opening, ANSWER_S)
    except ssl.SSLError as error:
        raise _refused(address, _handshake_reason(error)) from error
    except (OSError, asyncio.TimeoutError) as error:
        late = isinstance(error, asyncio.TimeoutError)
        reason = f"no answer within {ANSWER_S:g} s" if late else str(error) or type(error).__name__
        raise DeviceLostError(address, f"the connection failed: {reason}") from error
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return _judge(address, shown, store, identity, name)


def _context(store: CredentialStore) -> ssl.SSLContext:
    """For one handshake, in which everything is accepted, to be judged afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(store.member_file)
    return context


def _leave(encrypted: ssl.SSLSocket) -> None:
    """Ends the connection; the other side is left to have read our part of the handshake."""
    with contextlib.suppress(OSError):
        encrypted.unwrap()


def _judge(
    address: str, shown: bytes | None, store: CredentialStore, identity: Credentials, name: str | None
) -> VerifiedPeer:
    now = datetime.datetime.now(datetime.timezone.utc)
    try:
        holder = judge(shown, store, identity, name, now)
    except AccessError as error:
        raise _refused(address, str(error)) from error
    return VerifiedPeer(holder, identity)


def judge(
    shown: bytes | None,
    store: CredentialStore,
    identity: Credentials,
    name: str | None,
    now: datetime.datetime,
) -> CertificateHolder:
    """Whether a certificate (DER) is that of a device of this cluster. AccessError says why it is not."""
    if not shown:
        raise AccessError("it showed no certificate")
    try:
        certificate = x509.load_der_x509_certificate(shown)
    except ValueError as error:
        raise AccessError(f"its certificate cannot be read: {error}") from error
    holder = verify(certificate, identity.authority, now)
    store.revoked.check(holder)
    if holder.member.role not in SERVING:
        raise AccessError(f"its certificate is for {holder.member}, which is no device that serves")
    if name is not None and holder.member.name != name:
        raise AccessError(f"it is {holder.member.name}, not {name}, which was said to be there")
    return holder


def _handshake_reason(error: ssl.SSLError) -> str:
    if error.reason in (
        "WRONG_VERSION_NUMBER",
        "UNEXPECTED_EOF_WHILE_READING",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
    ):
        return "it does not speak TLS, so it has joined no cluster; let it join this one"
    return f"it cannot be spoken to over TLS: {error.reason or error}"


def _refused(address: str, reason: str) -> AccessError:
    fields = about(event="peer_refused", peer=address, reason=reason)
    _log.warning("refused to speak to %s: %s", address, reason, extra=fields)
    return AccessError(f"refused to speak to {address}: {reason}")
