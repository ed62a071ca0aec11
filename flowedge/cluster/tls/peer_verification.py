"""Verifying which device is at an address, before anything is sent to it.

gRPC's Python API does not show a caller the certificate of its peer. So the caller first completes a TLS
handshake of its own and verifies the certificate. Then gRPC connects and demands this very certificate, by
the DNS name that no other one has.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass

from cryptography import x509

from flowedge.cluster.certificate_role import DEVICES
from flowedge.cluster.certificates import utc_now, verify
from flowedge.cluster.credentials import Credentials, CredentialStore
from flowedge.cluster.member import CertificateHolder
from flowedge.core.errors import AccessError, DeadlineError, DeviceLostError, PeerRefusedError
from flowedge.network.address import split_address
from flowedge.network.connection_failure import why_of_socket
from flowedge.network.deadline import within
from flowedge.network.log_rate import LimitedLog

ANSWER_S = 5.0  # deadline of connection and handshake
_PAUSES_S = (0.1, 0.3, 0.6)  # before the next attempt, when the peer broke a handshake off

# Anybody on the network can announce any number of false agents, each of which is refused again and again.
_refusals = LimitedLog(logging.getLogger(__name__), "peer_refused", lines=60)


@dataclass(frozen=True)
class VerifiedPeer:
    """The holder of a verified certificate, and the own credentials to show to it."""

    holder: CertificateHolder
    credentials: Credentials


async def verify_peer(address: str, store: CredentialStore, name: str | None) -> VerifiedPeer:
    """Complete a handshake with the device at an address and verify its certificate.

    name: the device's name, if it is known.

    Raises:
        AccessError: when the certificate is not valid, is revoked, or names a client or another device.
        DeviceLostError: when the device does not answer.
    """
    credentials = store.credentials
    pauses = iter(_PAUSES_S)
    while True:
        try:
            shown = await _shake_hands(address, store)
        except (OSError, DeadlineError) as error:
            pause = next(pauses, None)
            if pause is None or not _is_broken_off(error):
                raise _failed(address, error) from error
            await asyncio.sleep(pause)
        else:
            return _verify_certificate(address, shown, store, credentials, name)


async def _shake_hands(address: str, store: CredentialStore) -> bytes | None:
    """Return the certificate that the peer shows, DER."""
    host, port = split_address(address)
    opening = asyncio.open_connection(host, port, ssl=_context(store), server_hostname="")
    _, writer = await within(ANSWER_S, opening, "no answer")
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


def _is_broken_off(error: OSError | DeadlineError) -> bool:
    """Return whether the peer closed in the middle of the handshake.

    A device does so when it takes up a renewed certificate at that moment, or has too many connections.
    """
    return isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError)


def _failed(address: str, error: OSError | DeadlineError) -> AccessError | DeviceLostError:
    if isinstance(error, ssl.SSLError):
        return refuse_peer(address, _handshake_reason(error))
    reason = str(error) if isinstance(error, DeadlineError) else why_of_socket(error)
    return DeviceLostError(address, f"the connection failed: {reason}")


def _context(store: CredentialStore) -> ssl.SSLContext:
    """The settings of a handshake that accepts every certificate, since it is verified afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(store.member_file)
    return context


def _verify_certificate(
    address: str, shown: bytes | None, store: CredentialStore, credentials: Credentials, name: str | None
) -> VerifiedPeer:
    """shown: the peer's certificate, DER."""
    try:
        holder = shown_holder(shown, store, credentials)
        if holder.member.roles.isdisjoint(DEVICES):
            raise AccessError(f"its certificate is for {holder.member}, which is not a device that serves")
        if name is not None and holder.member.name != name:
            raise AccessError(f"it is {holder.member.name}, not {name}, which was expected there")
    except AccessError as error:
        raise refuse_peer(address, str(error)) from error
    return VerifiedPeer(holder, credentials)


def shown_holder(shown: bytes | None, store: CredentialStore, credentials: Credentials) -> CertificateHolder:
    """Return the holder of the certificate that a peer has shown in a handshake.

    Args:
        shown: the certificate, DER; None or empty for none.
        credentials: the store's credentials with which the handshake was made.

    Raises:
        AccessError: when the certificate is not of this cluster, not valid now, or revoked.
    """
    if not shown:
        raise AccessError("it showed no certificate")
    try:
        certificate = x509.load_der_x509_certificate(shown)
    except ValueError as error:
        raise AccessError(f"its certificate cannot be read: {error}") from error
    holder = verify(certificate, credentials.authority, utc_now())
    store.revoked.check(holder)
    return holder


def _handshake_reason(error: ssl.SSLError) -> str:
    if error.reason in (
        "WRONG_VERSION_NUMBER",
        "UNEXPECTED_EOF_WHILE_READING",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
    ):
        return "it does not speak TLS, so it has joined no cluster; let it join this one"
    return f"the TLS handshake failed: {error.reason or error}"


def refuse_peer(address: str, reason: str) -> AccessError:
    """Log that the peer at an address is not spoken to; return the error."""
    _refusals.add(f"refused to speak to {address}: {reason}", peer=address, reason=reason)
    return PeerRefusedError(f"refused to speak to {address}: {reason}")
