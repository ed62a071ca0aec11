"""gRPC channels: in mutual TLS with credentials, in plaintext only where that is allowed.

Programs use a connection for weeks: it opens a new channel once certificates have been renewed.
"""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import grpc
import grpc.aio

from flowedge.cluster.credentials.certificates import renewal_time, utc_now
from flowedge.cluster.process import Security, security_for
from flowedge.cluster.tls.peer_verification import (
    VerifiedPeer,
    refuse_peer,
    verify_peer,
    verify_peer_async,
)
from flowedge.cluster.tls.secret_channel import carrying, carrying_async

Options = Sequence[tuple[str, Any]]
_MAX_CHANNELS = 2  # calls on the previous channel may still be running
_RETRY = datetime.timedelta(hours=1)  # for a peer that has not renewed its certificate in time


async def open_channel(
    address: str,
    options: Options,
    *,
    name: str | None = None,
    member: str | None = None,
    security: Security | None = None,
) -> grpc.aio.Channel:
    """Open a channel to the device at an address.

    Args:
        name: the device's name, if it is known.
        member: the URI that its certificate must have, if it is known (see Member.uri).

    Raises:
        AccessError: when the peer's certificate is not valid or names another device, or plaintext is not
            allowed.
        DeviceLostError: when the peer does not answer.
    """
    return (await open_verified(address, options, name, security_for(address, security), member))[0]


def open_sync_channel(
    address: str, options: Options, *, name: str | None = None, security: Security | None = None
) -> grpc.Channel:
    """`open_channel` for blocking code."""
    return open_sync_verified(address, options, name, security_for(address, security))[0]


async def open_verified(
    address: str, options: Options, name: str | None, security: Security, member: str | None = None
) -> tuple[grpc.aio.Channel, VerifiedPeer | None]:
    """Open a channel as `open_channel`; also return the peer, None in plaintext."""
    if security.store is None:
        security.check_plaintext(address)
        plain = grpc.aio.insecure_channel(address, options=options)
        return carrying_async(plain, security.secret), None
    peer = await verify_peer_async(address, security.check_valid(utc_now()), name)
    if member is not None and peer.holder.member.uri != member:
        raise refuse_peer(address, f"it is {peer.holder.member}, not the expected {member}")
    return grpc.aio.secure_channel(address, tls_for(peer), options=options_for(peer, options)), peer


def open_sync_verified(
    address: str, options: Options, name: str | None, security: Security
) -> tuple[grpc.Channel, VerifiedPeer | None]:
    """`open_verified` for blocking code."""
    if security.store is None:
        security.check_plaintext(address)
        return carrying(grpc.insecure_channel(address, options=options), security.secret), None
    peer = verify_peer(address, security.check_valid(utc_now()), name)
    return grpc.secure_channel(address, tls_for(peer), options=options_for(peer, options)), peer


def tls_for(peer: VerifiedPeer) -> grpc.ChannelCredentials:
    own = peer.credentials
    return grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)


def options_for(peer: VerifiedPeer, options: Options) -> list[tuple[str, Any]]:
    """Channel options that demand the very certificate that was verified."""
    return [*options, ("grpc.ssl_target_name_override", peer.holder.dns_name)]


@dataclass(eq=False)
class _ConnectionState:
    """What both kinds of connection have: the target, and whether the latest channel is still good.

    Attributes:
        name: the device's name, if it is known.
    """

    address: str
    options: Options
    _: KW_ONLY
    name: str | None = None
    security: Security | None = None
    _closed: bool = field(default=False, init=False)
    _opened: datetime.datetime | None = field(default=None, init=False)  # when the channel was opened
    _peer: VerifiedPeer | None = field(default=None, init=False)
    _lost: bool = field(default=False, init=False)

    def note(self, error: grpc.RpcError | grpc.aio.AioRpcError) -> None:
        """Take note of a failed call: the peer may have a new certificate since the channel was opened."""
        code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        self._lost = self._lost or code is grpc.StatusCode.UNAVAILABLE

    def _current_security(self) -> Security:
        if self._closed:
            raise ValueError("the connection has been closed")
        return security_for(self.address, self.security)

    def _needs_channel(self, security: Security) -> bool:
        """Return whether there is no channel yet, or a certificate was renewed or should have been."""
        if self._opened is None:
            return True
        peer = self._peer
        if peer is None:
            return security.store is not None
        if self._lost or security.store is None or security.store.credentials is not peer.credentials:
            return True
        now, life = utc_now(), peer.holder.not_after - peer.holder.not_before
        return now >= renewal_time(peer.holder) and now - self._opened >= min(_RETRY, life / 20)

    def _note_opened(self, peer: VerifiedPeer | None) -> None:
        self._peer, self._opened, self._lost = peer, utc_now(), False


@dataclass(eq=False)
class Connection(_ConnectionState):
    """A connection to one device, opened by the first call. Usable from several threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _channels: list[grpc.Channel] = field(default_factory=list, init=False)

    def channel(self) -> grpc.Channel:
        """The channel for the next call. Errors as `open_channel`; ValueError after `close`."""
        with self._lock:
            security = self._current_security()
            if self._needs_channel(security):
                channel, peer = open_sync_verified(self.address, self.options, self.name, security)
                self._note_opened(peer)
                self._channels.append(channel)
                if len(self._channels) > _MAX_CHANNELS:
                    self._channels.pop(0).close()
            return self._channels[-1]

    def close(self) -> None:
        """Close all channels, which ends their calls."""
        with self._lock:
            self._closed = True
            for channel in self._channels:
                channel.close()


@dataclass(eq=False)
class AsyncConnection(_ConnectionState):
    """`Connection` for asyncio."""

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _channels: list[grpc.aio.Channel] = field(default_factory=list, init=False)

    async def channel(self) -> grpc.aio.Channel:
        async with self._lock:
            security = self._current_security()
            if self._needs_channel(security):
                channel, peer = await open_verified(self.address, self.options, self.name, security)
                self._note_opened(peer)
                self._channels.append(channel)
                if len(self._channels) > _MAX_CHANNELS:
                    await self._channels.pop(0).close()
            return self._channels[-1]

    async def close(self) -> None:
        self._closed = True
        for channel in self._channels:
            await channel.close()
