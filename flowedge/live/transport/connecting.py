"""Making the connection that carries a link's frames, at both of its ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.member import CertificateHolder
from flowedge.cluster.tls.peer_verification import shown_holder
from flowedge.core.errors import AccessError
from flowedge.live.compute_thread import set_once

TOKEN_BYTES = 32
ACCEPTED = b"\x01"  # sent back for a token that is good
COUNT = struct.Struct("<Q")  # of frames

T = TypeVar("T")
_PROTOCOL = "flowedge-link"  # by ALPN; a server of gRPC takes another


async def connect(
    host: str, port: int, token: bytes, store: CredentialStore | None, member: str | None
) -> socket.socket:
    """Return a connection that carries frames from now on; the caller puts a deadline on this.

    Args:
        token: of the offer.
        store: credentials to show; None for plaintext.
        member: URI that the peer's certificate must have (see Member.uri); None in plaintext.

    Raises:
        AccessError: when another member answers.
        OSError: when the connection fails, or the peer does not take the token.
    """
    connected = await open_to(host, port, store, member)
    try:
        await _send(connected, token)
        if await receive(connected, len(ACCEPTED)) != ACCEPTED:
            raise ConnectionError("the device does not answer as an agent does that expects this connection")
    except BaseException:
        connected.close()
        raise
    return connected


async def open_to(host: str, port: int, store: CredentialStore | None, member: str | None) -> socket.socket:
    """Return a connection on which nothing has been sent; see `connect`."""
    connected = await _open(host, port)
    try:
        if store is not None:
            connected = _encrypted(connected, store, server_side=False)
            await shake_hands(connected)
            holder = shown_certificate(connected, store)
            if holder.member.uri != member:
                raise AccessError(f"{host} port {port} is {holder.member}, not the expected {member}")
    except BaseException:
        connected.close()
        raise
    return connected


async def resume(connected: socket.socket, token: bytes, received: int) -> int:
    """Take up a link by a new connection; return the number of frames that the other side has received.

    Args:
        token: by which the link is taken up.
        received: number of frames that this side has received.

    Raises:
        OSError: when the other side does not take the token.
    """
    await _send(connected, token + COUNT.pack(received))
    answer = await receive(connected, len(ACCEPTED) + COUNT.size)
    if not answer.startswith(ACCEPTED):
        raise ConnectionError("the device does not take up the link")
    return int(COUNT.unpack_from(answer, len(ACCEPTED))[0])


def accepting(accepted: socket.socket, store: CredentialStore | None) -> socket.socket:
    """Return an accepted connection, in TLS if there are credentials; `shake_hands` comes next."""
    accepted.setblocking(False)
    return accepted if store is None else _encrypted(accepted, store, server_side=True)


async def shake_hands(connected: socket.socket) -> None:
    """Complete the handshake of TLS; do nothing in plaintext.

    Raises:
        OSError: when it fails.
    """
    if isinstance(connected, ssl.SSLSocket):
        await _when_possible(connected, connected.do_handshake)


async def receive(connected: socket.socket, count: int) -> bytes:
    """Return the next bytes of a connection, and read nothing behind them.

    Raises:
        ConnectionError: when it ends before that.
    """
    received = b""
    while len(received) < count:
        found = await _when_possible(connected, partial(connected.recv, count - len(received)))
        if not found:
            raise ConnectionError("it closed the connection")
        received += found
    return received


async def accept(connected: socket.socket, more: bytes = b"") -> None:
    """Tell the peer that its token is good, and `more`."""
    await _send(connected, ACCEPTED + more)


def shown_certificate(connected: socket.socket, store: CredentialStore) -> CertificateHolder:
    """Return the holder of the certificate that the peer has shown in the handshake.

    Raises:
        AccessError: when it is not of this cluster, not valid now, or revoked.
    """
    assert isinstance(connected, ssl.SSLSocket)
    return shown_holder(connected.getpeercert(binary_form=True), store, store.credentials)


async def _open(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers."""
    loop = asyncio.get_running_loop()
    failure: OSError = ConnectionError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        plain = socket.socket(family, kind, protocol)
        plain.setblocking(False)
        try:
            await loop.sock_connect(plain, address)
        except OSError as error:
            failure = error
            plain.close()
        except BaseException:
            plain.close()
            raise
        else:
            return plain
    raise failure


def _encrypted(plain: socket.socket, store: CredentialStore, *, server_side: bool) -> ssl.SSLSocket:
    authority = store.credentials.authority_pem.decode()
    context = _context(store.member_file, store.member_file.read_bytes(), authority, server_side)
    return context.wrap_socket(plain, server_side=server_side, do_handshake_on_connect=False)


@lru_cache(maxsize=4)
def _context(member_file: Path, content: bytes, authority: str, server_side: bool) -> ssl.SSLContext:  # noqa: ARG001
    """Return the settings of TLS for a key and a certificate.

    A peer has to show a certificate of the same CA. Which member it is gets checked after the handshake.

    Args:
        content: of the file, which a renewal replaces.
        authority: the certificate of the CA, in PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    context.load_cert_chain(member_file)
    context.set_alpn_protocols([_PROTOCOL])
    if server_side:
        context.num_tickets = 0  # nobody resumes a session, and a writer should not have to read tickets
    return context


async def _send(connected: socket.socket, data: bytes) -> None:
    """Send a few bytes, for which a new connection always has room."""
    sent = await _when_possible(connected, partial(connected.send, data))
    if sent != len(data):
        raise ConnectionError("it takes no data")


async def _when_possible(connected: socket.socket, step: Callable[[], T]) -> T:
    """Return the result of a step of a connection, which is tried again whenever it would have blocked."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return step()
        except (ssl.SSLWantReadError, BlockingIOError):
            await _ready(loop, connected.fileno(), writing=False)
        except ssl.SSLWantWriteError:
            await _ready(loop, connected.fileno(), writing=True)


async def _ready(loop: asyncio.AbstractEventLoop, descriptor: int, *, writing: bool) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    watch, forget = (
        (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    )
    watch(descriptor, set_once, ready, None)
    try:
        await ready
    finally:
        forget(descriptor)
