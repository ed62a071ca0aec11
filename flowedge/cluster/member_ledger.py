"""The CA's record of tokens, certificates and settings, in one SQLite file."""

from __future__ import annotations

import datetime
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowedge.cluster.certificate_role import Roles, read_roles, text_of
from flowedge.cluster.member import CertificateHolder
from flowedge.cluster.revocation import list_number
from flowedge.core.errors import AccessError

_WAIT_S = 10.0  # for the transaction of another process
_SCHEMA = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE tokens (hash TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL,
    expires REAL NOT NULL, used REAL, created REAL NOT NULL DEFAULT 0);
CREATE TABLE certificates (serial TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL,
    issued REAL NOT NULL, expires REAL NOT NULL, revoked REAL, renews TEXT NOT NULL DEFAULT '');
"""
_LATER_SCHEMA = """
CREATE TABLE IF NOT EXISTS barred (name TEXT PRIMARY KEY, since REAL NOT NULL);
CREATE INDEX IF NOT EXISTS certificates_by_name ON certificates (name);
"""
_KEPT = datetime.timedelta(days=30)  # an expired certificate or token stays in the ledger for so long
_TABLES = ("settings", "tokens", "certificates", "barred")
_ADDED = {
    "tokens": ("created", "REAL NOT NULL DEFAULT 0"),
    "certificates": ("renews", "TEXT NOT NULL DEFAULT ''"),
}
LIST_NUMBER = "list_number"  # the setting that has the number of the revocation list
_DIGEST = "digest"  # the setting that has the SHA-256 of all other rows


@dataclass(frozen=True)
class IssuedCertificate:
    """An issued certificate. Times are UTC.

    Attributes:
        name, roles: empty for a certificate of which the CA knows only that it is revoked.
        revoked: None while it is valid.
        renews: the serial number of the certificate that was shown to get this one; 0 after a join.
    """

    serial: int
    roles: Roles
    name: str
    issued: datetime.datetime
    expires: datetime.datetime
    revoked: datetime.datetime | None
    renews: int = 0


@dataclass(frozen=True)
class TokenGrant:
    """The roles that a token grants.

    Attributes:
        name: of the member that the token is for; empty for any member.
        created: when the token was made, UTC; None for a token that is not stored yet.
    """

    roles: Roles
    name: str
    created: datetime.datetime | None = None


class MemberLedger:
    """The SQLite file. It is read and changed in transactions that never overlap."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, path: Path, settings: dict[str, str]) -> MemberLedger:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        ledger = cls(path)
        with closing(ledger._connect()) as connection:
            connection.executescript(_SCHEMA + _LATER_SCHEMA)
            with connection:
                connection.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
                Transaction(connection).set(_DIGEST, _digest(connection))
        return ledger

    @classmethod
    def open(cls, path: Path) -> MemberLedger:
        """Check a ledger, and add what a former version did not record.

        Raises:
            AccessError: when the file is missing or damaged.
        """
        ledger = cls(path)
        with _errors_of(path), closing(ledger._connect()) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(str(found))
            connection.executescript(_LATER_SCHEMA)
            connection.execute("BEGIN IMMEDIATE")
            added = False
            for table, (column, kind) in _ADDED.items():
                columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                if column not in columns:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
                    added = True
            if added:
                Transaction(connection).set(_DIGEST, _digest(connection))
            connection.commit()
        with ledger.transaction():
            pass
        return ledger

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit all changes when the context ends, or none when it ends with an error.

        SQLite notices a damaged page, but not another letter in a row. So all rows are compared with their
        digest, which every change writes anew.

        Raises:
            AccessError: when the file is missing, damaged, or cannot be written.
        """
        with _errors_of(self._path), closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection)
            if transaction.setting(_DIGEST) != _digest(connection):
                raise sqlite3.DatabaseError("its rows are not those that were written")
            before = connection.total_changes
            try:
                yield transaction
                if connection.total_changes != before:
                    transaction.set(_DIGEST, _digest(connection))
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _connect(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise AccessError(
                f"{self._path} is missing; restore it from a copy: flowedge cluster restore COPY"
            )
        return sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise AccessError(
            f"{path} cannot be used: {error}; if it is damaged, restore it from a copy: flowedge cluster "
            "restore COPY"
        ) from error


def _digest(connection: sqlite3.Connection) -> str:
    """Return the SHA-256 of all rows but the digest's own."""
    digest = hashlib.sha256()
    for table in _TABLES:
        for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1"):
            if row[0] != _DIGEST:
                digest.update(f"{table} {row!r}\n".encode())
    return digest.hexdigest()


class Transaction:
    """Reads and changes the ledger."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def setting(self, key: str) -> str:
        row = self._connection.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise AccessError(
                f"the CA's ledger has no setting {key}; restore it from a copy: flowedge cluster restore COPY"
            )
        return str(row[0])

    def set(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

    @property
    def list_number(self) -> int:
        """The number of the revocation list."""
        return int(self.setting(LIST_NUMBER))

    def count_list(self, now: datetime.datetime, known: int = 0) -> None:
        """Give the revocation list, which changes now, its next number.

        known: the highest number that was seen elsewhere.
        """
        self.set(LIST_NUMBER, str(list_number(now, max(known, self.list_number))))

    def add_token(
        self, secret_hash: str, grant: TokenGrant, created: datetime.datetime, expires: datetime.datetime
    ) -> None:
        self._connection.execute(
            "INSERT INTO tokens (hash, role, name, expires, created) VALUES (?, ?, ?, ?, ?)",
            (secret_hash, text_of(grant.roles), grant.name, expires.timestamp(), created.timestamp()),
        )

    def use_token(self, secret_hash: str, now: datetime.datetime) -> TokenGrant:
        """Mark a token, which must be known, unused and not expired, as used; return what it grants."""
        row = self._connection.execute(
            "SELECT role, name, expires, used, created FROM tokens WHERE hash = ?", (secret_hash,)
        ).fetchone()
        if row is None:
            raise AccessError("the join token is not known to this cluster")
        role, name, expires, used, created = row
        if used is not None:
            raise AccessError(f"the join token was used already, on {_time(used):%Y-%m-%d %H:%M:%S} UTC")
        if now.timestamp() >= expires:
            raise AccessError(f"the join token expired on {_time(expires):%Y-%m-%d %H:%M:%S} UTC")
        self._connection.execute("UPDATE tokens SET used = ? WHERE hash = ?", (now.timestamp(), secret_hash))
        return TokenGrant(read_roles(role), name, _time(created))

    def void_tokens(self, now: datetime.datetime) -> None:
        """Mark all tokens as used."""
        self._connection.execute("UPDATE tokens SET used = ? WHERE used IS NULL", (now.timestamp(),))

    def add(self, holder: CertificateHolder, issued: datetime.datetime, renews: int = 0) -> None:
        """Record a valid certificate; renews: see IssuedCertificate."""
        self._connection.execute(
            "INSERT INTO certificates VALUES (?, ?, ?, ?, ?, NULL, ?)",
            (
                f"{holder.serial:x}",
                text_of(holder.member.roles),
                holder.member.name,
                issued.timestamp(),
                holder.not_after.timestamp(),
                f"{renews:x}" if renews else "",
            ),
        )

    def add_revoked(self, serial: int, revoked: datetime.datetime, expires: datetime.datetime) -> None:
        """Record a revoked certificate of which nothing else is known; expires: at the latest."""
        times = (revoked.timestamp(), expires.timestamp(), revoked.timestamp())
        self._connection.execute(
            "INSERT INTO certificates VALUES (?, '', '', ?, ?, ?, '')", (f"{serial:x}", *times)
        )

    def revoke(self, serial: int, now: datetime.datetime) -> None:
        self._connection.execute(
            "UPDATE certificates SET revoked = ? WHERE serial = ?", (now.timestamp(), f"{serial:x}")
        )

    def bar(self, name: str, now: datetime.datetime) -> None:
        """Keep a name from joining by a token that was made before now."""
        self._connection.execute("INSERT OR REPLACE INTO barred VALUES (?, ?)", (name, now.timestamp()))

    def barred_since(self, name: str) -> datetime.datetime | None:
        row = self._connection.execute("SELECT since FROM barred WHERE name = ?", (name,)).fetchone()
        return None if row is None else _time(row[0])

    def readmit(self, name: str) -> None:
        self._connection.execute("DELETE FROM barred WHERE name = ?", (name,))

    def forget_expired(self, now: datetime.datetime, life: datetime.timedelta) -> None:
        """Delete certificates and tokens that expired long ago, so that the file does not grow for ever.

        life: of certificates. A revoked one stays for so long after its revocation, on the list as well.
        """
        limit = (now - _KEPT).timestamp()
        self._connection.execute(
            "DELETE FROM certificates WHERE expires < ? AND (revoked IS NULL OR revoked < ?)",
            (limit, limit - life.total_seconds()),
        )
        self._connection.execute("DELETE FROM tokens WHERE expires < ?", (limit,))

    def certificates(self, name: str | None = None) -> list[IssuedCertificate]:
        """The certificates in the order of their issue; if `name` is given, those of that member."""
        condition, values = ("", ()) if name is None else ("WHERE name = ?", (name,))
        rows = self._connection.execute(
            f"SELECT serial, role, name, issued, expires, revoked, renews FROM certificates {condition} "
            "ORDER BY issued, serial",
            values,
        )
        return [
            IssuedCertificate(
                int(serial, 16),
                read_roles(role) if role else frozenset(),
                name,
                _time(issued),
                _time(expires),
                None if revoked is None else _time(revoked),
                int(renews, 16) if renews else 0,
            )
            for serial, role, name, issued, expires, revoked, renews in rows
        ]


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
