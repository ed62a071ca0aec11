"""gRPC channels: in mutual TLS with credentials, in plaintext only where that is allowed.

Programs use a connection for weeks: it opens a new channel once certificates have been renewed.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

import grpc
import grpc.aio

from flowedge.cluster.certificates import renewal_time, utc_now
from flowedge.cluster.process import METADATA_KEY, Security, security_for
from flowedge.cluster.tls.peer_verification import VerifiedPeer, refuse_peer, verify_peer
from flowedge.core.errors import AccessError
from flowedge.network.connection_failure import check_name

Options = Sequence[tuple[str, Any]]
_MAX_CHANNELS = 2  # calls on the previous channel may still be running
_CALLABLES = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})
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


async def open_verified(
    address: str, options: Options, name: str | None, security: Security, member: str | None = None
) -> tuple[grpc.aio.Channel, VerifiedPeer | None]:
    """Open a channel as `open_channel`; also return the peer, None in plaintext."""
    if security.store is None:
        try:
            security.check_plaintext(address)
        except AccessError:
            await check_name(address)  # of a machine that there is not, nothing else is worth saying
            raise
        plain = grpc.aio.insecure_channel(address, options=options)
        return _carrying(plain, security.secret), None
    peer = await verify_peer(address, security.check_valid(utc_now()), name)
    if member is not None and peer.holder.member.uri != member:
        raise refuse_peer(address, f"it is {peer.holder.member}, not the expected {member}")
    return grpc.aio.secure_channel(address, tls_for(peer), options=options_for(peer, options)), peer


def tls_for(peer: VerifiedPeer) -> grpc.ChannelCredentials:
    own = peer.credentials
    return grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)


def options_for(peer: VerifiedPeer, options: Options) -> list[tuple[str, Any]]:
    """Channel options that demand the very certificate that was verified."""
    return [*options, ("grpc.ssl_target_name_override", peer.holder.dns_name)]


@dataclass(eq=False)
class Connection:
    """A connection to one device, opened by the first call.

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
    _silent: bool = field(default=False, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _channels: list[grpc.aio.Channel] = field(default_factory=list, init=False)

    @property
    def is_plaintext(self) -> bool:
        """Whether it was opened in plaintext."""
        return self._opened is not None and self._peer is None

    async def channel(self) -> grpc.aio.Channel:
        """The channel for the next call. Errors as `open_channel`; ValueError after `close`."""
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
        """Close all channels, which ends their calls."""
        self._closed = True
        for channel in self._channels:
            await channel.close()

    def note_silent(self, channel: grpc.aio.Channel | None) -> None:
        """Take note that nothing comes over a channel: the next call is made over another one.

        Its TCP connection may wait for as long again as the network has failed before it sends anything.
        """
        self._silent = self._silent or (bool(self._channels) and channel is self._channels[-1])

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
        if self._opened is None or self._silent:
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
        self._silent = False


class _SecretChannel:
    """A channel that adds the secret of a command to the metadata of each call.

    An interceptor would do the same, but gRPC replaces the calls of streams by objects of its own then.
    """

    def __init__(self, channel: Any, secret: str) -> None:
        self._channel = channel
        self._secret = secret

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        return self._with_secret(found) if name in _CALLABLES else found

    def _with_secret(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Callable[..., Any]:
            call = make(*arguments, **options)

            def calling(*requests: Any, metadata: Any = None, **call_options: Any) -> Any:
                carried = [*(metadata or ()), (METADATA_KEY, self._secret)]
                return call(*requests, metadata=carried, **call_options)

            return calling

        return made

    async def __aenter__(self) -> _SecretChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)


def _carrying(channel: grpc.aio.Channel, secret: str) -> grpc.aio.Channel:
    """Return a channel whose calls carry the secret, or the channel itself if the secret is ""."""
    return cast(grpc.aio.Channel, _SecretChannel(channel, secret)) if secret else channel
