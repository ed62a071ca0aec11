"""Connections that programs use for weeks: each opens a new channel once certificates have been renewed."""

from __future__ import annotations

import asyncio
import datetime
import threading

import grpc
import grpc.aio

from flowedge.security.credentials.certificates import renewal_time
from flowedge.security.process import Security, security_for
from flowedge.security.tls.channels import Options, open_sync_verified, open_verified
from flowedge.security.tls.peer_verification import VerifiedPeer
from flowedge.security.utc import utc_now

_MAX_CHANNELS = 2  # calls on the previous channel may still be running
_RETRY = datetime.timedelta(hours=1)  # for a peer that has not renewed its certificate in time


class _ConnectionState:
    """What the two kinds of connection have in common: the target, and whether the channel is still good."""

    def __init__(
        self, address: str, options: Options, *, name: str | None = None, security: Security | None = None
    ) -> None:
        """name: the device's name, if it is known."""
        self._target = (address, options, name)
        self._chosen = security
        self._closed = False
        self._opened: datetime.datetime | None = None  # when the channel was opened
        self._peer: VerifiedPeer | None = None
        self._lost = False

    def note(self, error: grpc.RpcError | grpc.aio.AioRpcError) -> None:
        """Take note of a failed call: the peer may have a new certificate since the channel was opened."""
        code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        self._lost = self._lost or code is grpc.StatusCode.UNAVAILABLE

    def _security(self) -> Security:
        if self._closed:
            raise ValueError("the connection has been closed")
        return security_for(self._target[0], self._chosen)

    def _needs_channel(self, security: Security) -> bool:
        """Whether there is no channel yet, or a certificate was renewed or should have been."""
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


class Connection(_ConnectionState):
    """A connection to one device, opened by the first call. Usable from several threads."""

    def __init__(
        self, address: str, options: Options, *, name: str | None = None, security: Security | None = None
    ) -> None:
        super().__init__(address, options, name=name, security=security)
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []

    def channel(self) -> grpc.Channel:
        """The channel for the next call. Errors as `open_channel`.

        Raises:
            ValueError: when the connection has been closed.
        """
        with self._lock:
            security = self._security()
            if self._needs_channel(security):
                channel, peer = open_sync_verified(*self._target, security)
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


class AsyncConnection(_ConnectionState):
    """`Connection` for asyncio."""

    def __init__(
        self, address: str, options: Options, *, name: str | None = None, security: Security | None = None
    ) -> None:
        super().__init__(address, options, name=name, security=security)
        self._lock = asyncio.Lock()
        self._channels: list[grpc.aio.Channel] = []

    async def channel(self) -> grpc.aio.Channel:
        async with self._lock:
            security = self._security()
            if self._needs_channel(security):
                channel, peer = await open_verified(*self._target, security)
                self._note_opened(peer)
                self._channels.append(channel)
                if len(self._channels) > _MAX_CHANNELS:
                    await self._channels.pop(0).close()
            return self._channels[-1]

    async def close(self) -> None:
        self._closed = True
        for channel in self._channels:
            await channel.close()
