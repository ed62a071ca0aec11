"""Fetching a whole model from other agents into the cache of this device."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from flowedge.core.errors import BadRequestError
from flowedge.storage.digest import is_digest
from flowedge.weights.fetch.documents import fetch_document
from flowedge.weights.fetch.fetcher import Fetcher
from flowedge.weights.fetch.progress import FetchProgress, OnTransfer
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.inventory import ask_all
from flowedge.weights.known_models import HASH_PREFIX, MIN_DIGITS, printable_name
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest.manifest import parse_manifest
from flowedge.weights.settings import WeightsSettings


async def pull_model(
    local_weights: LocalWeights, model: str, addresses: Sequence[str], on_transfer: OnTransfer
) -> str:
    """Fetch a model, named by its hash, from agents; return its id.

    Raises:
        BadRequestError: when the hash matches no or several models of the agents.
        DeviceLostError: when the agents do not send all of it.
        CapacityError: when it does not fit the cache.
    """
    settings, device = WeightsSettings(), platform.node() or "device"
    digits = model.removeprefix(HASH_PREFIX).lower()
    held, problems = await ask_all(addresses)
    found = {known.id: known.name for known in held if known.id.startswith(digits)}
    if is_digest(digits):
        found.setdefault(digits, digits[:12])
    if len(digits) < MIN_DIGITS or len(found) != 1:
        raise BadRequestError(
            f"{model} matches {len(found)} of the models that {len(addresses)} agents have; give "
            f"{MIN_DIGITS} or more digits that match exactly one"
            + (f" ({'; '.join(problems)})" if problems else "")
        )
    [(model_id, name)] = found.items()
    sources = [SourceAddress(address) for address in addresses]
    manifest = await fetch_document(device, model_id, parse_manifest, sources, settings)
    store = local_weights.store

    async def on_progress(progress: FetchProgress) -> None:
        on_transfer(printable_name(name), progress)

    with local_weights.adding(manifest, name):
        for digest in manifest.sizes:
            if store.size(digest) is not None:
                store.verify(digest)
        await Fetcher(device, local_weights, manifest.sizes, sources, settings, on_progress).run()
    return model_id
