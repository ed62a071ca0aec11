"""A cluster's CA: it makes join tokens, signs certificates and revokes them. All times are UTC."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from flowedge.cluster import certificates
from flowedge.cluster.certificate_role import CertificateRole, Roles, text_of
from flowedge.cluster.certificates import PrivateKey, PublicKey
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.identities import Identities
from flowedge.cluster.join_token import JoinToken, new_secret, secret_hash
from flowedge.cluster.member import (
    CertificateHolder,
    Member,
    check_name,
    cluster_id,
    fingerprint,
    holder_of,
)
from flowedge.cluster.member_ledger import (
    LIST_NUMBER,
    IssuedCertificate,
    MemberLedger,
    TokenGrant,
    Transaction,
)
from flowedge.cluster.revocation import list_number, read_list, sign_list
from flowedge.core.errors import AccessError, BadRequestError
from flowedge.device import private_files

DEFAULT_PORT = 7443
DEFAULT_LIFE = datetime.timedelta(days=90)
RENEWALS = 3  # of a certificate, in each hundredth of its life
SERVICE_LIFE = datetime.timedelta(days=7)
FOLDER = "authority"
_KEY, _CERTIFICATE, _LEDGER = "key.pem", "certificate.pem", "ledger.sqlite3"


@dataclass(frozen=True)
class SignedCertificate:
    """What a new member receives: its certificate and the revocation list, both PEM."""

    certificate: bytes
    revocation_list: bytes
    holder: CertificateHolder


class Authority:
    """The CA in a state directory.

    Attributes:
        life: of members' certificates.
    """

    def __init__(self, key: PrivateKey, certificate: x509.Certificate, ledger: MemberLedger) -> None:
        self._key = key
        self.ledger = ledger
        self.certificate = certificate
        with ledger.transaction() as transaction:
            self.name = transaction.setting("name")
            self.port = int(transaction.setting("port"))
            self.life = datetime.timedelta(seconds=float(transaction.setting("life_s")))

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
        """Make a cluster, and the credentials of its admin in the same directory.

        addresses: of the enrolment service, where the admin's certificate is renewed.
        port: of the enrolment service; the renewal service has the next one.
        life: of members' certificates.

        Raises:
            BadRequestError: when the directory holds a CA or credentials, or the name is not valid.
        """
        check_name(name)
        folder = state / FOLDER
        if folder.exists() or Identities.exist(state):
            raise BadRequestError(
                f"{state} already holds a cluster's files; nothing was changed. Give another directory for "
                "another cluster (--dir)"
            )
        fresh = state / f"{FOLDER}.new"
        private_files.remove_directory(fresh)
        private_files.make_directory(fresh)
        key = certificates.new_key()
        certificate = certificates.new_authority(name, key, now)
        private_files.write(fresh / _KEY, certificates.key_pem(key))
        private_files.write(fresh / _CERTIFICATE, certificates.pem_of(certificate))
        number = str(list_number(now))
        settings = {"name": name, "port": str(port), "life_s": str(life.total_seconds()), LIST_NUMBER: number}
        MemberLedger.create(fresh / _LEDGER, settings)
        fresh.rename(folder)
        authority = cls.open(state)
        authority._make_admin(state, ClusterInfo(name, tuple(addresses), port + 1), now)
        return authority

    @classmethod
    def open(cls, state: Path) -> Authority:
        """Open the CA in a state directory. Its files must not be readable by others."""
        folder = state / FOLDER
        if not folder.is_dir():
            raise AccessError(
                f"there is no cluster's CA in {state}; use the machine and the directory where "
                "`flowedge cluster init` was run, or make a cluster with it"
            )
        private_files.close_directory(folder)
        return cls.open_folder(folder)

    @classmethod
    def open_folder(cls, folder: Path) -> Authority:
        """Open the CA whose files are in a folder."""
        key_pem = private_files.read_private(folder / _KEY)
        certificate_pem = private_files.read_private(folder / _CERTIFICATE)
        try:
            key = certificates.read_key(key_pem)
            certificate = certificates.read_certificate(certificate_pem)
        except AccessError as error:
            raise AccessError(
                f"{folder} is damaged: {error}; restore it from a copy: flowedge cluster restore COPY"
            ) from error
        return cls(key, certificate, MemberLedger.open(folder / _LEDGER))

    @property
    def id(self) -> str:
        return cluster_id(self.certificate)

    def new_token(
        self,
        roles: Roles,
        ttl: datetime.timedelta,
        addresses: Sequence[str],
        *,
        now: datetime.datetime,
        name: str = "",
    ) -> JoinToken:
        """Make a join token for one new member. If `name` is given, only a member of that name may use it.

        A token with the name of a present member replaces that member: see `join`.

        addresses: of the enrolment service, host:port.

        Raises:
            BadRequestError: when nobody can join in the roles, the name is not valid, or there is no address.
        """
        if not roles or CertificateRole.AUTHORITY in roles:
            raise BadRequestError(f"no member can join in the role {text_of(roles) or '(none)'}")
        if not addresses:
            raise BadRequestError("a token needs an address at which devices reach the CA; give --address")
        if name:
            check_name(name)
        secret = new_secret()
        with self.ledger.transaction() as transaction:
            transaction.forget_expired(now, self.life)
            transaction.add_token(secret_hash(secret), TokenGrant(roles, name), now, now + ttl)
        return JoinToken(tuple(addresses), fingerprint(self.certificate), secret, roles)

    def join(
        self, secret: bytes, name: str, request: bytes, now: datetime.datetime, *, default_name: str = ""
    ) -> SignedCertificate:
        """Sign the certificate of a new member. This uses up the token; a refusal does not.

        If the token was made with the name of a present member, after that member had joined, the new member
        replaces it: its certificates are revoked.

        secret: of the token. request: the signing request, DER. default_name: used if neither the member nor
        the token names one.

        Raises:
            AccessError: when the token is unknown, used or expired, the request is not valid, another member
                has the name, or the member was revoked after the token was made.
        """
        key = certificates.requested_key(request)
        with self.ledger.transaction() as transaction:
            grant = transaction.use_token(secret_hash(secret), now)
            if grant.name and name not in ("", grant.name):
                raise AccessError(f"the join token is for {grant.name}, not for {name}")
            member = Member(self.id, grant.roles, check_name(grant.name or name or default_name))
            _check_admitted(transaction, member.name, grant)
            present = [
                each
                for each in transaction.certificates(member.name)
                if each.revoked is None and each.expires > now
            ]
            if present:
                _check_replaces(grant, present)
                _revoke(transaction, present, now)
            return self._sign(transaction, member, key, now)

    def renew(self, holder: CertificateHolder, request: bytes, now: datetime.datetime) -> SignedCertificate:
        """Sign a new certificate for the holder of a present one.

        The present certificate must be due, after half of its life. It may be renewed again, since the reply
        may have been lost, but not often: RENEWALS times in each hundredth of its life.

        Raises:
            AccessError: when the present certificate is unknown, revoked, expired or not due, or was renewed
                often just now.
        """
        key = certificates.requested_key(request)
        with self.ledger.transaction() as transaction:
            issued = transaction.certificates(holder.member.name)
            known = next((each for each in issued if each.serial == holder.serial), None)
            if known is None:
                raise AccessError(
                    f"the CA does not know the certificate of {holder.member}, serial {holder.serial:x}: it "
                    f"was restored from an older copy; join again with a token of `flowedge cluster token "
                    f"--role {text_of(holder.member.roles)} --name {holder.member.name}`"
                )
            if known.revoked is not None or known.expires <= now:
                raise AccessError(f"the certificate of {holder.member} is revoked or expired")
            _check_due(known, issued, now)
            return self._sign(transaction, holder.member, key, now, renews=holder.serial)

    def revoke(self, target: str, now: datetime.datetime) -> list[IssuedCertificate]:
        """Revoke a member: all its valid certificates. The member joins again only by a token made later.

        target: the member's name, or the serial number, in hexadecimal, of any of its certificates.

        Returns the certificates that were revoked.

        Raises:
            BadRequestError: when the member has no valid certificate.
        """
        with self.ledger.transaction() as transaction:
            known = transaction.certificates()
            names = {c.name for c in known if target in (c.name, f"{c.serial:x}")}
            valid = [c for c in known if c.revoked is None and c.expires > now]
            matching = [c for c in valid if c.name in names]
            for name in names:
                transaction.bar(name, now)
            if not matching:
                raise BadRequestError(
                    f"no valid certificate is named or numbered {target!r}; see flowedge cluster list. If "
                    "the CA was restored from a copy that does not know the member, name its serial number: "
                    "flowedge cluster revoke --serial"
                )
            _revoke(transaction, matching, now)
        return matching

    def present(self, name: str, now: datetime.datetime) -> IssuedCertificate | None:
        """Return the latest valid certificate of the member with a name; None if there is no such member."""
        with self.ledger.transaction() as transaction:
            issued = transaction.certificates(name)
        return next((each for each in reversed(issued) if each.revoked is None and each.expires > now), None)

    def certificates(self) -> list[IssuedCertificate]:
        with self.ledger.transaction() as transaction:
            return transaction.certificates()

    def revocation_list(self, now: datetime.datetime) -> bytes:
        with self.ledger.transaction() as transaction:
            return self._list(transaction, now)

    def service_credentials(
        self,
        now: datetime.datetime,
        role: CertificateRole = CertificateRole.AUTHORITY,
        life: datetime.timedelta = SERVICE_LIFE,
    ) -> tuple[bytes, bytes, CertificateHolder]:
        """New key (PEM), certificate (PEM) and holder for a process of the CA, by default for its service.

        Neither the key nor the certificate is stored.
        """
        key = certificates.new_key()
        member = Member(self.id, frozenset({role}), "authority")
        certificate = certificates.issue(
            member, key.public_key(), self.certificate, self._key, now=now, life=life
        )
        return certificates.key_pem(key), certificates.pem_of(certificate), holder_of(certificate)

    def _make_admin(self, state: Path, cluster: ClusterInfo, now: datetime.datetime) -> None:
        key = certificates.new_key()
        member = Member(self.id, frozenset({CertificateRole.ADMIN}), "admin")
        with self.ledger.transaction() as transaction:
            signed = self._sign(transaction, member, key.public_key(), now)
        certificate = certificates.read_certificate(signed.certificate)
        credentials = Credentials(certificates.key_pem(key), certificate, self.certificate, cluster)
        CredentialStore.create(state, credentials, read_list(signed.revocation_list, self.certificate))

    def _sign(
        self,
        transaction: Transaction,
        member: Member,
        key: PublicKey,
        now: datetime.datetime,
        renews: int = 0,
    ) -> SignedCertificate:
        certificate = certificates.issue(member, key, self.certificate, self._key, now=now, life=self.life)
        holder = holder_of(certificate)
        transaction.forget_expired(now, self.life)
        transaction.add(holder, now, renews)
        return SignedCertificate(certificates.pem_of(certificate), self._list(transaction, now), holder)

    def _list(self, transaction: Transaction, now: datetime.datetime) -> bytes:
        revoked = [
            (issued.serial, issued.revoked)
            for issued in transaction.certificates()
            if issued.revoked is not None and issued.revoked + self.life > now
        ]
        number = transaction.list_number
        return sign_list(revoked, number, self.certificate, self._key, now)


def _check_admitted(transaction: Transaction, name: str, grant: TokenGrant) -> None:
    """Refuse a member that was revoked after its token was made; a newer token admits it again."""
    barred = transaction.barred_since(name)
    if barred is None:
        return
    if grant.created is None or grant.created < barred:
        raise AccessError(
            f"{name} was revoked on {barred:%Y-%m-%d %H:%M:%S} UTC, after the join token was made; make a "
            "new token to admit it again"
        )
    transaction.readmit(name)


def _check_replaces(grant: TokenGrant, present: Sequence[IssuedCertificate]) -> None:
    """Refuse a taken name, unless the token was made for that name after the present member had joined.

    Only the admin makes tokens, so that a token for a name is the admin's decision. An older token with the
    name was made for the present member itself, and may be in wrong hands.

    present: the valid certificates of the member that has the name.
    """
    oldest, latest = present[0], present[-1]
    if grant.name == latest.name and grant.created is not None and grant.created > oldest.issued:
        return
    raise AccessError(
        f"the cluster has a member named {latest.name} ({text_of(latest.roles)}) already. If this is the "
        f"same member, join with a token of `flowedge cluster token --role {text_of(grant.roles)} --name "
        f"{latest.name}`, which replaces its certificate; otherwise choose another name: flowedge join "
        "--name NAME"
    )


def _revoke(transaction: Transaction, issued: Sequence[IssuedCertificate], now: datetime.datetime) -> None:
    for certificate in issued:
        transaction.revoke(certificate.serial, now)
    transaction.count_list(now)


def _check_due(known: IssuedCertificate, issued: Sequence[IssuedCertificate], now: datetime.datetime) -> None:
    """Refuse to renew a certificate too early or too often.

    issued: all certificates of the member.
    """
    life = known.expires - known.issued
    due = known.issued + life / 2
    if now < due:
        raise AccessError(
            f"the certificate of {known.name}, serial {known.serial:x}, is not due: it can be renewed from "
            f"{due:%Y-%m-%d %H:%M:%S} UTC on"
        )
    recent = [each for each in issued if each.serial != known.serial and each.issued > now - life / 100]
    if len(recent) >= RENEWALS:
        again = recent[-RENEWALS].issued + life / 100
        raise AccessError(
            f"the certificate of {known.name}, serial {known.serial:x}, was renewed {len(recent)} times just "
            f"now; try again after {again:%Y-%m-%d %H:%M:%S} UTC"
        )
