"""Join tokens: what a device needs to know to join one cluster, and only that."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
from dataclasses import dataclass

from flowedge.core.errors import BadRequestError
from flowedge.net.address import split_address

_PREFIX = "flowedge1-"
_SECRET_BYTES = 24
_MAX_LENGTH = 4096
_MAX_ADDRESSES = 16


@dataclass(frozen=True)
class JoinToken:
    """What `flowedge cluster token` prints.

    Attributes:
        addresses: of the enrolment service, host:port, to be tried in order.
        fingerprint: SHA-256 of the CA's certificate, 64 hexadecimal digits.
        secret: known to the holder alone; the CA keeps its hash.
    """

    addresses: tuple[str, ...]
    fingerprint: str
    secret: bytes

    def encode(self) -> str:
        """The token as one word."""
        content = {
            "a": list(self.addresses),
            "f": self.fingerprint,
            "s": base64.urlsafe_b64encode(self.secret).decode(),
        }
        packed = json.dumps(content, separators=(",", ":")).encode()
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """The token of a word. BadRequestError when it is none."""
        text = "".join(text.split())
        if not text.startswith(_PREFIX) or len(text) > _MAX_LENGTH:
            raise BadRequestError(
                f"this is no join token: one starts with {_PREFIX}; copy all of what "
                "`flowedge cluster token` printed"
            )
        packed = text.removeprefix(_PREFIX)
        try:
            content = json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
            token = cls(
                tuple(str(address) for address in content["a"]),
                bytes.fromhex(content["f"]).hex(),
                base64.urlsafe_b64decode(content["s"]),
            )
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise BadRequestError(
                "the join token is damaged; copy all of it, or have a new one made"
            ) from error
        if len(token.fingerprint) != 64 or not 0 < len(token.addresses) <= _MAX_ADDRESSES:
            raise BadRequestError("the join token is damaged; copy all of it, or have a new one made")
        for address in token.addresses:
            split_address(address)
        return token


def new_secret() -> bytes:
    """A secret that nobody can guess."""
    return secrets.token_bytes(_SECRET_BYTES)


def secret_hash(secret: bytes) -> str:
    """What the CA keeps of a secret; a plain hash is enough for one of full entropy."""
    return hashlib.sha256(secret).hexdigest()
