"""How a device makes itself known, and looks for others."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError
from flowedge.net.address import split_address


@dataclass(frozen=True)
class DiscoverySettings:
    """Times in seconds. BadRequestError for values that cannot be used.

    An interface is written as its name (a shell pattern: "eth*") or as a subnet ("192.168.1.0/24").
    """

    peers: tuple[str, ...] = ()  # host:port of agents that multicast does not reach
    allow: tuple[str, ...] = ()  # interfaces to use, virtual ones too; empty: all that are not virtual
    deny: tuple[str, ...] = ()  # interfaces never to use; goes before `allow`
    ttl_s: int = 30  # who hears nothing of this device for so long takes it for stale
    poll_s: float = 5.0  # how often to look for interfaces that have come, gone or changed

    def __post_init__(self) -> None:
        for peer in self.peers:
            split_address(peer)
        for pattern in (*self.allow, *self.deny):
            if not pattern or any(character.isspace() for character in pattern):
                raise BadRequestError(f"{pattern!r} is neither the name of an interface nor a subnet")
        if not 1 <= self.ttl_s <= 3600:
            raise BadRequestError(f"an announcement is good for 1 to 3600 s, not {self.ttl_s}")
        if not self.poll_s > 0:
            raise BadRequestError(f"interfaces are looked at every {self.poll_s} s; it must be above 0")
