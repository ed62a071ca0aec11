"""TLS handshakes of the gateway: until it has ended, a connection counts as one without a request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from flowedge.gateway.connections import ConnectionTable


class HandshakeProtocol(asyncio.Protocol):
    """A TCP connection that becomes a TLS connection of another protocol, which is then told that it is open.

    asyncio tells a protocol of its connection when the handshake has ended. One that never ends would hold a
    descriptor which is in no client's share.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        handshake_s: float,
        table: ConnectionTable,
    ) -> None:
        """Take what makes the other protocol, and for how many seconds a handshake may last."""
        self._make, self._context, self._handshake_s = make, context, handshake_s
        self._table = table
        self._transport: asyncio.Transport | None = None
        self._shaking: asyncio.Task[None] | None = None
        self._early = bytearray()  # what came with the end of the handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._table.enter(self, peer[0] if peer else "")
        self._shaking = asyncio.create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def give_way(self) -> None:
        """Close the connection for a new one."""
        if self._transport is not None:
            self._transport.abort()

    async def _shake(self, transport: asyncio.Transport) -> None:
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=self._handshake_s
            )
        except OSError:  # as ssl.SSLError is: the client has gone, is too slow, or speaks no TLS
            transport.abort()
            return
        finally:
            self._table.leave(self)
        if secure is None or secure.is_closing():
            transport.abort()
            return
        protocol = self._make()
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        if self._early:
            protocol.data_received(bytes(self._early))
