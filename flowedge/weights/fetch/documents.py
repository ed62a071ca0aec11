"""Fetching a document, such as a manifest, from the first device that gives it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from flowedge.core.errors import DeviceLostError, FlowEdgeError
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import WeightsClient
from flowedge.weights.manifest.document import MAX_DOCUMENT_BYTES
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
    """Fetch and parse the document of a digest.

    parse: turns bytes and the expected digest into the document, or raises ProtocolError.

    Raises:
        DeviceLostError: when no source gives it within `settings.give_up_s`; it names `device`.
    """
    deadline = time.monotonic() + settings.give_up_s
    while True:
        problems = []
        for source in sources:
            client = WeightsClient(source.address, settings)
            try:
                return parse(await client.read_all(digest, MAX_DOCUMENT_BYTES), digest)
            except FlowEdgeError as error:
                _log.warning("%s did not give %s: %s", source.address, digest, error)
                problems.append(f"{source.address}: {error}")
            finally:
                await client.close()
        if not sources or time.monotonic() > deadline:
            reasons = "; ".join(problems) or "no device is known that may have it"
            raise DeviceLostError(device, f"no device gave the manifest of the model: {reasons}")
        await asyncio.sleep(RETRY_S)
