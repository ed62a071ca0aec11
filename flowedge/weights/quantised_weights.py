"""Quantised weights that a device has, and which of them another device takes instead of plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from flowedge.device.disk_cache.digest import hash_range
from flowedge.device.disk_cache.file_range import FileRange, FileState
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.loading import encoding_key, linear_weights, weight_content
from flowedge.models.quant.block_repacking import can_repack
from flowedge.models.quant.quant_cache import CacheKey, QuantCache
from flowedge.weights.manifest import Manifest, QuantisedEntry, QuantisedList
from flowedge.weights.threads import hashing_threads


@dataclass(frozen=True)
class QuantisedRequest:
    """The quantisation of layers [start, stop), and the dtype that they compute in."""

    quant: str
    dtype: torch.dtype
    start: int
    stop: int


def quantised_keys(
    checkpoint: Checkpoint, manifest: Manifest, request: QuantisedRequest
) -> dict[str, CacheKey]:
    """The cache keys of the quantised weights of these layers, by the stored names of the plain tensors.

    Weights that are a part of a stored tensor are left out, and weights that are only repacked. A checkpoint
    that is stored quantised has no keys.
    """
    if checkpoint.quant != "none" or request.quant == "none":
        return {}
    keys: dict[str, CacheKey] = {}
    for index in range(request.start, request.stop):
        for name in linear_weights(checkpoint, index):
            if not checkpoint.has(name) or can_repack(checkpoint, name, request.quant):
                continue
            stored = checkpoint.source(name)[1]
            if not stored.is_whole:
                continue
            sha256 = manifest.tensors_by_name[stored.name].sha256
            content = weight_content(checkpoint, name, sha256)
            keys[stored.name] = encoding_key(checkpoint, name, content, request.quant, request.dtype)
    return keys


def list_quantised(keys: Iterable[CacheKey], cache: QuantCache) -> tuple[QuantisedList, dict[str, FileRange]]:
    """List the weights of these keys that are in a cache; also return their files, by SHA-256."""
    with ThreadPoolExecutor(hashing_threads()) as threads:
        found = [each for each in threads.map(partial(_find_intact, cache), keys) if each is not None]
    entries = sorted((entry for entry, _ in found), key=lambda entry: entry.key)
    return QuantisedList(tuple(entries)), {entry.sha256: place for entry, place in found}


def _find_intact(cache: QuantCache, key: CacheKey) -> tuple[QuantisedEntry, FileRange] | None:
    if cache.get(key) is None:  # this also verifies the file
        return None
    path = cache.path(key)
    state = FileState.of(path)
    with path.open("rb") as file:
        digest = hash_range(file.fileno(), 0, state.size).hexdigest()
    return QuantisedEntry(key.digest, state.size, digest), FileRange(path, 0, state.size, state)


def replace_tensors(
    keys: Mapping[str, CacheKey], quantised: QuantisedList, manifest: Manifest, store: ObjectStore
) -> dict[str, QuantisedEntry]:
    """The quantised weights to take instead of plain tensors that are not cached, by their stored names."""
    known = {entry.key: entry for entry in quantised.entries}
    return {
        name: known[key.digest]
        for name, key in keys.items()
        if key.digest in known and store.size(manifest.tensors_by_name[name].sha256) is None
    }
