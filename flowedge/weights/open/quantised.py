"""Weights that some device has quantised already: which there are, and which a device takes instead.

Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.layers.loading import encoding_key, linear_weights
from flowedge.models.quant.quant_cache import CacheKey, QuantCache, content_of
from flowedge.storage.digest import hash_range
from flowedge.storage.objects import ObjectStore
from flowedge.weights.manifest.location import FileState, Location
from flowedge.weights.manifest.manifest import Manifest
from flowedge.weights.manifest.quantised_list import QuantisedEntry, QuantisedList


@dataclass(frozen=True)
class QuantisedRequest:
    """The quantisation that layers [start, stop) are asked for in, and the dtype of the block."""

    quant: str
    dtype: torch.dtype
    start: int
    stop: int


def keys_of(checkpoint: Checkpoint, manifest: Manifest, asked: QuantisedRequest) -> dict[str, CacheKey]:
    """By the stored name of each weight of these layers, what it is known by when it is quantised.

    Weights that are a part of a stored tensor are left out, and all of a checkpoint that is quantised.
    """
    if checkpoint.quant != "none" or asked.quant == "none":
        return {}
    keys: dict[str, CacheKey] = {}
    for index in range(asked.start, asked.stop):
        for name in linear_weights(checkpoint, index):
            if not checkpoint.has(name):
                continue
            stored = checkpoint.source(name)[1]
            if stored.expert is not None:
                continue
            sha256 = manifest.tensors_by_name[stored.name].sha256
            content = content_of(checkpoint.dtype(name), checkpoint.shape(name), sha256)
            keys[stored.name] = encoding_key(checkpoint, name, content, asked.quant, asked.dtype)
    return keys


def list_quantised(keys: Iterable[CacheKey], cache: QuantCache) -> tuple[QuantisedList, dict[str, Location]]:
    """Those of the weights that are in a cache, and where each file is, by its SHA-256. OSError."""
    entries, locations = [], {}
    for key in keys:
        if cache.get(key) is None:  # it is read, so that nothing damaged is given to others
            continue
        path = cache.path(key)
        state = FileState.of(path)
        with path.open("rb") as file:
            digest = hash_range(file.fileno(), 0, state.size).hexdigest()
        entries.append(QuantisedEntry(key.digest, state.size, digest))
        locations[digest] = Location(path, 0, state.size, state)
    return QuantisedList(tuple(sorted(entries, key=lambda entry: entry.key))), locations


@dataclass(frozen=True)
class QuantisedTensors:
    """What is taken instead of tensors.

    Attributes:
        names: stored names of the tensors that are not needed.
        sizes: bytes of the objects that are, by digest; keys: the digest of each by that of its key.
    """

    names: frozenset[str]
    sizes: Mapping[str, int]
    keys: Mapping[str, str]


def replace_tensors(
    keys: Mapping[str, CacheKey], listed: QuantisedList, manifest: Manifest, store: ObjectStore
) -> QuantisedTensors:
    """Takes what is quantised already, for tensors that are not here as they are."""
    known = {entry.key: entry for entry in listed.entries}
    taken = {
        name: known[key.digest]
        for name, key in keys.items()
        if key.digest in known and store.size(manifest.tensors_by_name[name].sha256) is None
    }
    return QuantisedTensors(
        frozenset(taken),
        {entry.sha256: entry.bytes for entry in taken.values()},
        {entry.key: entry.sha256 for entry in taken.values()},
    )
