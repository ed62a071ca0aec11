"""Getting the manifest of a model from whoever gives it first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from flowedge.errors import DeviceLostError, FlowEdgeError
from flowedge.weights.fetcher import SourceAddress
from flowedge.weights.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from flowedge.weights.peer import Peer
from flowedge.weights.settings import WeightsSettings

RETRY_S = 0.5

_log = logging.getLogger(__name__)


async def fetch_manifest(
    device: str, model: str, sources: Sequence[SourceAddress], settings: WeightsSettings
) -> Manifest:
    """The manifest of an id, checked. DeviceLostError, of `device`, when nobody gives it in time."""
    deadline = time.monotonic() + settings.give_up_s
    while True:
        problems = []
        for source in sources:
            peer = Peer(source.address, settings)
            try:
                return parse_manifest(await peer.read_all(model, MAX_MANIFEST_BYTES), model)
            except FlowEdgeError as error:
                _log.warning("no manifest from %s: %s", source.address, error)
                problems.append(f"{source.address}: {error}")
            finally:
                await peer.close()
        if not sources or time.monotonic() > deadline:
            reasons = "; ".join(problems) or "no device is known that may have it"
            raise DeviceLostError(device, f"nobody gave the manifest of the model: {reasons}")
        await asyncio.sleep(RETRY_S)
