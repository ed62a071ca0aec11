"""gRPC channels: in mutual TLS with credentials, in plaintext only where that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from flowedge.security.credentials.certificates import utc_now
from flowedge.security.process import Security, security_for
from flowedge.security.tls.peer_verification import VerifiedPeer, verify_peer, verify_peer_async

Options = Sequence[tuple[str, Any]]


async def open_channel(
    address: str, options: Options, *, name: str | None = None, security: Security | None = None
) -> grpc.aio.Channel:
    """Open a channel to the device at an address.

    name: the device's name, if it is known.

    Raises:
        AccessError: when the peer's certificate is not valid or names another device, or plaintext is not
            allowed.
        DeviceLostError: when the peer does not answer.
    """
    channel, _ = await open_verified(address, options, name, security_for(address, security))
    return channel


def open_sync_channel(
    address: str, options: Options, *, name: str | None = None, security: Security | None = None
) -> grpc.Channel:
    """`open_channel` for blocking code."""
    channel, _ = open_sync_verified(address, options, name, security_for(address, security))
    return channel


async def open_verified(
    address: str, options: Options, name: str | None, security: Security
) -> tuple[grpc.aio.Channel, VerifiedPeer | None]:
    """Open a channel as `open_channel`; also return the peer, None in plaintext."""
    if security.store is None:
        security.check_plaintext(address)
        return grpc.aio.insecure_channel(address, options=options), None
    peer = await verify_peer_async(address, security.check_valid(utc_now()), name)
    return grpc.aio.secure_channel(address, tls_for(peer), options=options_for(peer, options)), peer


def open_sync_verified(
    address: str, options: Options, name: str | None, security: Security
) -> tuple[grpc.Channel, VerifiedPeer | None]:
    """`open_verified` for blocking code."""
    if security.store is None:
        security.check_plaintext(address)
        return grpc.insecure_channel(address, options=options), None
    peer = verify_peer(address, security.check_valid(utc_now()), name)
    return grpc.secure_channel(address, tls_for(peer), options=options_for(peer, options)), peer


def tls_for(peer: VerifiedPeer) -> grpc.ChannelCredentials:
    own = peer.credentials
    return grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)


def options_for(peer: VerifiedPeer, options: Options) -> list[tuple[str, Any]]:
    """Channel options that demand the very certificate that was verified."""
    return [*options, ("grpc.ssl_target_name_override", peer.holder.dns_name)]
