"""Join tokens, with which a device joins a cluster."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
from dataclasses import dataclass

from flowedge.cluster.certificate_role import Roles, read_roles, text_of
from flowedge.cluster.member import short_id
from flowedge.core.errors import BadRequestError
from flowedge.network.address import split_address

_PREFIX = "flowedge1-"
_SECRET_BYTES = 24
_MAX_LENGTH = 4096
_MAX_ADDRESSES = 16
_DAMAGED = (
    "the join token is damaged, or another version of FlowEdge made it; copy the whole token, or make a new "
    "one with `flowedge cluster token`"
)


@dataclass(frozen=True)
class JoinToken:
    """The content of the text that `flowedge cluster token` prints.

    Attributes:
        addresses: of the enrolment service, host:port, to be tried in order.
        fingerprint: SHA-256 of the CA's certificate, 64 hexadecimal digits.
        secret: random bytes, of which the CA stores the hash only.
        roles: what the new member's certificate will be for, so that the device knows whether it has such a
            certificate already. The CA goes by its own record.
    """

    addresses: tuple[str, ...]
    fingerprint: str
    secret: bytes
    roles: Roles

    @property
    def cluster(self) -> str:
        """The id of the cluster, see `cluster_id`."""
        return short_id(self.fingerprint)

    def encode(self) -> str:
        """The token as text without spaces."""
        content = {
            "a": list(self.addresses),
            "f": self.fingerprint,
            "s": base64.urlsafe_b64encode(self.secret).decode(),
            "r": text_of(self.roles),
        }
        packed = json.dumps(content, separators=(",", ":")).encode()
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """The token in a text, whose white space is ignored."""
        text = "".join(text.split())
        if not text.startswith(_PREFIX) or len(text) > _MAX_LENGTH:
            raise BadRequestError(
                f"this is not a join token, which starts with {_PREFIX}; copy the whole text that "
                "`flowedge cluster token` printed"
            )
        packed = text.removeprefix(_PREFIX)
        try:
            content = json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
            token = cls(
                tuple(str(address) for address in content["a"]),
                bytes.fromhex(content["f"]).hex(),
                base64.urlsafe_b64decode(content["s"]),
                read_roles(str(content["r"])),
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            binascii.Error,
            BadRequestError,
        ) as error:
            raise BadRequestError(_DAMAGED) from error
        if len(token.fingerprint) != 64 or not 0 < len(token.addresses) <= _MAX_ADDRESSES:
            raise BadRequestError(_DAMAGED)
        for address in token.addresses:
            split_address(address)
        return token


def new_secret() -> bytes:
    return secrets.token_bytes(_SECRET_BYTES)


def secret_hash(secret: bytes) -> str:
    """The hash that the CA stores. A plain hash is enough, since the secret is random."""
    return hashlib.sha256(secret).hexdigest()
