"""The identities in one state directory: at most one of a person, and one of the device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from flowedge.core.errors import AccessError
from flowedge.security.credentials.certificate_role import DEVICES, CertificateRole, Roles
from flowedge.security.credentials.credentials import FIRST_FOLDER, Credentials, CredentialStore
from flowedge.security.credentials.member import Member
from flowedge.security.credentials.revocation import RevocationList
from flowedge.system import private_files

_SERVING = frozenset({CertificateRole.AGENT, CertificateRole.DRAFT_NODE})


class IdentityKind(str, Enum):
    """Whom an identity is for."""

    PERSON = "person"  # who gives commands: client, admin
    DEVICE = "device"  # which serves, and may ask as well: agent, draft-node, with client or without


_FOLDERS = (FIRST_FOLDER, *(f"{FIRST_FOLDER}-{kind.value}" for kind in IdentityKind))


@dataclass(frozen=True)
class Identities:
    """The identities of a state directory, whichever of them was there first."""

    stores: tuple[CredentialStore, ...]

    @classmethod
    def exist(cls, state: Path) -> bool:
        return any((state / folder).is_dir() for folder in _FOLDERS)

    @classmethod
    def open(cls, state: Path) -> Identities:
        """Read and check all identities of a state directory; there may be none."""
        found = (folder for folder in _FOLDERS if (state / folder).is_dir())
        return cls(tuple(CredentialStore.open(state, folder) for folder in found))

    def of(self, kind: IdentityKind) -> CredentialStore | None:
        return next((store for store in self.stores if kind_of(store.member.roles) is kind), None)

    def for_commands(self) -> CredentialStore | None:
        """Return the identity that commands show: the person's, or else the device's."""
        return self.of(IdentityKind.PERSON) or self.of(IdentityKind.DEVICE)

    def for_agent(self) -> CredentialStore | None:
        """Return the identity that an agent serves with: the device's, or else an admin's.

        Raises:
            AccessError: when there is an identity, and it may not serve.
        """
        store = self.of(IdentityKind.DEVICE) or self.of(IdentityKind.PERSON)
        if store is not None and store.member.roles.isdisjoint(DEVICES):
            raise AccessError(
                f"this machine's certificate, for {store.member}, does not allow it to serve; join as a "
                "device as well: `flowedge cluster token` where the cluster was made, then `flowedge join` "
                "here"
            )
        return store

    def replaced_by(self, member: Member) -> list[CredentialStore]:
        """Return the identities that cannot stay beside that of a new member.

        These are the identity of the same kind, an identity of the same name, and those of other clusters.

        member: its name may be "", for a name that is not known yet.
        """
        kind = kind_of(member.roles)
        return [
            store
            for store in self.stores
            if store.member.cluster != member.cluster
            or store.member.name == member.name
            or kind_of(store.member.roles) is kind
        ]


def kind_of(roles: Roles) -> IdentityKind:
    return IdentityKind.PERSON if roles.isdisjoint(_SERVING) else IdentityKind.DEVICE


def store_identity(state: Path, credentials: Credentials, revoked: RevocationList) -> CredentialStore:
    """Write an identity to a state directory, in place of those that cannot stay beside it.

    Raises:
        AccessError: when this process is root's, and the directory is another user's.
    """
    member = credentials.holder.member
    present = Identities.open(state)
    replaced = [store.folder.name for store in present.replaced_by(member)]
    taken = {store.folder.name for store in present.stores}
    free = (FIRST_FOLDER, f"{FIRST_FOLDER}-{kind_of(member.roles).value}")
    folder = next(iter(replaced), None) or next(name for name in free if name not in taken)
    store = CredentialStore.create(state, credentials, revoked, folder)
    for other in replaced[1:]:
        private_files.remove_directory(state / other)
    return store
