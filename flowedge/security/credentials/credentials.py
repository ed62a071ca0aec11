"""What a member holds of its cluster: its key and certificate, the CA's, and the revocation list."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509

from flowedge.core.errors import AccessError
from flowedge.security.credentials.certificates import key_pem, pem_of, read_certificate, read_key
from flowedge.security.credentials.member import CertificateHolder, cluster_id, holder_of
from flowedge.security.credentials.revocation import RevocationList, newer, read_list
from flowedge.system import private_files

_FOLDER = "identity"
_MEMBER, _AUTHORITY, _REVOKED, _CLUSTER = "member.pem", "authority.pem", "revoked.pem", "cluster.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterInfo:
    """How a cluster's CA is reached.

    Attributes:
        addresses: of the enrolment service; renewal_port: of the Renewal service on the same hosts.
    """

    name: str
    addresses: tuple[str, ...]
    renewal_port: int

    def to_json(self) -> bytes:
        """As it is kept in a file."""
        content = {"name": self.name, "addresses": self.addresses, "renewal_port": self.renewal_port}
        return json.dumps(content, indent=2).encode()

    @classmethod
    def from_json(cls, content: bytes) -> ClusterInfo:
        """AccessError when the file is damaged."""
        try:
            fields = json.loads(content)
            addresses = tuple(str(address) for address in fields["addresses"])
            return cls(str(fields["name"]), addresses, int(fields["renewal_port"]))
        except (ValueError, KeyError, TypeError) as error:
            raise AccessError(f"{_CLUSTER} is damaged: {error}; join again") from error


@dataclass(frozen=True)
class Credentials:
    """A member's own certificate, key and CA, as of one moment."""

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
    """The identity in a state directory; `identity` and `revoked` are replaced as they are renewed.

    Usable from several threads.
    """

    def __init__(self, folder: Path, identity: Credentials, revoked: RevocationList) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.identity = identity
        self.revoked = revoked

    @property
    def member_file(self) -> Path:
        """Key and certificate in one PEM file, for libraries that read them from there."""
        return self._folder / _MEMBER

    @classmethod
    def exists(cls, state: Path) -> bool:
        """Whether there is an identity in a state directory."""
        return (state / _FOLDER).is_dir()

    @classmethod
    def open(cls, state: Path) -> CredentialStore:
        """Reads and checks the files. AccessError when one is missing, damaged or open to others."""
        folder = state / _FOLDER
        member = private_files.read_private(folder / _MEMBER)
        key = read_key(member)
        authority = read_certificate(_read(folder / _AUTHORITY))
        identity = Credentials(
            key_pem=key_pem(key),
            certificate=read_certificate(member),
            authority=authority,
            cluster=ClusterInfo.from_json(_read(folder / _CLUSTER)),
        )
        if key.public_key() != identity.certificate.public_key():
            raise AccessError(f"{folder / _MEMBER} holds a key and a certificate that do not belong together")
        return cls(folder, identity, read_list(_read(folder / _REVOKED), authority))

    @classmethod
    def create(cls, state: Path, identity: Credentials, revoked: RevocationList) -> CredentialStore:
        """Writes a new identity; one that is there already is replaced when all of the new one is written."""
        folder, fresh, old = state / _FOLDER, state / f"{_FOLDER}.new", state / f"{_FOLDER}.old"
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        private_files.make_directory(fresh)
        private_files.write(fresh / _MEMBER, identity.key_pem + identity.certificate_pem)
        private_files.write(fresh / _AUTHORITY, identity.authority_pem)
        private_files.write(fresh / _CLUSTER, identity.cluster.to_json())
        private_files.write(fresh / _REVOKED, revoked.pem)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
        return cls.open(state)

    def renewed(self, key_pem: bytes, certificate: x509.Certificate) -> None:
        """Takes a new key and certificate into use, once they are on disk."""
        with self._lock:
            private_files.write(self.member_file, key_pem + pem_of(certificate))
            self.identity = replace(self.identity, key_pem=key_pem, certificate=certificate)

    def receive_revoked(self, pem: bytes) -> bool:
        """Takes a revocation list into use; whether it says something new. AccessError when it is no good."""
        with self._lock:
            received = newer(self.revoked, read_list(pem, self.identity.authority))
            changed = received.serials != self.revoked.serials
            private_files.write(self._folder / _REVOKED, pem)
            self.revoked = received
        for serial in received.serials if changed else ():
            _log.info("certificate %x is revoked", serial)
        return changed


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}; join again") from error
