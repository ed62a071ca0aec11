"""The port to which the connections of links are made, after the call that opens the link has offered it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from flowedge.cluster.credentials import CredentialStore
from flowedge.core.errors import AccessError, DeadlineError, DeviceLostError, ProtocolError
from flowedge.live.transport.connecting import (
    COUNT,
    TOKEN_BYTES,
    accept,
    accepting,
    receive,
    shake_hands,
    shown_certificate,
)
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.network.address import host_ip
from flowedge.network.deadline import within
from flowedge.network.log_rate import LimitedLog
from flowedge.network.ports import check_can_listen, listening_error

HANDSHAKE_S = 10.0  # for a connection to show certificate and token
MAX_UNPROVEN = 256  # connections that have not shown a token
UNPROVEN_PER_ADDRESS = 32  # of one IP address
_OTHER_PORT = "end that program, or choose another port with agent.links_port (0 chooses a free one)"
_BACKLOG = 128

_refusals = LimitedLog(logging.getLogger(__name__), "link_refused", lines=60)


@dataclass(eq=False)
class OfferedConnection:
    """One connection that a caller may make.

    Attributes:
        member: URI in the caller's certificate (see Member.uri); None in plaintext.
        token: what the caller has to send first.
    """

    member: str | None
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))
    _connection: asyncio.Future[socket.socket] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    _is_taken: bool = False

    async def connected(self, seconds: float) -> socket.socket:
        """Return the connection, which becomes the caller's of this method.

        Raises:
            DeviceLostError: when it is not made within the time.
        """
        try:
            connection = await within(seconds, self._made(), "its connection was not made")
        except DeadlineError as error:
            raise DeviceLostError(self.member or "the caller", str(error)) from error
        self._is_taken = True
        return connection

    async def _made(self) -> socket.socket:
        return await asyncio.shield(self._connection)

    async def accept(self, connection: socket.socket) -> Callable[[socket.socket], None]:
        """Tell the caller that its token is good; return what takes the connection."""
        with contextlib.suppress(BlockingIOError):
            await accept(connection)
        return self.take

    def take(self, connection: socket.socket) -> None:
        """Hand over the connection that has shown the token."""
        if self._connection.done():
            connection.close()
        else:
            self._connection.set_result(connection)

    def withdraw(self) -> None:
        """Close the connection if nobody has taken it."""
        if not self._connection.cancel() and not self._is_taken:
            self._connection.result().close()


@dataclass(eq=False)
class ResumableLink:
    """A link that its caller may take up by further connections.

    Attributes:
        member: URI in the caller's certificate (see Member.uri); None in plaintext.
        token: what the caller has to send first on each of them.
        link: None until its first connection is there.
    """

    member: str | None
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))
    link: LinkConnection | None = None

    async def accept(self, connection: socket.socket) -> Callable[[socket.socket], None]:
        """Exchange the numbers of frames; return what takes the connection.

        Raises:
            AccessError: when the link cannot be taken up.
            ProtocolError: when the caller's number is wrong.
        """
        if self.link is None or not self.link.resumes:
            raise AccessError("the link of its token cannot be taken up")
        (count,) = COUNT.unpack(await receive(connection, COUNT.size))
        await accept(connection, COUNT.pack(self.link.detach()))
        return partial(self.link.attach, count=count)


class LinkListener:
    """Accepts the connections of links.

    A connection has to show a certificate of the member to whom the offer was made, and the offer's token.
    Connections that have shown neither are few: the oldest one is closed for a new one.
    """

    def __init__(self, device: str, store: CredentialStore | None) -> None:
        """device: this device's name, for errors; store: its credentials; None for plaintext."""
        self._device = device
        self._store = store
        self._offers: dict[bytes, OfferedConnection] = {}
        self._resumable: dict[bytes, ResumableLink] = {}
        self._socket: socket.socket | None = None
        self._unproven: OrderedDict[asyncio.Task[None], str] = OrderedDict()  # with their IP addresses
        self.port = 0

    def listen(self, host: str, port: int) -> None:
        """Accept connections from now on, on the running event loop.

        Args:
            host: an IP address of this device; empty for all its networks.
            port: 0 for a free port.

        Raises:
            DeviceError: when another program listens there.
        """
        check_can_listen(host, port, self._device, _OTHER_PORT)
        ip = host_ip(host or "0.0.0.0")
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            listening = socket.create_server((ip, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise listening_error(error, ip, port, self._device, _OTHER_PORT) from error
        listening.setblocking(False)
        self._socket = listening
        self.port = int(listening.getsockname()[1])
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept)

    async def close(self) -> None:
        """Accept no more connections; those that have been handed over go on."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        tasks = list(self._unproven)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def resuming(self, member: str | None) -> Iterator[ResumableLink]:
        """Yield a link that its caller may take up by further connections until the context is left.

        member: URI in the caller's certificate (see Member.uri); None in plaintext.
        """
        resumed = ResumableLink(member)
        self._resumable[resumed.token] = resumed
        try:
            yield resumed
        finally:
            del self._resumable[resumed.token]

    @asynccontextmanager
    async def offering(self, member: str | None) -> AsyncIterator[OfferedConnection]:
        """Yield an offer that stands until the context is left."""
        offer = OfferedConnection(member)
        self._offers[offer.token] = offer
        try:
            yield offer
        finally:
            self._offers.pop(offer.token, None)
            offer.withdraw()

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            accepted, (address, *_) = self._socket.accept()
        except OSError:  # the peer is gone already, or no descriptor is free
            return
        task = asyncio.get_running_loop().create_task(self._admit(accepted, str(address)))
        self._unproven[task] = str(address)
        task.add_done_callback(lambda done: self._unproven.pop(done, None))
        same = [each for each, host in self._unproven.items() if host == str(address)]
        if len(same) > UNPROVEN_PER_ADDRESS:
            same[0].cancel()
        elif len(self._unproven) > MAX_UNPROVEN:
            next(iter(self._unproven)).cancel()

    async def _admit(self, accepted: socket.socket, address: str) -> None:
        connection = accepted
        try:
            connection = accepting(accepted, self._store)
            take = await within(HANDSHAKE_S, self._prove(connection), "no token came")
            take(connection)
        except (OSError, AccessError, DeadlineError, ProtocolError) as error:
            connection.close()
            _refusals.add(f"refused a link's connection from {address}: {error}", peer=address)
        except BaseException:
            connection.close()
            raise

    async def _prove(self, connection: socket.socket) -> Callable[[socket.socket], None]:
        """Return what takes a connection, by the token that it shows.

        Raises:
            AccessError: when nothing was offered by that token.
        """
        await shake_hands(connection)
        holder = None if self._store is None else shown_certificate(connection, self._store)
        token = await receive(connection, TOKEN_BYTES)
        offer = self._offers.pop(token, None) or self._resumable.get(token)
        if offer is None:
            raise AccessError("no link was offered with its token")
        member = None if holder is None else holder.member.uri
        if member != offer.member:
            raise AccessError(f"{member} shows the token of {offer.member}")
        return await offer.accept(connection)
