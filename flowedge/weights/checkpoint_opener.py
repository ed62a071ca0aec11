"""Opening a checkpoint from the cache, a directory or the hub."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from flowedge.core.errors import CheckpointError
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tensor_files import ExternalTensors
from flowedge.models.files.weight_file import DTYPES, StoredSlice, WeightSlice, drop_cached, read_into
from flowedge.models.gguf.block_slice import BlockSlice
from flowedge.models.gguf.block_types import BLOCK_TYPES
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest import Manifest, QuantisedList, TensorEntry
from flowedge.weights.manifest_of_model import locate
from flowedge.weights.model_request import ModelRequest, OpenedModel
from flowedge.weights.quantised_weights import quantised_keys, replace_tensors

_log = logging.getLogger(__name__)


class CheckpointOpener:
    """Opens the checkpoint of one request."""

    def __init__(self, local_weights: LocalWeights, request: ModelRequest) -> None:
        self._local, self._request = local_weights, request

    def from_cache(
        self, manifest: Manifest, quantised: QuantisedList | None
    ) -> tuple[OpenedModel, dict[str, int]]:
        """The checkpoint, and bytes by digest of the tensors that it needs, whether they are cached or not.

        quantised: weights that may be taken instead of plain tensors.
        """
        request, store = self._request, self._local.store
        checkpoint = open_cached(store, manifest, self._local.known_models.put(manifest, request.name))
        request.admit(checkpoint)
        names = set(request.select(checkpoint))
        sizes: dict[str, int] = {}
        quantised_paths: dict[str, Path] = {}
        if quantised is not None and request.quantisation is not None:
            keys = quantised_keys(checkpoint, manifest, request.quantisation())
            taken = replace_tensors(keys, quantised, manifest, store)
            names -= taken.keys()
            sizes = {entry.sha256: entry.bytes for entry in taken.values()}
            quantised_paths = {entry.key: store.path(entry.sha256) for entry in taken.values()}
        plain = [manifest.tensors_by_name[name] for name in sorted(names)]
        sizes |= {entry.sha256: entry.bytes for entry in plain}
        return OpenedModel(checkpoint, quantised_paths=quantised_paths), sizes

    def from_directory(self) -> Checkpoint | None:
        """The model's directory on this device; None if it holds another model or cannot be read."""
        model = self._request.model
        try:
            checkpoint = Checkpoint.open(model, hub=False)
            fingerprint = checkpoint.fingerprint
        except CheckpointError as error:
            _log.warning("the directory is not used: %s", error)
            return None
        if fingerprint != self._request.fingerprint:
            _log.warning("%s holds another model here than on the draft node; it is not used", model)
            return None
        self._request.admit(checkpoint)
        return checkpoint

    def share(self, checkpoint: Checkpoint, manifest: Manifest) -> None:
        """Give the objects in the directory of a checkpoint to other devices."""
        self._local.share(self._request.name, manifest, locate(checkpoint, manifest))

    def from_hub(self) -> Checkpoint:
        """Download the model.

        Raises:
            CheckpointError: when that fails, or the hub has another model than the draft node.
        """
        checkpoint = Checkpoint.open(self._request.model)
        if checkpoint.fingerprint != self._request.fingerprint:
            raise CheckpointError(f"{self._request.model} is another model on the hub than on the draft node")
        self._request.admit(checkpoint)
        return checkpoint


class ObjectFile:
    """A cached object, opened for each read: a block may have more tensors than a process may open files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_into(self, tensor: torch.Tensor, offset: int) -> None:
        with self._path.open("rb") as file:
            read_into(tensor, file.fileno(), offset, self._path)

    def drop_cached(self, offset: int, size: int) -> None:
        with self._path.open("rb") as file:
            drop_cached(file.fileno(), offset, size)


def open_cached(store: ObjectStore, manifest: Manifest, directory: Path) -> Checkpoint:
    """The checkpoint of a manifest. Tensors may be missing in the cache until they are read.

    directory: of the model's small files, see KnownModels.put.

    Raises:
        CheckpointError: when the config is not supported.
    """
    paths = {entry.name: store.path(entry.sha256) for entry in manifest.tensors}
    weights = {entry.name: _object_slice(entry, paths[entry.name]) for entry in manifest.tensors}
    digests = {entry.name: entry.sha256 for entry in manifest.tensors}
    return Checkpoint(directory, ExternalTensors(weights, paths, digests, manifest.fingerprint, manifest.id))


def _object_slice(entry: TensorEntry, path: Path) -> StoredSlice:
    block, file = BLOCK_TYPES.get(entry.dtype), ObjectFile(path)
    if block is not None:
        return BlockSlice(file, entry.name, entry.shape, block, 0)
    return WeightSlice(file, entry.name, entry.shape, DTYPES[entry.dtype], 0)
