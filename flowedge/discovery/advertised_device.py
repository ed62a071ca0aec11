"""What a device advertises about itself on the network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flowedge.core.errors import ProtocolError
from flowedge.version import PROTOCOL_VERSION

_ANY = re.compile(".*")
_DIGITS = re.compile("[0-9]+")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_CLUSTER = re.compile(r"[0-9a-f]{16}")
_COMPUTE = re.compile(r"cpu|cuda:[0-9]{1,3}")
_TEXT_LIMIT = 63
_MEMORY_LIMIT = 2**50
_PROTOCOL_LIMIT = 2**16


@dataclass(frozen=True, order=True)
class AdvertisedDevice:
    """A device as it is advertised; ordered by name, then id.

    Attributes:
        address: "host:port" of its agent, the address to try first.
        memory_total: bytes.
        other_addresses: addresses of the same agent on its other interfaces.
        instance: differs at each start of the agent; empty when it is not advertised.
        cluster: id of the cluster that the device has joined; empty for no cluster.
        compute: torch's name of the device that it computes on; empty when it is not advertised.
    """

    name: str
    id: str
    address: str
    kind: str
    memory_total: int
    protocol_version: int
    version: str
    other_addresses: tuple[str, ...] = ()
    instance: str = ""
    cluster: str = ""
    compute: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, the one to try first in front."""
        return (self.address, *self.other_addresses)

    @property
    def mismatch(self) -> str | None:
        """Why this device cannot work with this installation; None when it can work with it."""
        return mismatch(self.name, self.address, self.protocol_version, self.version)

    def to_txt(self) -> dict[str, str]:
        """Return the TXT fields, which carry everything but the addresses."""
        fields = {
            "cluster": self.cluster,
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "memory": str(self.memory_total),
            "protocol": str(self.protocol_version),
            "version": self.version,
            "instance": self.instance,
            "compute": self.compute,
        }
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_txt(cls, txt: Mapping[bytes, bytes | None], address: str, *others: str) -> AdvertisedDevice:
        """Read TXT fields from the network.

        Raises:
            ProtocolError: when a field is missing or malformed; it names the field.
        """
        return cls(
            name=_text(txt, "name", address),
            id=_text(txt, "id", address, _ID),
            address=address,
            kind=_text(txt, "kind", address),
            memory_total=_number(txt, "memory", address, _MEMORY_LIMIT),
            protocol_version=_number(txt, "protocol", address, _PROTOCOL_LIMIT),
            version=_text(txt, "version", address),
            other_addresses=others,
            instance=_text(txt, "instance", address) if txt.get(b"instance") else "",
            cluster=_text(txt, "cluster", address, _CLUSTER) if b"cluster" in txt else "",
            compute=_text(txt, "compute", address, _COMPUTE) if b"compute" in txt else "",
        )


def mismatch(name: str, address: str, protocol_version: int, version: str) -> str | None:
    """Return why a device of this protocol version cannot work with this installation, or None."""
    if protocol_version == PROTOCOL_VERSION:
        return None
    return (
        f"device {name} ({address}) speaks protocol {protocol_version} (FlowEdge {version}), this "
        f"installation speaks {PROTOCOL_VERSION}; install the same version on both"
    )


def _text(
    txt: Mapping[bytes, bytes | None], field: str, address: str, pattern: re.Pattern[str] = _ANY
) -> str:
    raw = txt.get(field.encode())
    if not raw:
        raise ProtocolError(f"the device at {address} does not advertise its {field}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the device at {address} advertises a {field} that is not text") from error
    # Characters that are not printable could rewrite the terminal that shows them.
    if len(text) > _TEXT_LIMIT or not text.isprintable():
        raise ProtocolError(f"the device at {address} advertises a {field} that is not short, printable text")
    if not pattern.fullmatch(text):
        raise ProtocolError(f"the device at {address} advertises {text!r} as its {field}")
    return text


def _number(txt: Mapping[bytes, bytes | None], field: str, address: str, limit: int) -> int:
    number = int(_text(txt, field, address, _DIGITS))
    if number > limit:
        raise ProtocolError(f"the device at {address} advertises {number} as its {field}")
    return number
