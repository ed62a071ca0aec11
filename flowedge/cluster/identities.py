"""The identities in one state directory: at most one of a person, and one of the device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from flowedge.cluster.certificate_role import DEVICES, CertificateRole, Roles
from flowedge.cluster.credentials import FIRST_FOLDER, Credentials, CredentialStore
from flowedge.cluster.member import Member
from flowedge.cluster.revocation import RevocationList
from flowedge.core.errors import AccessError
from flowedge.device import private_files

_SERVING = frozenset({CertificateRole.AGENT, CertificateRole.DRAFT_NODE})


class IdentityKind(str, Enum):
    """Whom an identity is for."""

    PERSON = "person"  # who gives commands: client, admin
    DEVICE = "device"  # which serves, and may ask as well: agent, draft-node, with client or without


_FOLDERS = (FIRST_FOLDER, *(f"{FIRST_FOLDER}-{kind.value}" for kind in IdentityKind))


@dataclass(frozen=True)
class DamagedIdentity:
    """An identity whose files cannot be used, and why."""

    folder: Path
    reason: AccessError

    @property
    def error(self) -> AccessError:
        return AccessError(
            f"the identity in {self.folder} cannot be used: {self.reason}. Unless its files can be mended, "
            "join again: `flowedge cluster token --role ROLES --name NAME` where the cluster was made, then "
            "`flowedge join --replace` here"
        )


@dataclass(frozen=True)
class Identities:
    """The identities of a state directory, whichever of them was there first.

    Attributes:
        stores: the credentials of each identity that can be used.
        damaged: the identities whose kind is not known.
    """

    stores: tuple[CredentialStore, ...]
    damaged: tuple[DamagedIdentity, ...] = ()

    @classmethod
    def exist(cls, state: Path) -> bool:
        return any((state / folder).is_dir() for folder in _FOLDERS)

    @classmethod
    def open(cls, state: Path) -> Identities:
        """Read and check all identities of a state directory; there may be none."""
        stores, damaged = [], []
        for name in _FOLDERS:
            if not (state / name).is_dir():
                continue
            try:
                store = CredentialStore.open(state, name)
                kind_of(store.member.roles)
            except AccessError as error:
                damaged.append(DamagedIdentity(state / name, error))
            else:
                stores.append(store)
        return cls(tuple(stores), tuple(damaged))

    def of(self, kind: IdentityKind) -> CredentialStore | None:
        return next((store for store in self.stores if kind_of(store.member.roles) is kind), None)

    def for_commands(self) -> CredentialStore | None:
        """Return the identity that commands show: the person's, or else the device's.

        Raises:
            AccessError: when it cannot be used.
        """
        return self._first(IdentityKind.PERSON, IdentityKind.DEVICE)

    def for_agent(self) -> CredentialStore | None:
        """Return the identity that an agent serves with: the device's, or else an admin's.

        Raises:
            AccessError: when there is an identity, and it may not serve or cannot be used.
        """
        store = self._first(IdentityKind.DEVICE, IdentityKind.PERSON)
        if store is not None and store.member.roles.isdisjoint(DEVICES):
            raise AccessError(
                f"this machine's certificate, for {store.member}, does not allow it to serve; join as a "
                "device as well: `flowedge cluster token` where the cluster was made, then `flowedge join` "
                "here"
            )
        return store

    def _first(self, kind: IdentityKind, other: IdentityKind) -> CredentialStore | None:
        """Return the identity of a kind, or else that of the other kind.

        Raises:
            AccessError: when there is none of the first kind, and a damaged identity may be of it.
        """
        store = self.of(kind)
        if store is None and self.damaged:
            raise self.damaged[0].error
        return store or self.of(other)

    def damaged_of(self, kind: IdentityKind) -> tuple[DamagedIdentity, ...]:
        """Return the damaged identities that may be of a kind; none if an intact identity is of that kind."""
        return () if self.of(kind) is not None else self.damaged

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
    """Write an identity to a state directory, in place of those that cannot stay or be used beside it.

    Raises:
        AccessError: when this process is root's, and the directory is another user's.
    """
    member = credentials.holder.member
    present, kind = Identities.open(state), kind_of(member.roles)
    replaced = [store.folder.name for store in present.replaced_by(member)]
    replaced += [damaged.folder.name for damaged in present.damaged_of(kind)]
    taken = {name for name in _FOLDERS if (state / name).is_dir()}
    free = (FIRST_FOLDER, f"{FIRST_FOLDER}-{kind.value}")
    folder = next(iter(replaced), None) or next(name for name in free if name not in taken)
    store = CredentialStore.create(state, credentials, revoked, folder)
    for other in replaced[1:]:
        private_files.remove_directory(state / other)
    return store
