"""The files that hold a model's tensors: in its directory, GGUF files, or elsewhere on this device."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.model_config import CONFIG_NAME, ModelConfig
from flowedge.models.files.quantiser_settings import quantiser_file
from flowedge.models.files.weight_file import StoredSlice, Weights, open_weights
from flowedge.models.gguf.gguf_model import GGUFModel
from flowedge.text.json_object import read_json_object

_SAMPLES_PER_FILE = 256
_SAMPLE_BYTES = 4096


class TensorFiles(Protocol):
    """The stored tensors of a model, by the names that the files have for them."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """The file that holds each tensor."""

    @property
    def manifest_id(self) -> str | None:
        """The id of the manifest by which the tensors were found; None for a model in a directory."""

    @property
    def fingerprint(self) -> str:
        """See Checkpoint.fingerprint."""

    def handle(self, stored: str) -> StoredSlice | torch.Tensor:
        """Return a tensor, to be read by indexing.

        Raises:
            CheckpointError: when the file of the tensor does not hold the tensor.
        """

    def sha256(self, stored: str) -> str | None:
        """Return the SHA-256 of a tensor's bytes; None where only reading the tensor would tell."""

    def opened(self) -> list[Weights]:
        """Return the tensors of each weight file of the model, in the order of the files' names.

        Raises:
            CheckpointError: when a file cannot be read, or the model has no files of its own.
        """


@dataclass(frozen=True)
class ExternalTensors:
    """The tensors of a model whose weight files are not in its directory.

    Attributes:
        weights: each tensor by its stored name. Shape and dtype are known before the data is there.
        paths: the file that holds each tensor, by stored name.
        digests: the SHA-256 of each tensor's bytes, by stored name.
        fingerprint: the fingerprint of the original checkpoint.
        manifest_id: the id of the original checkpoint's manifest.
    """

    weights: Mapping[str, StoredSlice]
    paths: Mapping[str, Path]
    digests: Mapping[str, str]
    fingerprint: str
    manifest_id: str

    def handle(self, stored: str) -> StoredSlice:
        return self.weights[stored]

    def sha256(self, stored: str) -> str:
        return self.digests[stored]

    def opened(self) -> list[Weights]:
        raise CheckpointError(
            f"the tensors of manifest {self.manifest_id} are objects of the cache, not weight files; name "
            "the directory or the GGUF file of the model"
        )


class DirectoryTensors:
    """The tensors of the weight files in a directory, or of GGUF files.

    Safetensors are preferred; .bin files come with a warning.
    """

    manifest_id = None

    def __init__(self, directory: Path, gguf: Sequence[Path], model: ModelConfig) -> None:
        """Find the file of each tensor.

        Args:
            directory: of the model's config; gguf: the files of a GGUF model, empty for others.

        Raises:
            CheckpointError: when there are no weight files, or they cannot be read.
        """
        self._directory = directory
        self._place = gguf[0] if gguf else directory
        self._model = model
        self._open: dict[Path, Weights] = {}
        self._opening = threading.Lock()
        self.paths: Mapping[str, Path] = self._locate_gguf(gguf) if gguf else self._locate()

    def handle(self, stored: str) -> StoredSlice | torch.Tensor:
        path = self.paths[stored]
        handle = self._tensors_of(path).get(stored)
        if handle is None:
            raise CheckpointError(f"{self._place}: {path.name} holds no tensor {stored}")
        return handle

    def sha256(self, stored: str) -> None:  # noqa: ARG002
        return None

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256((self._directory / CONFIG_NAME).read_bytes())
        quantiser = quantiser_file(self._model.raw, self._directory)
        if quantiser is not None:
            digest.update(quantiser.read_bytes())
        for path in sorted(set(self.paths.values())):
            size = path.stat().st_size
            digest.update(f"\0{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                for index in range(_SAMPLES_PER_FILE):
                    file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES_PER_FILE - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
        return digest.hexdigest()

    def opened(self) -> list[Weights]:
        return [self._tensors_of(path) for path in sorted(set(self.paths.values()))]

    def _tensors_of(self, path: Path) -> Weights:
        with self._opening:
            if path not in self._open:
                self._open[path] = open_weights(path)
            return self._open[path]

    def _locate_gguf(self, gguf: Sequence[Path]) -> dict[str, Path]:
        files = GGUFModel(gguf).files
        self._open |= {file.path: file for file in files}
        return {name: file.path for file in files for name in file}

    def _locate(self) -> dict[str, Path]:
        for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
            single = self._directory / f"{stem}.{suffix}"
            index = self._directory / f"{stem}.{suffix}.index.json"
            if not index.is_file() and not single.is_file():
                continue
            if suffix == "bin":
                warnings.warn(
                    f"{self._place}: reading .bin weights (weights_only=True); prefer safetensors",
                    stacklevel=5,
                )
            if index.is_file():
                return _locate_shards(self._directory, read_json_object(index))
            return dict.fromkeys(self._tensors_of(single).keys(), single)
        own_name = self._quantisers_file()
        if own_name is not None:
            return dict.fromkeys(self._tensors_of(own_name).keys(), own_name)
        raise CheckpointError(
            f"{self._place}: no model.safetensors, no index of shards and no pytorch_model.bin; a GGUF model "
            "beside a config.json is named by the path of its file"
        )

    def _quantisers_file(self) -> Path | None:
        """The only safetensors file of a quantised checkpoint. The first tools chose a name of their own."""
        if self._model.integer_format is None:
            return None
        found = sorted(self._directory.glob("*.safetensors"))
        return found[0] if len(found) == 1 else None


def _locate_shards(directory: Path, index: dict[str, Any]) -> dict[str, Path]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{directory}: the index of shards has no weight_map")
    if not all(isinstance(value, str) for value in weight_map.values()):
        raise CheckpointError(f"{directory}: the index of shards has a weight_map whose values are no names")
    there = {path.name for path in directory.iterdir() if path.is_file()}
    for file_name in set(weight_map.values()):
        # The index is data: it may name files of this directory only.
        if file_name not in there:
            raise CheckpointError(
                f"{directory}: the index names shard {file_name[:255]!r}, which is not there"
            )
    return {str(name): directory / str(file_name) for name, file_name in weight_map.items()}
