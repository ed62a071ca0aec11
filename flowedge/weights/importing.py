"""Copying a model from a directory or the hub into the cache, and quantising it there."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError
from flowedge.device.disk_cache.digest import READ_BYTES
from flowedge.device.disk_cache.file_range import FileRange
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.device.disk_cache.space import QUANTISED
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.weights.checkpoint_opener import open_cached
from flowedge.weights.fetch.progress import FetchProgress, OnTransfer
from flowedge.weights.known_models import HASH_PREFIX
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest_of_model import describe
from flowedge.weights.model_directory import model_name


def import_model(local_weights: LocalWeights, model: str, *, hub: bool, on_transfer: OnTransfer) -> str:
    """Copy a model from a directory or the hub into the cache; return its id.

    hub: whether it may be downloaded.

    Raises:
        CheckpointError: when the model cannot be found or read.
        CapacityError: when it does not fit the cache.
    """
    checkpoint, store = Checkpoint.open(model, hub=hub), local_weights.store
    described = describe(
        checkpoint, store.limits.root, lambda done, total: on_transfer("hashing", FetchProgress(done, total))
    )
    manifest, done = described.manifest, 0
    with local_weights.adding(manifest, model_name(model)):
        for digest, size in manifest.sizes.items():
            _copy(store, digest, described.ranges[digest])
            done += size
            on_transfer("copying", FetchProgress(done, manifest.total_bytes))
    return manifest.id


def quantise_model(local_weights: LocalWeights, model: str, quant: str, on_transfer: OnTransfer) -> None:
    """Quantise all layers of a cached model, so that stages can fetch the quantised weights.

    model: its id.

    Raises:
        BadRequestError: when the model is not cached, or this device cannot run the quantisation.
    """
    manifest = local_weights.known_models.manifest(model)
    if manifest is None:
        raise BadRequestError(f"{HASH_PREFIX}{model} is not in the cache")
    store = local_weights.store
    checkpoint = open_cached(store, manifest, local_weights.known_models.put(manifest, model[:12]))
    cache = QuantCache(store.limits.root / QUANTISED, store.limits.max_bytes)
    layers = int(checkpoint.config.num_hidden_layers)
    for index in range(layers):
        LayerBlock.load(checkpoint, index, index + 1, quant=quant, quant_cache=cache)
        done = manifest.total_bytes * (index + 1) // layers
        on_transfer("quantising", FetchProgress(done, manifest.total_bytes))


def _copy(store: ObjectStore, digest: str, source: FileRange) -> None:
    if store.verify(digest):
        return
    partial = store.begin(digest, source.size, reserved=True)
    if partial is None:
        raise BadRequestError(f"another process is receiving {digest}; try again when it has ended")
    with partial, source.open() as file:
        partial.restart()
        for offset in range(0, source.size, READ_BYTES):
            partial.append(source.read(file, offset, min(READ_BYTES, source.size - offset)))
        partial.commit()
