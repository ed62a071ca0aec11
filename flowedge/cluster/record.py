"""What a device says of itself on the network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flowedge.errors import ProtocolError
from flowedge.version import PROTOCOL_VERSION

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_CLUSTER = re.compile(r"[0-9a-f]{16}")
_TEXT_LIMIT = 63
_MEMORY_LIMIT = 2**50
_PROTOCOL_LIMIT = 2**16


@dataclass(frozen=True, order=True)
class DeviceRecord:
    """One device as it is advertised; ordered by name, then id.

    Attributes:
        address: "host:port" its agent listens on.
        memory_total: bytes.
        cluster: id of the cluster that the device has joined; empty for none.
    """

    name: str
    id: str
    address: str
    kind: str
    memory_total: int
    protocol_version: int
    version: str
    cluster: str = ""

    @property
    def mismatch(self) -> str | None:
        """Why this device cannot work with this installation; None when it can."""
        if self.protocol_version == PROTOCOL_VERSION:
            return None
        return (
            f"device {self.name} ({self.address}) speaks protocol {self.protocol_version} "
            f"(FlowEdge {self.version}), this installation speaks {PROTOCOL_VERSION}; "
            "install the same version on both"
        )

    def to_txt(self) -> dict[str, str]:
        """The TXT fields that carry everything but the address."""
        joined = {"cluster": self.cluster} if self.cluster else {}
        return {
            **joined,
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "memory": str(self.memory_total),
            "protocol": str(self.protocol_version),
            "version": self.version,
        }

    @classmethod
    def from_txt(cls, txt: Mapping[bytes, bytes | None], address: str) -> DeviceRecord:
        """Reads TXT fields from the network; ProtocolError says which field is not as it should be."""
        device_id = _text(txt, "id", address)
        if not _ID.fullmatch(device_id):
            raise ProtocolError(f"the device at {address} advertises the id {device_id!r}")
        return cls(
            name=_text(txt, "name", address),
            id=device_id,
            address=address,
            kind=_text(txt, "kind", address),
            memory_total=_number(txt, "memory", address, _MEMORY_LIMIT),
            protocol_version=_number(txt, "protocol", address, _PROTOCOL_LIMIT),
            version=_text(txt, "version", address),
            cluster=_cluster(txt, address),
        )


def _cluster(txt: Mapping[bytes, bytes | None], address: str) -> str:
    if b"cluster" not in txt:
        return ""
    cluster = _text(txt, "cluster", address)
    if not _CLUSTER.fullmatch(cluster):
        raise ProtocolError(f"the device at {address} advertises {cluster!r} as its cluster")
    return cluster


def _text(txt: Mapping[bytes, bytes | None], field: str, address: str) -> str:
    raw = txt.get(field.encode())
    if not raw:
        raise ProtocolError(f"the device at {address} does not advertise its {field}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the device at {address} advertises a {field} that is not text") from error
    # What is not printable could rewrite the terminal it is shown on.
    if len(text) > _TEXT_LIMIT or not text.isprintable():
        raise ProtocolError(f"the device at {address} advertises a {field} that is not short, printable text")
    return text


def _number(txt: Mapping[bytes, bytes | None], field: str, address: str, limit: int) -> int:
    text = _text(txt, field, address)
    if not (text.isascii() and text.isdigit() and int(text) <= limit):
        raise ProtocolError(f"the device at {address} advertises {text!r} as its {field}")
    return int(text)
