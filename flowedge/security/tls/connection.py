"""Channels for programs that keep them for weeks: one is made anew when certificates have been renewed."""

from __future__ import annotations

import asyncio
import datetime
import threading

import grpc
import grpc.aio

from flowedge.security.credentials.renewal_time import renewal_time
from flowedge.security.process import Security, security_for
from flowedge.security.tls.channels import Options, open_introduced, open_sync_introduced
from flowedge.security.tls.introduction import VerifiedPeer

_KEPT = 2  # channels: the calls of the one before the last may still be going on
_LOOK_AGAIN = datetime.timedelta(hours=1)  # for a certificate that should have been renewed


class Freshness:
    """Whether a channel is still good for the next call."""

    def __init__(self, introduced: VerifiedPeer | None, since: datetime.datetime) -> None:
        self._introduced = introduced
        self._since = since
        self._lost = False

    def note(self, error: grpc.RpcError | grpc.aio.AioRpcError) -> None:
        """A call has failed; one that found nobody may have asked for a certificate of before."""
        code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        self._lost = self._lost or code is grpc.StatusCode.UNAVAILABLE

    def outdated(self, security: Security, now: datetime.datetime) -> bool:
        """Whether the next call needs another channel: a certificate was renewed, or should have been."""
        introduced = self._introduced
        if introduced is None:
            return security.store is not None
        if self._lost or security.store is None or security.store.identity is not introduced.identity:
            return True
        life = introduced.holder.not_after - introduced.holder.not_before
        return now >= renewal_time(introduced.holder) and now - self._since >= min(_LOOK_AGAIN, life / 20)


class Connection:
    """A channel to one device, made when it is first asked for. Usable from several threads."""

    def __init__(
        self, address: str, options: Options, *, name: str | None = None, security: Security | None = None
    ) -> None:
        """`name` is what the device has to be called, if that is known."""
        self._address = address
        self._options = options
        self._name = name
        self._security = security
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._freshness: Freshness | None = None
        self._closed = False

    def channel(self) -> grpc.Channel:
        """The channel for the next call. Raises what `open_channel` does, ValueError once it is closed."""
        with self._lock:
            if self._closed:
                raise ValueError("the connection has been closed")
            security = security_for(self._address, self._security)
            now = datetime.datetime.now(datetime.timezone.utc)
            if self._freshness is None or self._freshness.outdated(security, now):
                opened = open_sync_introduced(self._address, self._options, self._name, security)
                self._freshness = Freshness(opened[1], now)
                self._channels.append(opened[0])
                if len(self._channels) > _KEPT:
                    self._channels.pop(0).close()
            return self._channels[-1]

    def note(self, error: grpc.RpcError) -> None:
        """Told of a call that has failed."""
        if self._freshness is not None:
            self._freshness.note(error)

    def close(self) -> None:
        """Ends every call."""
        with self._lock:
            self._closed = True
            for channel in self._channels:
                channel.close()


class AsyncConnection:
    """`Connection` for asyncio."""

    def __init__(
        self, address: str, options: Options, *, name: str | None = None, security: Security | None = None
    ) -> None:
        self._address = address
        self._options = options
        self._name = name
        self._security = security
        self._lock = asyncio.Lock()
        self._channels: list[grpc.aio.Channel] = []
        self._freshness: Freshness | None = None
        self._closed = False

    async def channel(self) -> grpc.aio.Channel:
        """See `Connection.channel`."""
        async with self._lock:
            if self._closed:
                raise ValueError("the connection has been closed")
            security = security_for(self._address, self._security)
            now = datetime.datetime.now(datetime.timezone.utc)
            if self._freshness is None or self._freshness.outdated(security, now):
                opened = await open_introduced(self._address, self._options, self._name, security)
                self._freshness = Freshness(opened[1], now)
                self._channels.append(opened[0])
                if len(self._channels) > _KEPT:
                    await self._channels.pop(0).close()
            return self._channels[-1]

    def note(self, error: grpc.aio.AioRpcError) -> None:
        """Told of a call that has failed."""
        if self._freshness is not None:
            self._freshness.note(error)

    async def close(self) -> None:
        """Ends every call."""
        self._closed = True
        for channel in self._channels:
            await channel.close()
