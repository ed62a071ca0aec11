"""The CA's record of tokens, certificates and settings, in one SQLite file."""

from __future__ import annotations

import datetime
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowedge.cluster.certificate_role import Roles, read_roles, text_of
from flowedge.cluster.member import CertificateHolder
from flowedge.core.errors import AccessError

_WAIT_S = 10.0  # for the transaction of another process
_SCHEMA = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE tokens (hash TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL,
    expires REAL NOT NULL, used REAL, created REAL NOT NULL DEFAULT 0);
CREATE TABLE certificates (serial TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL,
    issued REAL NOT NULL, expires REAL NOT NULL, revoked REAL);
"""
_LATER_SCHEMA = """
CREATE TABLE IF NOT EXISTS barred (name TEXT PRIMARY KEY, since REAL NOT NULL);
CREATE INDEX IF NOT EXISTS certificates_by_name ON certificates (name);
"""
_KEPT = datetime.timedelta(days=30)  # an expired certificate or token stays in the ledger for so long


@dataclass(frozen=True)
class IssuedCertificate:
    """An issued certificate. Times are UTC; `revoked` is None while it is valid."""

    serial: int
    roles: Roles
    name: str
    issued: datetime.datetime
    expires: datetime.datetime
    revoked: datetime.datetime | None


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
        return ledger

    @classmethod
    def open(cls, path: Path) -> MemberLedger:
        """Open a ledger, and add what a former version did not record.

        Raises:
            AccessError: when the file is missing or damaged.
        """
        ledger = cls(path)
        with _errors_of(path), closing(ledger._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            columns = {row[1] for row in connection.execute("PRAGMA table_info(tokens)")}
            if columns and "created" not in columns:
                connection.execute("ALTER TABLE tokens ADD COLUMN created REAL NOT NULL DEFAULT 0")
            connection.commit()
            if columns:
                connection.executescript(_LATER_SCHEMA)
        return ledger

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit all changes when the context ends, or none when it ends with an error.

        Raises:
            AccessError: when the file is missing, damaged, or cannot be written.
        """
        with _errors_of(self._path), closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(connection)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _connect(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise AccessError(f"{self._path} is missing; restore it from a copy of the CA's directory")
        return sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise AccessError(
            f"{path} cannot be used: {error}; if it is damaged, restore it from a copy of the CA's directory"
        ) from error


class Transaction:
    """Reads and changes the ledger."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def setting(self, key: str) -> str:
        row = self._connection.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise AccessError(
                f"the CA's ledger has no setting {key}; restore it from a copy of the CA's directory"
            )
        return str(row[0])

    def set(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

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

    def add(self, holder: CertificateHolder, now: datetime.datetime) -> None:
        self._connection.execute(
            "INSERT INTO certificates VALUES (?, ?, ?, ?, ?, NULL)",
            (
                f"{holder.serial:x}",
                text_of(holder.member.roles),
                holder.member.name,
                now.timestamp(),
                holder.not_after.timestamp(),
            ),
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

    def forget_expired(self, now: datetime.datetime) -> None:
        """Delete certificates and tokens that expired long ago, so that the file does not grow for ever."""
        limit = ((now - _KEPT).timestamp(),)
        self._connection.execute("DELETE FROM certificates WHERE expires < ?", limit)
        self._connection.execute("DELETE FROM tokens WHERE expires < ?", limit)

    def certificates(self, name: str | None = None) -> list[IssuedCertificate]:
        """The certificates in the order of their issue; if `name` is given, those of that member."""
        condition, values = ("", ()) if name is None else ("WHERE name = ?", (name,))
        rows = self._connection.execute(
            f"SELECT serial, role, name, issued, expires, revoked FROM certificates {condition} "
            "ORDER BY issued, serial",
            values,
        )
        return [
            IssuedCertificate(
                int(serial, 16),
                read_roles(role),
                name,
                _time(issued),
                _time(expires),
                None if revoked is None else _time(revoked),
            )
            for serial, role, name, issued, expires, revoked in rows
        ]


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
