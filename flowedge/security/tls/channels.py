"""Every gRPC channel is made here: mutual TLS with an identity, plaintext only where that is allowed."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from flowedge.security.process import Security, security_for
from flowedge.security.tls.introduction import VerifiedPeer, introduce, introduce_async

Options = Sequence[tuple[str, Any]]


async def open_channel(
    address: str, options: Options, *, name: str | None = None, security: Security | None = None
) -> grpc.aio.Channel:
    """A channel to the device at `address`; `name` is what it has to be called, if that is known.

    Raises AccessError when another is there than may be, DeviceLostError when nobody answers.
    """
    channel, _ = await open_introduced(address, options, name, security_for(address, security))
    return channel


def open_sync_channel(
    address: str, options: Options, *, name: str | None = None, security: Security | None = None
) -> grpc.Channel:
    """`open_channel` for blocking code."""
    channel, _ = open_sync_introduced(address, options, name, security_for(address, security))
    return channel


async def open_introduced(
    address: str, options: Options, name: str | None, security: Security
) -> tuple[grpc.aio.Channel, VerifiedPeer | None]:
    """A channel and who is at its other end, None in plaintext. Errors as `open_channel`."""
    if security.store is None:
        security.check_plaintext(address)
        return grpc.aio.insecure_channel(address, options=options), None
    store = security.check_valid(datetime.datetime.now(datetime.timezone.utc))
    introduced = await introduce_async(address, store, name)
    credentials = _credentials(introduced)
    return grpc.aio.secure_channel(address, credentials, options=_naming(options, introduced)), introduced


def open_sync_introduced(
    address: str, options: Options, name: str | None, security: Security
) -> tuple[grpc.Channel, VerifiedPeer | None]:
    """`open_introduced` for blocking code."""
    if security.store is None:
        security.check_plaintext(address)
        return grpc.insecure_channel(address, options=options), None
    store = security.check_valid(datetime.datetime.now(datetime.timezone.utc))
    introduced = introduce(address, store, name)
    credentials = _credentials(introduced)
    return grpc.secure_channel(address, credentials, options=_naming(options, introduced)), introduced


def _credentials(introduced: VerifiedPeer) -> grpc.ChannelCredentials:
    identity = introduced.identity
    return grpc.ssl_channel_credentials(identity.authority_pem, identity.key_pem, identity.certificate_pem)


def _naming(options: Options, introduced: VerifiedPeer) -> list[tuple[str, Any]]:
    return [*options, ("grpc.ssl_target_name_override", introduced.holder.dns_name)]
