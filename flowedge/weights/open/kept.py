"""A checkpoint whose tensors are objects of the cache. Imports torch."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from flowedge.models.checkpoint.checkpoint import Checkpoint, ExternalTensors
from flowedge.models.checkpoint.weight_file import DTYPES, WeightSlice, read_into
from flowedge.storage.objects import ObjectStore
from flowedge.weights.manifest.manifest import Manifest


class ObjectFile:
    """One object, opened for each read: a block may have more tensors than a process may have open files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_into(self, tensor: torch.Tensor, offset: int) -> None:
        """See TensorReader."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_into(tensor, descriptor, offset, self._path)
        finally:
            os.close(descriptor)


def open_kept(store: ObjectStore, manifest: Manifest, directory: Path) -> Checkpoint:
    """The checkpoint of a manifest; tensors that are not in the cache fail when they are read, not before.

    directory: of the small files (see Shelf.put). CheckpointError when its config is not understood.
    """
    paths = {entry.name: store.path(entry.sha256) for entry in manifest.tensors}
    weights = {
        entry.name: WeightSlice(
            ObjectFile(paths[entry.name]), entry.name, entry.shape, DTYPES[entry.dtype], 0
        )
        for entry in manifest.tensors
    }
    digests = {entry.name: entry.sha256 for entry in manifest.tensors}
    return Checkpoint(directory, ExternalTensors(weights, paths, digests, manifest.fingerprint, manifest.id))
