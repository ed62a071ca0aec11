"""A cluster's CA: it gives out tokens, signs certificates and revokes them. `now` is always UTC."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from flowedge.core.errors import AccessError, BadRequestError
from flowedge.security.authority.member_ledger import IssuedCertificate, MemberLedger, TokenGrant, Transaction
from flowedge.security.credentials.certificate_role import CertificateRole
from flowedge.security.credentials.certificates import (
    PrivateKey,
    PublicKey,
    issue,
    key_pem,
    new_authority,
    new_key,
    pem_of,
    read_certificate,
    read_key,
    requested_key,
)
from flowedge.security.credentials.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.security.credentials.member import (
    CertificateHolder,
    Member,
    check_name,
    cluster_id,
    fingerprint,
    holder_of,
)
from flowedge.security.credentials.revocation import read_list, sign_list
from flowedge.security.credentials.token import JoinToken, new_secret, secret_hash
from flowedge.system import private_files

DEFAULT_PORT = 7443
DEFAULT_LIFE = datetime.timedelta(days=90)
SERVICE_LIFE = datetime.timedelta(days=7)
JOINING = (CertificateRole.AGENT, CertificateRole.DRAFT_NODE, CertificateRole.CLIENT, CertificateRole.ADMIN)
_FOLDER = "authority"
_KEY, _CERTIFICATE, _LEDGER = "key.pem", "certificate.pem", "ledger.sqlite3"


@dataclass(frozen=True)
class SignedCertificate:
    """What a member is sent: its certificate and the revocation list, both PEM."""

    certificate: bytes
    revocation_list: bytes
    holder: CertificateHolder


class Authority:
    """The CA in a state directory."""

    def __init__(self, key: PrivateKey, certificate: x509.Certificate, ledger: MemberLedger) -> None:
        self._key = key
        self._ledger = ledger
        self.certificate = certificate
        with ledger.transaction() as transaction:
            self.name = transaction.setting("name")
            self.port = int(transaction.setting("port"))
            self._life = datetime.timedelta(seconds=float(transaction.setting("life_s")))

    @classmethod
    def create(
        cls,
        state: Path,
        name: str,
        *,
        now: datetime.datetime,
        addresses: Sequence[str] = (),
        port: int = DEFAULT_PORT,
        life: datetime.timedelta = DEFAULT_LIFE,
    ) -> Authority:
        """Makes a cluster, and an admin's identity beside it.

        addresses: of the enrolment service, for the admin's renewals; port: of it; the next is for renewals.
        life: of members' certificates.
        Raises BadRequestError when a cluster or an identity is there already, or for a name that cannot be.
        """
        check_name(name)
        folder = state / _FOLDER
        if folder.exists() or CredentialStore.exists(state):
            raise BadRequestError(
                f"{state} holds a cluster's files already; nothing was changed. Another cluster needs "
                "another directory (--dir)"
            )
        fresh = state / f"{_FOLDER}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        private_files.make_directory(fresh)
        key = new_key()
        certificate = new_authority(name, key, now)
        private_files.write(fresh / _KEY, key_pem(key))
        private_files.write(fresh / _CERTIFICATE, pem_of(certificate))
        settings = {"name": name, "port": str(port), "life_s": str(life.total_seconds()), "list_number": "1"}
        MemberLedger.create(fresh / _LEDGER, settings)
        fresh.rename(folder)
        authority = cls.open(state)
        authority._make_admin(state, ClusterInfo(name, tuple(addresses), port + 1), now)
        return authority

    @classmethod
    def open(cls, state: Path) -> Authority:
        """AccessError when there is none in the directory, or a file of it is missing or open to others."""
        folder = state / _FOLDER
        if not folder.is_dir():
            raise AccessError(
                f"there is no cluster's CA in {state}; `flowedge cluster init NAME` makes one, and only the "
                "machine where that was done has it"
            )
        key = read_key(private_files.read_private(folder / _KEY))
        certificate = read_certificate(private_files.read_private(folder / _CERTIFICATE))
        return cls(key, certificate, MemberLedger(folder / _LEDGER))

    @property
    def id(self) -> str:
        return cluster_id(self.certificate)

    def new_token(
        self,
        role: CertificateRole,
        ttl: datetime.timedelta,
        addresses: Sequence[str],
        *,
        now: datetime.datetime,
        name: str = "",
    ) -> JoinToken:
        """A token for one new member; with a name, for none of another name."""
        if role not in JOINING:
            raise BadRequestError(f"nobody joins as {role.value}")
        if not addresses:
            raise BadRequestError("a token needs an address at which the CA is reached; give --address")
        if name:
            check_name(name)
        secret = new_secret()
        with self._ledger.transaction() as transaction:
            transaction.add_token(secret_hash(secret), TokenGrant(role, name), now + ttl)
        return JoinToken(tuple(addresses), fingerprint(self.certificate), secret)

    def join(
        self, secret: bytes, name: str, request: bytes, now: datetime.datetime, *, default_name: str = ""
    ) -> SignedCertificate:
        """Signs a new member's certificate; the token is used up by that, and only by that.

        Raises AccessError for a token that is unknown, used or expired, a request that is no good, or a name
        that another member has.
        """
        key = requested_key(request)
        with self._ledger.transaction() as transaction:
            grant = transaction.use_token(secret_hash(secret), now)
            if grant.name and name not in ("", grant.name):
                raise AccessError(f"the join token is for {grant.name}, not for {name}")
            member = Member(self.id, grant.role, check_name(grant.name or name or default_name))
            for other in transaction.certificates():
                if other.name == member.name and other.revoked is None and other.expires > now:
                    raise AccessError(
                        f"there is a {other.role.value} named {other.name} already; choose another name, or "
                        f"revoke it first: flowedge cluster revoke {other.name}"
                    )
            return self._sign(transaction, member, key, now)

    def renew(self, holder: CertificateHolder, request: bytes, now: datetime.datetime) -> SignedCertificate:
        """Signs a new certificate for one that the member has shown. AccessError if that is revoked."""
        key = requested_key(request)
        with self._ledger.transaction() as transaction:
            known = [issued for issued in transaction.certificates() if issued.serial == holder.serial]
            if not known or known[0].revoked is not None or known[0].expires <= now:
                raise AccessError(f"the certificate of {holder.member} is unknown, revoked or expired")
            return self._sign(transaction, holder.member, key, now)

    def revoke(self, target: str, now: datetime.datetime) -> list[IssuedCertificate]:
        """Revokes all certificates of a name, or the one of a serial number (hexadecimal).

        Returns those it revoked. BadRequestError when there is none to revoke.
        """
        with self._ledger.transaction() as transaction:
            valid = [c for c in transaction.certificates() if c.revoked is None and c.expires > now]
            matching = [c for c in valid if target in (c.name, f"{c.serial:x}")]
            if not matching:
                raise BadRequestError(
                    f"no valid certificate is named or numbered {target!r}; see flowedge cluster list"
                )
            for certificate in matching:
                transaction.revoke(certificate.serial, now)
            transaction.set("list_number", str(int(transaction.setting("list_number")) + 1))
        return matching

    def certificates(self) -> list[IssuedCertificate]:
        """All that were issued, the oldest first."""
        with self._ledger.transaction() as transaction:
            return transaction.certificates()

    def revocation_list(self, now: datetime.datetime) -> bytes:
        """The list as it is now, PEM."""
        with self._ledger.transaction() as transaction:
            return self._list(transaction, now)

    def service_identity(self, now: datetime.datetime) -> tuple[bytes, bytes, CertificateHolder]:
        """Key (PEM), certificate (PEM) and holder for the enrolment service; the key is kept nowhere."""
        key = new_key()
        member = Member(self.id, CertificateRole.AUTHORITY, "authority")
        certificate = issue(member, key.public_key(), self.certificate, self._key, now=now, life=SERVICE_LIFE)
        return key_pem(key), pem_of(certificate), holder_of(certificate)

    def _make_admin(self, state: Path, cluster: ClusterInfo, now: datetime.datetime) -> None:
        key = new_key()
        member = Member(self.id, CertificateRole.ADMIN, "admin")
        with self._ledger.transaction() as transaction:
            signed = self._sign(transaction, member, key.public_key(), now)
        identity = Credentials(key_pem(key), read_certificate(signed.certificate), self.certificate, cluster)
        CredentialStore.create(state, identity, read_list(signed.revocation_list, self.certificate))

    def _sign(
        self, transaction: Transaction, member: Member, key: PublicKey, now: datetime.datetime
    ) -> SignedCertificate:
        certificate = issue(member, key, self.certificate, self._key, now=now, life=self._life)
        holder = holder_of(certificate)
        transaction.add(holder, now)
        return SignedCertificate(pem_of(certificate), self._list(transaction, now), holder)

    def _list(self, transaction: Transaction, now: datetime.datetime) -> bytes:
        revoked = [
            (issued.serial, issued.revoked)
            for issued in transaction.certificates()
            if issued.revoked is not None and issued.expires > now
        ]
        number = int(transaction.setting("list_number"))
        return sign_list(revoked, number, self.certificate, self._key, now)
