"""Bringing all of a model into the cache of this device."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence

from flowedge.core.errors import BadRequestError
from flowedge.storage.digest import READ_BYTES, is_digest
from flowedge.weights.fetch.documents import fetch_manifest
from flowedge.weights.fetch.fetcher import SourceAddress, fetch
from flowedge.weights.fetch.progress import FetchProgress
from flowedge.weights.inventory import ask_all
from flowedge.weights.known_models import name_of, shown
from flowedge.weights.library import Library, read_at
from flowedge.weights.manifest.location import Location
from flowedge.weights.manifest.reference import PREFIX, SHORTEST
from flowedge.weights.settings import WeightsSettings

OnTransfer = Callable[[str, FetchProgress], None]  # what is being done, how far it is


async def pull_model(library: Library, model: str, addresses: Sequence[str], on_transfer: OnTransfer) -> str:
    """Fetch a model, named by hash, from agents; returns its id.

    BadRequestError when no agent has it, DeviceLostError when they do not give all of it, CapacityError when
    it does not fit.
    """
    settings, device = WeightsSettings(), platform.node() or "device"
    digits = model.removeprefix(PREFIX).lower()
    held, problems = await ask_all(addresses)
    found = {known.id: known.name for known in held if known.id.startswith(digits)}
    if is_digest(digits):
        found.setdefault(digits, digits[:12])
    if len(digits) < SHORTEST or len(found) != 1:
        raise BadRequestError(
            f"{model} means {len(found)} of the models that {len(addresses)} agents have"
            + (f" ({'; '.join(problems)})" if problems else "")
        )
    [(identity, name)] = found.items()
    sources = [SourceAddress(address) for address in addresses]
    manifest = await fetch_manifest(device, identity, sources, settings)
    store = library.store
    pin = store.pin({identity: 0, **manifest.sizes})

    async def on_progress(progress: FetchProgress) -> None:
        on_transfer(shown(name), progress)

    try:
        store.put(manifest.content)
        for digest in manifest.sizes:
            if store.size(digest) is not None:
                store.verify(digest)
        await fetch(device, library, manifest.sizes, sources, settings, on_progress)
        library.shelf.put(manifest, name)
    finally:
        pin.release()
    return identity


def import_model(library: Library, model: str, *, hub: bool, on_transfer: OnTransfer) -> str:
    """Copy a model of a directory, or of the hub, into the cache; returns its id. Imports torch.

    hub: whether it may be downloaded. CheckpointError, CapacityError.
    """
    from flowedge.models.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415
    from flowedge.weights.manifest.describing import describe  # noqa: PLC0415

    checkpoint, store = Checkpoint.open(model, hub=hub), library.store
    name = name_of(model)
    described = describe(
        checkpoint,
        store.limits.root,
        lambda done, total: on_transfer("hashing", _progress(done, total)),
    )
    manifest, done = described.manifest, 0
    pin = store.pin({manifest.id: 0, **manifest.sizes})
    try:
        store.put(manifest.content)
        for digest, size in manifest.sizes.items():
            _copy(library, digest, size, described.locations[digest])
            done += size
            on_transfer("copying", _progress(done, manifest.total_bytes))
        library.shelf.put(manifest, name)
    finally:
        pin.release()
    return manifest.id


def quantise_model(library: Library, model: str, quant: str, on_transfer: OnTransfer) -> None:
    """Quantise all layers of a model of the cache, for stages to fetch instead of the plain weights.

    CheckpointError, BadRequestError for a quantisation that cannot be run here. Imports torch.
    """
    from flowedge.models.layers.block import LayerBlock  # noqa: PLC0415
    from flowedge.models.quant.quant_cache import QuantCache  # noqa: PLC0415
    from flowedge.storage.space import QUANTISED  # noqa: PLC0415
    from flowedge.weights.open.kept import open_kept  # noqa: PLC0415

    manifest = library.shelf.manifest(model)
    if manifest is None:
        raise BadRequestError(f"{PREFIX}{model} is not in the cache")
    limits = library.store.limits
    checkpoint = open_kept(library.store, manifest, library.shelf.put(manifest, model[:12]))
    cache = QuantCache(limits.root / QUANTISED, limits.max_bytes)
    layers = int(checkpoint.config.num_hidden_layers)
    for index in range(layers):
        LayerBlock.load(checkpoint, index, index + 1, quant=quant, quant_cache=cache)
        done = manifest.total_bytes * (index + 1) // layers
        on_transfer("quantising", _progress(done, manifest.total_bytes))


def _copy(library: Library, digest: str, size: int, location: Location) -> None:
    store = library.store
    if store.verify(digest):
        return
    partial = store.begin(digest, size, reserved=True)
    if partial is None:
        raise BadRequestError(f"another process is receiving {digest}; try again when it has ended")
    descriptor = location.open()
    try:
        with partial:
            partial.restart()
            for offset in range(0, size, READ_BYTES):
                partial.append(read_at(descriptor, min(READ_BYTES, size - offset), location.offset + offset))
            partial.commit()
    finally:
        os.close(descriptor)


def _progress(done: int, total: int) -> FetchProgress:
    return FetchProgress(done, total, 0.0, None)
