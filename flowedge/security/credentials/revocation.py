"""The list of certificates that are no longer to be trusted: an X.509 CRL that the cluster's CA signs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flowedge.core.errors import AccessError
from flowedge.security.credentials.member import CertificateHolder

FRESH = datetime.timedelta(hours=24)  # how long a list is believed to be the latest


@dataclass(frozen=True)
class RevocationList:
    """A list that has been verified.

    Attributes:
        number: grows with every change; next_update: when it becomes stale, UTC.
    """

    number: int
    serials: frozenset[int]
    next_update: datetime.datetime
    pem: bytes

    def check(self, holder: CertificateHolder) -> None:
        """AccessError when this certificate has been revoked."""
        if holder.serial in self.serials:
            raise AccessError(
                f"the certificate of {holder.member}, serial {holder.serial:x}, has been revoked"
            )


def sign_list(
    revoked: Iterable[tuple[int, datetime.datetime]],
    number: int,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> bytes:
    """The list as PEM; `revoked` has serial numbers and when each was revoked."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now)
        .next_update(now + FRESH)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for serial, when in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_list(pem: bytes, authority: x509.Certificate) -> RevocationList:
    """Verifies a list. AccessError when it is not one that this cluster's CA has signed."""
    key = authority.public_key()
    try:
        parsed = x509.load_pem_x509_crl(pem)
        number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        signed = isinstance(key, ec.EllipticCurvePublicKey) and parsed.is_signature_valid(key)
        next_update = parsed.next_update_utc
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise AccessError(f"the revocation list cannot be read: {error}") from error
    if not signed or parsed.issuer != authority.subject or next_update is None:
        raise AccessError("the revocation list was not signed by this cluster")
    return RevocationList(number, frozenset(entry.serial_number for entry in parsed), next_update, pem)


def newer(known: RevocationList, received: RevocationList) -> RevocationList:
    """The list to keep. AccessError when the received one is older: someone plays an old one back."""
    if received.number < known.number:
        raise AccessError(
            f"the revocation list that was received is number {received.number}, older than {known.number}"
        )
    return received
