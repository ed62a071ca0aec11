"""The revocation list: an X.509 CRL that the cluster's CA signs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flowedge.cluster.member import CertificateHolder
from flowedge.core.errors import AccessError

FRESH = datetime.timedelta(hours=24)  # time after which a list is out of date
_RESTORED = "the CA was restored from an older copy: run `flowedge cluster restore` on its machine"
_BLOCK = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----\n?", re.DOTALL)


class OldListError(AccessError):
    """The CA sent a revocation list that is older than the known one."""


@dataclass(frozen=True)
class RevocationList:
    """A verified revocation list, and the entries of former lists that it should have and has not.

    Attributes:
        number: increases with every change; the time of the change, in seconds since 1970.
        revoked: the serial numbers of revoked certificates, each with the time of its revocation, UTC.
        next_update: when the list is out of date, UTC.
        pem: the list and, behind it, the former lists that have its missing entries.
        missing: the serial numbers that only the former lists have.
    """

    number: int
    revoked: Mapping[int, datetime.datetime]
    next_update: datetime.datetime
    pem: bytes
    missing: frozenset[int] = frozenset()

    @cached_property
    def serials(self) -> frozenset[int]:
        return frozenset(self.revoked)

    @property
    def doubt(self) -> str:
        """Why the CA's last list cannot be whole, and what to do; "" if nothing is wrong."""
        if not self.missing:
            return ""
        serials = ", ".join(f"{serial:x}" for serial in sorted(self.missing))
        return (
            f"the CA's revocation list, number {self.number}, lacks certificates that were revoked before, "
            f"which stay refused here: serial {serials}; {_RESTORED}"
        )

    def check(self, holder: CertificateHolder) -> None:
        """Raise AccessError if a certificate is revoked."""
        if holder.serial in self.revoked:
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


def list_number(now: datetime.datetime, before: int = 0) -> int:
    """Return the number of a list that changes now: the time, so that a restored CA's next list is newest.

    before: the number of the list until now.
    """
    return max(before + 1, int(now.timestamp()))


def read_list(pem: bytes, authority: x509.Certificate) -> RevocationList:
    """Read a list (PEM), and former lists behind it, all of which this cluster's CA must have signed."""
    blocks = _BLOCK.findall(pem)
    latest = _read_block(blocks[0] if blocks else pem, authority)
    revoked = dict(latest.revoked)
    for block in blocks[1:]:
        revoked = {**_read_block(block, authority).revoked, **revoked}
    missing = frozenset(revoked) - latest.serials
    return RevocationList(latest.number, revoked, latest.next_update, pem, missing)


def newer(
    known: RevocationList,
    received: RevocationList,
    life: datetime.timedelta,
    now: datetime.datetime,
) -> RevocationList:
    """Return the received list, which still has every entry that the known list has and may not lose.

    The CA drops an entry when the certificate has expired for certain: a certificate's life after its
    revocation. A CA that was restored from a copy does not know what was revoked after the copy. What it
    lacks stays revoked here.

    life: of certificates in this cluster.

    Raises:
        OldListError: when the received list is older than the known one, as in a replay.
    """
    if received.number < known.number:
        raise OldListError(
            f"the received revocation list has number {received.number}, which is older than the known list, "
            f"number {known.number}. If the service is the cluster's own, {_RESTORED}"
        )
    missing = {
        serial: when
        for serial, when in known.revoked.items()
        if serial not in received.revoked and when + life > now
    }
    return received if not missing else _joined(received, known, missing)


def _joined(
    received: RevocationList, known: RevocationList, missing: Mapping[int, datetime.datetime]
) -> RevocationList:
    """Return the received list with the known entries that it lacks, and the signed lists that prove them."""
    pem, unproved = received.pem, set(missing)
    for block in _BLOCK.findall(known.pem):
        has = {entry.serial_number for entry in x509.load_pem_x509_crl(block)}
        if has & unproved:
            unproved -= has
            pem += block
    revoked = {**missing, **received.revoked}
    return RevocationList(received.number, revoked, received.next_update, pem, frozenset(missing))


def _read_block(pem: bytes, authority: x509.Certificate) -> RevocationList:
    key = authority.public_key()
    try:
        parsed = x509.load_pem_x509_crl(pem)
        number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        signed = isinstance(key, ec.EllipticCurvePublicKey) and parsed.is_signature_valid(key)
        next_update = parsed.next_update_utc
        revoked = {entry.serial_number: entry.revocation_date_utc for entry in parsed}
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise AccessError(f"the revocation list cannot be read: {error}") from error
    if not signed or parsed.issuer != authority.subject or next_update is None:
        raise AccessError("the revocation list was not signed by this cluster's CA")
    return RevocationList(number, revoked, next_update, pem)
