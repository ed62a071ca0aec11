"""API keys: a private file of their hashes, with the limits of each key."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flowedge.core.errors import AccessError, BadRequestError
from flowedge.core.request import DEFAULT_PRIORITY, PRIORITIES, Priority
from flowedge.device import private_files
from flowedge.device.owner import become_owner

PREFIX = "fe-"
MAX_NAME = 63
_SECRET_BYTES = 32
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class KeyLimits:
    """What one key may use; None for no limit."""

    requests_per_minute: int | None = None
    concurrent: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (type(value) is not int or value < 1):
                raise BadRequestError(f"{field.name} is {value!r}; it must be a whole number from 1")


@dataclass(frozen=True)
class ApiKey:
    """A key as the file has it.

    Attributes:
        name: for people, logs and metrics.
        digest: SHA-256 of the key, in hexadecimal digits. A key is 256 random bits, which nobody can try
            out, so that a slow hash, as for passwords, would only delay each request.
        created: seconds since 1970.
    """

    name: str
    digest: str
    created: float
    priority: Priority = DEFAULT_PRIORITY
    limits: KeyLimits = KeyLimits()

    def __post_init__(self) -> None:
        if not (0 < len(self.name) <= MAX_NAME and self.name.isprintable()):
            raise BadRequestError(
                f"the name of the key is {self.name[:80]!r}; it must be 1 to {MAX_NAME} printable characters"
            )
        if self.priority not in PRIORITIES:
            raise BadRequestError(
                f"the priority is {self.priority!r}; it must be one of {', '.join(PRIORITIES)}"
            )


class KeyFile:
    """The file of the keys. A missing file has no keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[ApiKey, ...]:
        """Return the keys, in the order in which they were made.

        Raises:
            AccessError: when the file cannot be read, others can read it, or it is damaged.
        """
        if not self.path.exists():
            return ()
        content = private_files.read_private(self.path)
        try:
            if len(content) > _MOST_BYTES:
                raise ValueError(f"it has {len(content)} bytes")
            return tuple(_key(entry) for entry in json.loads(content)["keys"])
        except (ValueError, KeyError, TypeError, BadRequestError) as error:
            raise AccessError(
                f"{self.path} is damaged: {error}; remove it, and make the keys anew "
                "(flowedge serve keys add)"
            ) from error

    def add(self, name: str, priority: Priority, limits: KeyLimits) -> str:
        """Make a key and return it; the file has its hash only.

        Raises:
            BadRequestError: when a key has the name already, or a value is wrong.
        """
        self._make_directory()
        keys = self.read()
        if any(key.name == name for key in keys):
            raise BadRequestError(f"there is a key {name!r}; remove it first, or choose another name")
        secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        self._write((*keys, ApiKey(name, digest_of(secret), time.time(), priority, limits)))
        return secret

    def remove(self, name: str) -> None:
        """Remove a key; a running gateway refuses it within seconds.

        Raises:
            BadRequestError: when there is no key of the name.
        """
        self._make_directory()
        keys = self.read()
        kept = tuple(key for key in keys if key.name != name)
        if len(kept) == len(keys):
            names = ", ".join(key.name for key in keys) or "none"
            raise BadRequestError(f"there is no key {name!r}; there are: {names}")
        self._write(kept)

    def _make_directory(self) -> None:
        """Make the file's directory, and take the rights of its owner."""
        if not self.path.parent.is_dir():
            private_files.make_directory(self.path.parent)
        become_owner(self.path.parent)

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        content = {"keys": [asdict(key) for key in keys]}
        private_files.write(self.path, json.dumps(content, indent=1).encode())


def digest_of(secret: str) -> str:
    """Return what the file has of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def find_key(keys: tuple[ApiKey, ...], secret: str) -> ApiKey | None:
    """Return the key that was given, None for an unknown one; the time does not tell how much fits."""
    digest = digest_of(secret)
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


def _key(entry: dict[str, Any]) -> ApiKey:
    return ApiKey(**{**entry, "limits": KeyLimits(**entry["limits"])})
