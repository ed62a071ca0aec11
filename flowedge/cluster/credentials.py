"""A member's credentials, and their files in the state directory."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cryptography import x509
from pydantic import TypeAdapter, ValidationError

from flowedge.cluster.certificates import (
    BACKDATED,
    key_pem,
    pem_of,
    read_certificate,
    read_key,
    utc_now,
)
from flowedge.cluster.member import CertificateHolder, Member, cluster_id, holder_of
from flowedge.cluster.revocation import OldListError, RevocationList, newer, read_list
from flowedge.core.errors import AccessError
from flowedge.device import private_files
from flowedge.device.owner import is_trusted_owner

FIRST_FOLDER = "identity"  # of the first identity in a state directory, see identities.py
_MEMBER, _AUTHORITY, _REVOKED, _CLUSTER = "member.pem", "authority.pem", "revoked.pem", "cluster.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterInfo:
    """A cluster's name and where its CA listens."""

    name: str
    addresses: tuple[str, ...]  # of the enrolment service, host:port
    renewal_port: int  # of the renewal service on the same hosts

    @classmethod
    def from_json(cls, content: bytes) -> ClusterInfo:
        try:
            return TypeAdapter(cls).validate_json(content)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise AccessError(f"{_CLUSTER} is damaged: {reason}") from error


@dataclass(frozen=True)
class Credentials:
    """A member's private key and certificate, and the certificate of its CA."""

    key_pem: bytes
    certificate: x509.Certificate
    authority: x509.Certificate
    cluster: ClusterInfo

    @property
    def holder(self) -> CertificateHolder:
        return holder_of(self.certificate)

    @property
    def cluster_id(self) -> str:
        return cluster_id(self.authority)

    @property
    def certificate_pem(self) -> bytes:
        return pem_of(self.certificate)

    @property
    def authority_pem(self) -> bytes:
        return pem_of(self.authority)


class CredentialStore:
    """The credentials and the revocation list of one identity in a state directory.

    Usable from several threads.

    Attributes:
        folder: where they lie.
        credentials, revoked: the latest ones; each is replaced as a whole.
        doubt: why the list that the CA sent last is older than it should be; "" if nothing is wrong.
    """

    def __init__(self, folder: Path, credentials: Credentials, revoked: RevocationList) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._is_own = is_trusted_owner(folder)
        self._warned = False  # that nothing is written there
        self.credentials = credentials
        self.revoked = revoked
        self.doubt = revoked.doubt

    @property
    def member_file(self) -> Path:
        return self.folder / _MEMBER

    @property
    def member(self) -> Member:
        return self.credentials.holder.member

    @classmethod
    def open(cls, state: Path, name: str = FIRST_FOLDER) -> CredentialStore:
        """Read and check the credentials of an identity. The key must not be readable by others.

        name: of the identity's folder in the state directory.
        """
        folder = state / name
        private_files.close_directory(folder)
        member = private_files.read_private(folder / _MEMBER)
        key = read_key(member)
        authority = read_certificate(_read(folder / _AUTHORITY))
        credentials = Credentials(
            key_pem=key_pem(key),
            certificate=read_certificate(member),
            authority=authority,
            cluster=ClusterInfo.from_json(_read(folder / _CLUSTER)),
        )
        if key.public_key() != credentials.certificate.public_key():
            raise AccessError(f"{folder / _MEMBER} holds a key and a certificate that do not belong together")
        return cls(folder, credentials, read_list(_read(folder / _REVOKED), authority))

    @classmethod
    def create(
        cls, state: Path, credentials: Credentials, revoked: RevocationList, name: str = FIRST_FOLDER
    ) -> CredentialStore:
        """Write new credentials. Those in the same folder are replaced once all new files are written.

        name: of the folder in the state directory.

        Raises:
            AccessError: when this process is root's, and the directory is another user's.
        """
        folder, fresh, old = state / name, state / f"{name}.new", state / f"{name}.old"
        for left in (fresh, old):
            private_files.remove_directory(left)
        private_files.make_directory(fresh)
        private_files.write(fresh / _MEMBER, credentials.key_pem + credentials.certificate_pem)
        private_files.write(fresh / _AUTHORITY, credentials.authority_pem)
        private_files.write(fresh / _CLUSTER, json.dumps(asdict(credentials.cluster), indent=2).encode())
        private_files.write(fresh / _REVOKED, revoked.pem)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        private_files.remove_directory(old)
        return cls.open(state, name)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file, or warn once if it cannot be written or is not this process's to write.

        It is not if this process is root's and the directory is of a service's user, or if a join has
        replaced the identity meanwhile.
        """
        if not self._is_own:
            self._warn_once(
                f"{self.folder} is another user's, so root writes nothing there: renewed certificates and "
                "lists last until this process ends; run it as that user"
            )
        elif self._is_replaced():
            self._warn_once(
                f"the identity in {self.folder} was replaced while this process uses the former one; restart "
                "this process"
            )
        else:
            try:
                private_files.write(self.folder / name, content)
            except OSError as error:
                self._warn_once(
                    f"{self.folder / name} cannot be written: {error.strerror}; renewed certificates and "
                    "lists last until this process ends"
                )

    def _is_replaced(self) -> bool:
        """Return whether the folder is gone, or holds the identity of another member or cluster."""
        try:
            authority = (self.folder / _AUTHORITY).read_bytes()
            member = holder_of(read_certificate((self.folder / _MEMBER).read_bytes())).member
        except FileNotFoundError:
            return True
        except (OSError, AccessError):  # a damaged file, which a write may mend
            return False
        return authority != self.credentials.authority_pem or member != self.member

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s", text)

    def replace_certificate(self, key_pem: bytes, certificate: x509.Certificate) -> None:
        """Use a renewed key and certificate, and write them."""
        with self._lock:
            self.credentials = replace(self.credentials, key_pem=key_pem, certificate=certificate)
            self._write(_MEMBER, key_pem + pem_of(certificate))

    def replace_revoked(self, pem: bytes) -> bool:
        """Use a received revocation list, and write it; return whether other certificates are on it.

        Raises:
            OldListError: when the list is older than the present one.
        """
        with self._lock:
            holder, listed = self.credentials.holder, read_list(pem, self.credentials.authority)
            life = holder.not_after - holder.not_before - BACKDATED
            try:
                received = newer(self.revoked, listed, life, utc_now())
            except OldListError as error:
                self.doubt = str(error)
                raise
            added, changed = received.serials - self.revoked.serials, received.serials != self.revoked.serials
            self.revoked, self.doubt = received, received.doubt
            self._write(_REVOKED, received.pem)
        for serial in added:
            _log.info("certificate %x is revoked", serial)
        return changed


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
