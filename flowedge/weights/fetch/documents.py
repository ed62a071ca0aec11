"""Getting a document of a model, such as its manifest, from whoever gives it first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.weights.fetch.fetcher import SourceAddress
from flowedge.weights.fetch.peer import Peer
from flowedge.weights.manifest.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from flowedge.weights.settings import WeightsSettings

T = TypeVar("T")
RETRY_S = 0.5

_log = logging.getLogger(__name__)


async def fetch_document(
    device: str,
    digest: str,
    parse: Callable[[bytes, str], T],
    sources: Sequence[SourceAddress],
    settings: WeightsSettings,
) -> T:
    """What is in a document of a hash. DeviceLostError, of `device`, when nobody gives it in time.

    parse: what is in the bytes that came for a hash; ProtocolError when they are something else.
    """
    deadline = time.monotonic() + settings.give_up_s
    while True:
        problems = []
        for source in sources:
            peer = Peer(source.address, settings)
            try:
                return parse(await peer.read_all(digest, MAX_MANIFEST_BYTES), digest)
            except FlowEdgeError as error:
                _log.warning("%s is not from %s: %s", digest, source.address, error)
                problems.append(f"{source.address}: {error}")
            finally:
                await peer.close()
        if not sources or time.monotonic() > deadline:
            reasons = "; ".join(problems) or "no device is known that may have it"
            raise DeviceLostError(device, f"nobody gave the manifest of the model: {reasons}")
        await asyncio.sleep(RETRY_S)


async def fetch_manifest(
    device: str, model: str, sources: Sequence[SourceAddress], settings: WeightsSettings
) -> Manifest:
    """The manifest of an id, checked. DeviceLostError, of `device`, when nobody gives it in time."""
    return await fetch_document(device, model, parse_manifest, sources, settings)
