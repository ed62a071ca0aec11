"""Who a certificate was issued to."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from flowedge.cluster.certificate_role import CertificateRole, Roles, read_roles, text_of
from flowedge.core.errors import AccessError, BadRequestError

MAX_NAME = 48  # letters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
_CLUSTER = re.compile(r"[0-9a-f]{16}")
_ID_DIGITS = 16  # of the fingerprint; they name a cluster and prove nothing
_DOMAIN = "flowedge.internal"


@dataclass(frozen=True)
class Member:
    """A device, person or program of a cluster, as a certificate names it.

    Attributes:
        cluster: the cluster's id, see `cluster_id`.
    """

    cluster: str
    roles: Roles
    name: str

    @property
    def uri(self) -> str:
        return f"flowedge://{self.cluster}/{text_of(self.roles)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.name} ({text_of(self.roles)})"


@dataclass(frozen=True)
class CertificateHolder:
    """A member, and the serial number and validity (UTC) of one of its certificates."""

    member: Member
    serial: int
    not_before: datetime.datetime
    not_after: datetime.datetime

    @property
    def dns_name(self) -> str:
        """The DNS name that no other certificate of the cluster has."""
        return serial_name(self.serial, self.member.cluster)


def check_name(name: str) -> str:
    """Return a member's name; raise BadRequestError if a certificate cannot carry it."""
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"{name!r} cannot be a name in a cluster; use at most {MAX_NAME} letters, digits, dots, hyphens "
            "and underscores, and begin with a letter or digit"
        )
    return name


def fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-256 of a certificate, 64 hexadecimal digits."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def cluster_id(authority: x509.Certificate) -> str:
    """The id of a cluster: the first digits of its CA's fingerprint. Two clusters may have one name."""
    return short_id(fingerprint(authority))


def short_id(fingerprint: str) -> str:
    """The id of the cluster whose CA's certificate has a fingerprint, in hexadecimal."""
    return fingerprint[:_ID_DIGITS]


def serial_name(serial: int, cluster: str) -> str:
    """The DNS name of the certificate with a serial number."""
    return f"s{serial:x}.{cluster}.{_DOMAIN}"


def authority_name(cluster: str) -> str:
    """The DNS name of a cluster's enrolment service, which no other member's certificate has."""
    return f"authority.{cluster}.{_DOMAIN}"


def dns_names(member: Member, serial: int) -> list[str]:
    """All DNS names of a certificate."""
    names = [serial_name(serial, member.cluster)]
    return (
        names if CertificateRole.AUTHORITY not in member.roles else [*names, authority_name(member.cluster)]
    )


def holder_of(certificate: x509.Certificate) -> CertificateHolder:
    """The member and validity that a certificate states. Its signature is not checked."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise AccessError(
            "the certificate was not issued by a FlowEdge cluster: it names no member"
        ) from error
    return CertificateHolder(
        _member(names.get_values_for_type(x509.UniformResourceIdentifier)),
        certificate.serial_number,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def _member(uris: list[str]) -> Member:
    """Read the URIs of a certificate, which anybody may have made and signed."""
    parts = uris[0].removeprefix("flowedge://").split("/") if len(uris) == 1 else []
    if len(parts) != 3 or not uris[0].startswith("flowedge://"):
        raise AccessError("the certificate was not issued by a FlowEdge cluster: it names no member of any")
    cluster, roles, name = parts
    if not _CLUSTER.fullmatch(cluster) or not _NAME.fullmatch(name):
        raise AccessError(
            "the certificate was not issued by a FlowEdge cluster: the cluster or the member in it has no "
            "valid name"
        )
    try:
        return Member(cluster, read_roles(roles), name)
    except BadRequestError as error:
        raise AccessError(f"the certificate of {name} has roles that this version does not know") from error
