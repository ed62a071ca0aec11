"""Making and checking certificates, without reading a file, at a time that the caller gives (see `utc_now`).

Keys are ECDSA P-256, since gRPC's TLS library does not accept Ed25519.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flowedge.cluster.member import CertificateHolder, Member, cluster_id, dns_names, holder_of
from flowedge.core.errors import AccessError

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
AUTHORITY_LIFE = datetime.timedelta(days=3650)
BACKDATED = datetime.timedelta(minutes=5)  # for devices whose clocks are a little behind
_MAX_REQUEST = 4096  # bytes of a signing request; those of this module have about 230
_MAX_REASON = 200  # characters of a library's message
RENEWED_AFTER = 2 / 3  # of the life of a certificate
RENEWAL_SPREAD = 0.1  # of its life, over which devices that joined at the same time renew


def new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """The key as unencrypted PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(pem: bytes) -> PrivateKey:
    """The ECDSA key in a PEM file."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise AccessError("the private key is not valid PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AccessError("the private key is not an ECDSA key")
    return key


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def read_certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise AccessError("a certificate is not valid PEM") from error


def new_authority(name: str, key: PrivateKey, now: datetime.datetime) -> x509.Certificate:
    """Make the self-signed certificate of a new cluster's CA. It may sign members' certificates only."""
    subject = _common_name(name)
    return (
        _builder(subject, subject, key.public_key(), x509.random_serial_number(), signs=True)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def issue(
    member: Member,
    public_key: PublicKey,
    authority: x509.Certificate,
    authority_key: PrivateKey,
    *,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.Certificate:
    """Sign a member's certificate, which is never valid for longer than the CA's own."""
    serial = x509.random_serial_number()
    names = [
        x509.UniformResourceIdentifier(member.uri),
        *(x509.DNSName(name) for name in dns_names(member, serial)),
    ]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(_common_name(member.name), authority.subject, public_key, serial, signs=False)
        .not_valid_before(max(now - BACKDATED, authority.not_valid_before_utc))
        .not_valid_after(min(now + life, authority.not_valid_after_utc))
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(key_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def request_for(key: PrivateKey) -> bytes:
    """The signing request (DER) of a key. It asks for no name, since the CA alone decides that."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def requested_key(request: bytes) -> PublicKey:
    """The ECDSA P-256 key of a signing request (DER), which must be signed with it.

    Raises:
        AccessError: when the request is too long, cannot be read, or is for another kind of key.
    """
    if len(request) > _MAX_REQUEST:
        raise AccessError(
            f"the signing request has {len(request)} bytes, and a request for an ECDSA P-256 key has at most "
            f"{_MAX_REQUEST}"
        )
    try:
        csr = x509.load_der_x509_csr(request)
        key = csr.public_key()
        # The kind of key comes first: checking a signature of a long RSA key takes long.
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise AccessError("the signing request is for a key that is not ECDSA P-256")
        valid = csr.is_signature_valid
    except AccessError:
        raise
    # Anyone may send a request, and the library's errors for unknown curves and algorithms are of many types.
    except Exception as error:
        raise AccessError(f"the signing request cannot be read: {_in_short(error)}") from error
    if not valid:
        raise AccessError("the signing request is not signed with the key that it is for")
    return key


def _in_short(error: Exception) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in str(error)[:_MAX_REASON])
    return f"{type(error).__name__} {text}".strip()


def verify(
    certificate: x509.Certificate, authority: x509.Certificate, now: datetime.datetime
) -> CertificateHolder:
    """Check that this CA has issued a certificate and that it is valid now; return its holder."""
    holder = holder_of(certificate)
    own, theirs = cluster_id(authority), holder.member.cluster
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        reason = f"was issued by cluster {theirs}, not by {own}"
        if theirs == own:
            reason = f"names cluster {own}, but is not signed by its CA"
        raise AccessError(f"its certificate, for {holder.member}, {reason}") from error
    if theirs != own:
        raise AccessError(f"its certificate is for cluster {theirs}, not for {own}")
    check_time(holder, now)
    return holder


def check_time(holder: CertificateHolder, now: datetime.datetime) -> None:
    """Raise AccessError unless a certificate is valid at this time."""
    if now > holder.not_after:
        raise AccessError(
            f"the certificate of {holder.member} expired on {holder.not_after:%Y-%m-%d %H:%M} UTC"
        )
    if now < holder.not_before:
        raise AccessError(
            f"the certificate of {holder.member} is valid from {holder.not_before:%Y-%m-%d %H:%M} UTC on, "
            f"and the clock of this device says {now:%Y-%m-%d %H:%M} UTC; set the clocks"
        )


def renewal_time(holder: CertificateHolder, spread: float = 0.0) -> datetime.datetime:
    """Return the time at which to ask for a new certificate.

    spread: a number in [0, 1) that differs between devices, so that they do not all renew at once.
    """
    issued = holder.not_before + BACKDATED
    return issued + (holder.not_after - issued) * (RENEWED_AFTER + RENEWAL_SPREAD * spread)


def retry_delay(holder: CertificateHolder, now: datetime.datetime) -> datetime.timedelta:
    """Return the wait after a failed renewal: 1/20 of the remaining life, a second to an hour."""
    left = max(holder.not_after - now, datetime.timedelta())
    return min(max(left / 20, datetime.timedelta(seconds=1)), datetime.timedelta(hours=1))


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, serial: int, *, signs: bool
) -> x509.CertificateBuilder:
    """signs: whether the certificate is a CA's, which signs others and does nothing else."""
    usage = x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
