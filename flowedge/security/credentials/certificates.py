"""Making certificates and checking them; nothing here reads a clock or a file.

Keys are ECDSA P-256: gRPC's TLS library takes no Ed25519.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flowedge.core.errors import AccessError
from flowedge.security.credentials.member import CertificateHolder, Member, cluster_id, dns_names, holder_of

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
AUTHORITY_LIFE = datetime.timedelta(days=3650)
BACKDATED = datetime.timedelta(minutes=5)  # for devices whose clocks are a little behind


def new_key() -> PrivateKey:
    """A key that has just been made."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """The key as it is written to a file that only its owner may read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(pem: bytes) -> PrivateKey:
    """The key of a PEM file. AccessError when there is none of the kind used here."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise AccessError(f"the private key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AccessError("the private key is not an ECDSA key")
    return key


def pem_of(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def read_certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM file. AccessError when there is none."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise AccessError(f"a certificate cannot be read: {error}") from error


def new_authority(name: str, key: PrivateKey, now: datetime.datetime) -> x509.Certificate:
    """The self-signed certificate of a new cluster's CA, which signs members' certificates alone."""
    subject = _common_name(name)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
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
    """A certificate for a member; it is never valid for longer than the CA's."""
    serial = x509.random_serial_number()
    names = [
        x509.UniformResourceIdentifier(member.uri),
        *(x509.DNSName(name) for name in dns_names(member, serial)),
    ]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(member.name))
        .issuer_name(authority.subject)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(max(now - BACKDATED, authority.not_valid_before_utc))
        .not_valid_after(min(now + life, authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(key_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def request_for(key: PrivateKey) -> bytes:
    """The signing request of a key, DER. It asks for no name: the CA alone decides what it certifies."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def requested_key(request: bytes) -> PublicKey:
    """The public key of a signing request that was made by its owner. AccessError otherwise."""
    try:
        csr = x509.load_der_x509_csr(request)
        key = csr.public_key()
        valid = csr.is_signature_valid
    except (ValueError, TypeError, InvalidSignature) as error:
        raise AccessError(f"the signing request cannot be read: {error}") from error
    if not valid:
        raise AccessError("the signing request was not made with the key that it is for")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise AccessError("the signing request is for another kind of key than ECDSA P-256")
    return key


def verify(
    certificate: x509.Certificate, authority: x509.Certificate, now: datetime.datetime
) -> CertificateHolder:
    """Who a certificate is for. AccessError when this CA did not issue it, or it is not valid now."""
    holder = holder_of(certificate)
    own = cluster_id(authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        theirs = holder.member.cluster
        reason = f"was issued by cluster {theirs}, not by {own}"
        if theirs == own:
            reason = f"says it is of cluster {own}, but was not signed by it"
        raise AccessError(f"its certificate, for {holder.member}, {reason}") from error
    if holder.member.cluster != own:
        raise AccessError(f"its certificate is for cluster {holder.member.cluster}, not for {own}")
    check_time(holder, now)
    return holder


def check_time(holder: CertificateHolder, now: datetime.datetime) -> None:
    """AccessError when a certificate is not valid at this time."""
    if now > holder.not_after:
        raise AccessError(
            f"the certificate of {holder.member} expired on {holder.not_after:%Y-%m-%d %H:%M} UTC"
        )
    if now < holder.not_before:
        raise AccessError(
            f"the certificate of {holder.member} is valid from {holder.not_before:%Y-%m-%d %H:%M} UTC on, "
            f"and the clock here says {now:%Y-%m-%d %H:%M} UTC; set the clocks"
        )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
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
