"""Channels whose calls carry the secret of a command (see command_secret).

Interceptors would do the same, but gRPC's asyncio replaces the calls of streams by objects of its own then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio

from flowedge.cluster.command_secret import METADATA_KEY

_KINDS = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})


class _SecretChannel:
    """A channel, asyncio's or the blocking one, that adds a secret to the metadata of each call."""

    def __init__(self, channel: Any, secret: str) -> None:
        self._channel = channel
        self._secret = secret

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        return self._with_secret(found) if name in _KINDS else found

    def _with_secret(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Callable[..., Any]:
            call = make(*arguments, **options)

            def calling(*requests: Any, metadata: Any = None, **call_options: Any) -> Any:
                carried = [*(metadata or ()), (METADATA_KEY, self._secret)]
                return call(*requests, metadata=carried, **call_options)

            return calling

        return made

    def __enter__(self) -> _SecretChannel:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._channel.__exit__(*error)

    async def __aenter__(self) -> _SecretChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)


def carrying(channel: grpc.Channel, secret: str) -> grpc.Channel:
    """Return a channel whose calls carry the secret, or the channel itself if the secret is ""."""
    return cast(grpc.Channel, _SecretChannel(channel, secret)) if secret else channel


def carrying_async(channel: grpc.aio.Channel, secret: str) -> grpc.aio.Channel:
    """`carrying` for asyncio."""
    return cast(grpc.aio.Channel, _SecretChannel(channel, secret)) if secret else channel
