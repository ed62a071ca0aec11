"""The revocation list: an X.509 CRL that the cluster's CA signs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flowedge.cluster.member import CertificateHolder
from flowedge.core.errors import AccessError

FRESH = datetime.timedelta(hours=24)  # time after which a list is out of date


@dataclass(frozen=True)
class RevocationList:
    """A verified revocation list: the serial numbers of revoked certificates.

    Attributes:
        number: increases with every change.
        next_update: when it is out of date, UTC.
    """

    number: int
    serials: frozenset[int]
    next_update: datetime.datetime
    pem: bytes

    def check(self, holder: CertificateHolder) -> None:
        """Raise AccessError if a certificate is revoked."""
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
    """Make a signed list, PEM.

    revoked: serial numbers, each with the time of revocation.
    """
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
    """Read a list (PEM), which this cluster's CA must have signed."""
    key = authority.public_key()
    try:
        parsed = x509.load_pem_x509_crl(pem)
        number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        signed = isinstance(key, ec.EllipticCurvePublicKey) and parsed.is_signature_valid(key)
        next_update = parsed.next_update_utc
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise AccessError(f"the revocation list cannot be read: {error}") from error
    if not signed or parsed.issuer != authority.subject or next_update is None:
        raise AccessError("the revocation list was not signed by this cluster's CA")
    return RevocationList(number, frozenset(entry.serial_number for entry in parsed), next_update, pem)


def newer(known: RevocationList, received: RevocationList) -> RevocationList:
    """Return the received list; raise AccessError if it is older than the known one, as in a replay."""
    if received.number < known.number:
        raise AccessError(
            f"the received revocation list has number {received.number}, which is older than the known list, "
            f"number {known.number}"
        )
    return received
