"""Restoring a cluster's CA from a copy, with what the copy lacks."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from flowedge.cluster.authority import FOLDER, Authority
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.certificates import read_certificate, utc_now, verify
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.identities import Identities
from flowedge.cluster.member import CertificateHolder
from flowedge.cluster.member_ledger import Transaction
from flowedge.cluster.process import Security
from flowedge.cluster.revocation import read_list
from flowedge.cluster.tls.channels import Connection
from flowedge.core.errors import AccessError, BadRequestError, FlowEdgeError
from flowedge.device import private_files
from flowedge.network.grpc_status import from_status
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1.agent_pb2_grpc import AgentStub

_ANSWER_S = 10.0  # of an agent
_ASKING = datetime.timedelta(minutes=10)  # life of the certificate that agents are asked with


@dataclass
class Restoration:
    """A copy of a CA, and what others know that the copy does not.

    Attributes:
        authority: the copy, in files of its own or, if it lies in its place already, in these.
        revoked: what others know to be revoked: serial numbers, with the time of revocation.
        holders: of valid certificates that agents have shown, by serial number.
        number: of the newest revocation list that anyone has shown.
        answered: the agents that answered, by name.
        unanswered: why the others did not, by address.
    """

    authority: Authority
    state: Path
    folder: Path
    revoked: dict[int, datetime.datetime] = field(default_factory=dict)
    holders: dict[int, CertificateHolder] = field(default_factory=dict)
    number: int = 0
    answered: list[str] = field(default_factory=list)
    unanswered: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, copy: Path | None, state: Path) -> Restoration:
        """Read a copy, and the identities in the state directory in which it will be the CA.

        Nothing is changed in the copy, nor in the CA that the directory has.

        copy: the folder `authority` of a CA's state directory, or that directory; None for a copy that lies
            in its place already.

        Raises:
            AccessError: when the copy is damaged, or the state directory has files of another cluster.
            BadRequestError: when there is no copy, or the directory's CA is not older than the copy.
        """
        place = state / FOLDER
        source = place if copy is None else copy / FOLDER if (copy / FOLDER).is_dir() else copy
        if not source.is_dir():
            raise BadRequestError(f"{source} is no folder; give the copy of the CA's folder {FOLDER}")
        folder = place if source.resolve() == place.resolve() else state / f"{FOLDER}.new"
        if folder != place:
            _copy(source, folder)
        try:
            restoration = cls(Authority.open_folder(folder), state, folder)
            restoration._check_present()
            restoration._learn_identities()
        except FlowEdgeError:
            if folder != place:
                private_files.remove_directory(folder)
            raise
        return restoration

    def ask(self, addresses: Sequence[str]) -> None:
        """Ask agents for their certificates and revocation lists."""
        with tempfile.TemporaryDirectory(dir=self.state, prefix=".restoring-") as directory:
            security = Security(self._admin(Path(directory)))
            asyncio.run(self._ask_all(addresses, security))

    def lacking(self) -> tuple[list[CertificateHolder], list[int]]:
        """Return the members and the serial numbers of revoked certificates that the copy does not know."""
        known = {issued.serial: issued.revoked for issued in self.authority.certificates()}
        members = [self.holders[serial] for serial in sorted(self.holders.keys() - known.keys())]
        return members, sorted(serial for serial in self.revoked if known.get(serial) is None)

    def finish(self) -> Path | None:
        """Add what the copy lacks, void its tokens, and put it in its place.

        Returns the folder of the CA that was there before; None if there was none.
        """
        now = utc_now()
        with self.authority.ledger.transaction() as transaction:
            transaction.void_tokens(now)
            known = {issued.serial for issued in transaction.certificates()}
            for holder in self.holders.values():
                if holder.serial not in known:
                    transaction.add(holder, holder.not_before)
            transaction.count_list(now, self.number)
            take_over(transaction, self.revoked, self.authority.life)
        place = self.state / FOLDER
        if self.folder == place:
            return None
        before = self.state / f"{FOLDER}.before-{now:%Y%m%d-%H%M%S}" if place.exists() else None
        if before is not None:
            place.rename(before)
        self.folder.rename(place)
        return before

    def abandon(self) -> None:
        """Remove the files that `of` has made."""
        if self.folder != self.state / FOLDER:
            private_files.remove_directory(self.folder)

    def _check_present(self) -> None:
        """Refuse to replace a CA that is of another cluster, or intact and as new as the copy."""
        place = self.state / FOLDER
        if self.folder == place or not place.is_dir():
            return
        try:
            present = Authority.open_folder(place)
        except AccessError:  # it is damaged, which is why it is replaced
            return
        self._check_same(present.id)
        if _number_of(present) >= _number_of(self.authority):
            raise BadRequestError(
                f"the CA in {place} is not damaged, and its revocation list is as new as the copy's; nothing "
                "was changed. If it lies there from a copy, complete it: `flowedge cluster restore` without "
                "a folder"
            )

    def _learn_identities(self) -> None:
        """Learn from the identities of this machine."""
        for store in Identities.open(self.state).stores:
            self._check_same(store.member.cluster)
            self._learn_lists(store.revoked.pem)
            with contextlib.suppress(AccessError):  # it has expired
                self._learn_member(store.credentials.certificate_pem)

    def _check_same(self, cluster: str) -> None:
        if cluster != self.authority.id:
            raise AccessError(
                f"{self.state} holds files of cluster {cluster}, and the copy is of {self.authority.id}; "
                "give another directory for it (--dir)"
            )

    def _learn_member(self, certificate: bytes) -> CertificateHolder:
        """Learn a member from its certificate (PEM), which this CA must have signed and must be valid now."""
        holder = verify(read_certificate(certificate), self.authority.certificate, utc_now())
        self.holders[holder.serial] = holder
        return holder

    def _learn_lists(self, lists: bytes) -> None:
        """Learn what was revoked from lists (PEM), which this CA must have signed."""
        ca, now = self.authority, utc_now()
        known = read_list(lists, ca.certificate)
        self.revoked |= {serial: when for serial, when in known.revoked.items() if when + ca.life > now}
        self.number = max(self.number, known.number)

    def _admin(self, directory: Path) -> CredentialStore:
        """The credentials for asking agents, which expire soon."""
        own, now = self.authority, utc_now()
        key, certificate, _ = own.service_credentials(now, CertificateRole.ADMIN, _ASKING)
        credentials = Credentials(
            key, read_certificate(certificate), own.certificate, ClusterInfo(own.name, (), own.port + 1)
        )
        listed = read_list(own.revocation_list(now), own.certificate)
        return CredentialStore.create(directory, credentials, listed)

    async def _ask_all(self, addresses: Sequence[str], security: Security) -> None:
        await asyncio.gather(*(self._ask(address, security) for address in addresses))

    async def _ask(self, address: str, security: Security) -> None:
        connection = Connection(address, (), security=security)
        try:
            stub = AgentStub(await connection.channel())
            reply = await stub.Membership(pb.MembershipRequest(), timeout=_ANSWER_S)
            self._learn_lists(reply.revocation_lists)
            holder = self._learn_member(reply.certificate)
        except grpc.aio.AioRpcError as error:
            self.unanswered[address] = str(from_status(error, address))
        except FlowEdgeError as error:
            self.unanswered[address] = str(error)
        else:
            self.answered.append(holder.member.name)
        finally:
            await connection.close()


def take_over(
    transaction: Transaction, revoked: Mapping[int, datetime.datetime], life: datetime.timedelta
) -> None:
    """Revoke certificates that are on a list of this CA which its ledger has forgotten.

    What was revoked stays so for what was signed on it since: a certificate's renewals are revoked with it.

    life: of certificates.
    """
    issued = {each.serial: each for each in transaction.certificates()}
    for serial, when in revoked.items():
        if serial not in issued:
            transaction.add_revoked(serial, when, when + life)
            continue
        if issued[serial].revoked is None:
            transaction.bar(issued[serial].name, when)
        renewed = [serial]
        for former in renewed:
            renewed += [each.serial for each in issued.values() if each.renews == former]
            if issued[former].revoked is None:
                transaction.revoke(former, when)


def revoke_unknown(authority: Authority, serial: int, now: datetime.datetime) -> None:
    """Revoke a certificate that a CA has signed, and that its ledger does not have."""
    with authority.ledger.transaction() as transaction:
        take_over(transaction, {serial: now}, authority.life)
        transaction.count_list(now)


def _number_of(authority: Authority) -> int:
    with authority.ledger.transaction() as transaction:
        return transaction.list_number


def _copy(source: Path, folder: Path) -> None:
    """Copy the files of a CA to a folder that nobody else can read.

    Raises:
        AccessError: when a file cannot be read.
    """
    private_files.remove_directory(folder)
    private_files.make_directory(folder)
    try:
        for file in source.iterdir():
            if file.is_file():
                private_files.write(folder / file.name, file.read_bytes())
    except OSError as error:
        private_files.remove_directory(folder)
        raise AccessError(f"{source} cannot be copied: {error.strerror}") from error
