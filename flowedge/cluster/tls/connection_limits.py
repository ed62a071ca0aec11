"""Which connections of a server are ended, so that no peer can take them all."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flowedge.core.log_fields import about
from flowedge.network.tcp_connections import (
    TcpConnection,
    accepted_connections,
    open_descriptors,
    peer_of,
    shut_down,
)

PERIOD_S = 0.25
IDLE_PERIOD_S = 10.0  # while no peer can have too many: listing connections takes milliseconds
UNPROVEN_PER_ADDRESS = 32  # connections of one address on which no caller has shown that it may call
PER_MEMBER = 64  # connections of one member of the cluster
_LOG_AGAIN_S = 60.0

Peer: TypeAlias = tuple[str, int]  # IP address and port

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionBounds:
    """How many connections one peer may have.

    Attributes:
        unproven: of one IP address, without any call that was admitted.
        per_member: of one member of the cluster.
    """

    unproven: int = UNPROVEN_PER_ADDRESS
    per_member: int = PER_MEMBER


def surplus(
    connections: Iterable[TcpConnection], members: Mapping[Peer, str], bounds: ConnectionBounds
) -> list[TcpConnection]:
    """Return the connections to end.

    Of the connections of an address that are not proven, the oldest are ended: a peer that means to call does
    so soon. Of a member's connections, the newest are ended, since the older ones are at work.

    connections: the oldest first. members: the member behind each proven connection.
    """
    ended = []
    unproven, proven = Counter[str](), Counter[str]()
    ordered = list(connections)
    for connection in reversed(ordered):
        if connection.peer not in members:
            unproven[connection.host] += 1
            if unproven[connection.host] > bounds.unproven:
                ended.append(connection)
    for connection in ordered:
        if member := members.get(connection.peer):
            proven[member] += 1
            if proven[member] > bounds.per_member:
                ended.append(connection)
    return ended


@dataclass(eq=False)
class ConnectionLimits:
    """Ends the surplus connections of a server, and those of refused certificates.

    gRPC's own limit counts all connections together, so one peer could take them all.
    """

    bounds: ConnectionBounds = ConnectionBounds()
    _members: dict[Peer, str] = field(default_factory=dict)
    _refused: set[Peer] = field(default_factory=set)
    _order: dict[Peer, None] = field(default_factory=dict)  # the present connections, the oldest first
    _ended: Counter[str] = field(default_factory=Counter)  # by address, since the last log line

    def prove(self, peer: str, member: str) -> None:
        """Take note that a member's call was admitted. peer: gRPC's name of the connection's other end."""
        if found := peer_of(peer):
            self._members[found] = member

    def refuse(self, peer: str) -> None:
        """Have the connection ended, because its certificate is revoked or has expired."""
        if found := peer_of(peer):
            self._refused.add(found)

    async def run(self, port: int) -> None:
        """End the surplus connections to a port of this process until cancelled."""
        loop = asyncio.get_running_loop()
        logged = swept = -_LOG_AGAIN_S
        while True:
            await asyncio.sleep(PERIOD_S)
            if not self._may_end_some() and loop.time() - swept < IDLE_PERIOD_S:
                continue
            swept = loop.time()
            await self.sweep(port)
            if self._ended and loop.time() - logged >= _LOG_AGAIN_S:
                logged = loop.time()
                self._log_ended()

    async def sweep(self, port: int) -> None:
        """End the surplus connections of this moment."""
        # Calls on connections that are newer than the list may come while it is made.
        known, refused, self._refused = set(self._members), self._refused, set()
        listed = await asyncio.to_thread(accepted_connections, port)
        present = {connection.peer: connection for connection in listed}
        self._order = {peer: None for peer in self._order if peer in present} | dict.fromkeys(present)
        for peer in known - present.keys():
            del self._members[peer]
        ordered = [present[peer] for peer in self._order]
        ended = surplus(ordered, self._members, self.bounds)
        ended += [present[peer] for peer in refused & present.keys()]
        for connection in ended:
            shut_down(connection)
        self._ended.update(connection.host for connection in ended)

    def _may_end_some(self) -> bool:
        """Whether a connection may have to be ended, as far as the number of open files tells."""
        return bool(self._refused) or open_descriptors() > min(self.bounds.unproven, self.bounds.per_member)

    def _log_ended(self) -> None:
        for address, number in self._ended.most_common(3):
            fields = about(event="connections_ended", peer=address, number=number)
            _log.warning("%d connections of %s were ended: it had too many", number, address, extra=fields)
        self._ended.clear()
