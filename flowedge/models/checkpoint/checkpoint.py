"""A Hugging Face checkpoint that is read a tensor, or a few rows of one, at a time."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import flowedge
from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.families import EMBEDDING, LM_HEAD, Family, family_of
from flowedge.models.checkpoint.features import check_features
from flowedge.models.checkpoint.finding import BUNDLED, find_model
from flowedge.models.checkpoint.stored_tensors import StoredTensor, experts_of, is_stack
from flowedge.models.checkpoint.weight_file import Weights, WeightSlice, open_weights
from flowedge.models.quant import prequantised

_SAMPLES_PER_FILE = 256
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class KeptWeights:
    """The tensors of a checkpoint that are kept elsewhere than in files of its directory.

    Attributes:
        weights: by stored name; what is not here yet has its shape and dtype all the same.
        paths: the file that each is in; digests: the SHA-256 of each.
        fingerprint: that of the checkpoint they come from; manifest_id: of its manifest.
    """

    weights: Mapping[str, WeightSlice]
    paths: Mapping[str, Path]
    digests: Mapping[str, str]
    fingerprint: str
    manifest_id: str


class Checkpoint:
    """One model on disk: its config and its tensors, which are read only when asked for.

    Attributes:
        quant: the quantisation that its linear layers are stored in, "none" for most.
    """

    def __init__(self, directory: Path, kept: KeptWeights | None = None) -> None:
        """Opens `directory`; CheckpointError when it is no supported, readable model.

        kept: where its tensors are, when the directory has the small files alone.
        """
        self.directory = directory
        self._kept = kept
        self._raw_config = _read_json(directory / "config.json")
        self.family: Family = family_of(str(self._raw_config.get("model_type")))
        self.quant = prequantised.stored_quant(self._raw_config, directory)
        self.config = self._load_config()
        self._handles: dict[Path, Weights] = {}
        self._files = dict(kept.paths) if kept is not None else self._locate_tensors()
        self._tensors = self._name_tensors()

    @classmethod
    def open(cls, source: str, *, hub: bool = True) -> Checkpoint:
        """Opens a directory, a hub id ("owner/name") or the word "bundled".

        hub: whether the hub may be asked for what is not on the disk.
        CheckpointError when the source cannot be found, fetched or understood.
        """
        if source == BUNDLED:
            return cls(Path(flowedge.__file__).parent / "bundled" / "model")
        return cls(find_model(source, hub=hub))

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of this name, which is that of the family's modules."""
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape of a tensor, from the file's header."""
        return self._stored(name)[0]

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> torch.Tensor:
        """Reads one tensor, in its stored dtype, on the CPU.

        With `shape` given, CheckpointError names the tensor, the wanted and the found shape when they differ.
        """
        self.check_shape(name, self.shape(name) if shape is None else shape)
        return self._read(name)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Reads rows [start, stop) of a tensor, in its stored dtype, on the CPU."""
        return self._read(name, slice(start, stop))

    def check_shape(self, name: str, shape: Sequence[int]) -> None:
        """CheckpointError when a tensor has another shape; it names both."""
        found = self.shape(name)
        if found != tuple(shape):
            raise CheckpointError(
                f"{self.directory}: tensor {name} has shape {list(found)}, the config asks for {list(shape)}"
            )

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype of a tensor."""
        return self._stored(name)[1]

    def source(self, name: str) -> tuple[Path, StoredTensor]:
        """The file that holds a tensor, and where in it."""
        stored = self._tensor(name)
        return self._files[stored.name], stored

    def sha256(self, name: str) -> str | None:
        """The SHA-256 of a tensor's bytes, where it is known without reading them."""
        stored = self._tensor(name)
        if self._kept is None or stored.expert is not None:
            return None
        return self._kept.digests[stored.name]

    def is_quantised(self, name: str) -> bool:
        """Whether a weight is stored quantised, as `quant` says."""
        return self.quant != "none" and self.has(prequantised.marker(self.quant, name))

    def quantised(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a weight that is stored quantised, by their names in its encoded form."""
        parts = prequantised.part_names(self.quant, name)
        return {part: self._read(stored) for part, stored in parts.items()}

    def quantised_bytes(self, name: str) -> int:
        """The bytes in memory of a weight that is stored quantised, scales included."""
        parts = prequantised.part_names(self.quant, name)
        return self.tensor_bytes(parts[part] for part in parts if part in prequantised.COUNTED)

    @property
    def manifest_id(self) -> str | None:
        """The id of the manifest that its tensors are known by; None for a directory."""
        return None if self._kept is None else self._kept.manifest_id

    @property
    def files(self) -> list[Weights]:
        """The open files of the directory that hold its tensors."""
        return [self._open_once(path) for path in sorted(set(self._files.values()))]

    def _read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        stored = self._tensor(name)
        try:
            return stored.take(self._handle(stored.name), rows)
        except OSError as error:
            raise CheckpointError(f"{self.directory}: tensor {name} cannot be read: {error}") from error

    def tensor_bytes(self, names: Iterable[str]) -> int:
        """The bytes that these tensors take on disk."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in map(self._header, names))

    @property
    def head_name(self) -> str:
        """The tensor that the LM head reads: its own, or the embedding's when the two are tied."""
        if self.has(LM_HEAD):
            return LM_HEAD
        if self.config.tie_word_embeddings:
            return EMBEDDING
        raise CheckpointError(f"{self.directory}: tensor {LM_HEAD} is missing and the config does not tie it")

    @property
    def embedding_name(self) -> str:
        """The tensor that the token embedding reads: its own, or the LM head's when only that is stored."""
        if not self.has(EMBEDDING) and self.config.tie_word_embeddings and self.has(LM_HEAD):
            return LM_HEAD
        return EMBEDDING

    @cached_property
    def fingerprint(self) -> str:
        """A hex digest that two devices compare to know that they hold the same model.

        It covers config.json, the weight files' names and sizes, and 1 MiB of evenly spaced samples of
        each: it tells
        models and fine-tunes apart without reading gigabytes; it is not proof against a crafted file.
        """
        if self._kept is not None:
            return self._kept.fingerprint
        digest = hashlib.sha256((self.directory / "config.json").read_bytes())
        for path in sorted(set(self._files.values())):
            size = path.stat().st_size
            digest.update(f"\0{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                for index in range(_SAMPLES_PER_FILE):
                    file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES_PER_FILE - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
        return digest.hexdigest()

    def _load_config(self) -> Any:
        if self.family.multimodal and not isinstance(self._raw_config.get("text_config"), dict):
            raise CheckpointError(f"{self.directory}: the config has no text_config, the decoder's part")
        try:
            config = self.family.config.from_pretrained(self.directory, local_files_only=True)
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise CheckpointError(f"{self.directory}: config.json is not valid: {error}") from error
        if self.quant != "none":
            # Of a multimodal model it is with the whole, and transformers looks for it with the decoder.
            config.quantization_config = self._raw_config["quantization_config"]
        try:
            check_features(self.family, config)
        except CheckpointError as error:
            raise CheckpointError(f"{self.directory}: {error}") from error
        return config

    def _name_tensors(self) -> dict[str, StoredTensor]:
        """Where each tensor is stored, by the name that the family's modules have for it."""
        found: dict[str, StoredTensor] = {}
        for stored in self._files:
            name = self.family.module_name(stored)
            if is_stack(name):
                found |= experts_of(name, stored, tuple(self._handle(stored).shape))
            else:
                found[name] = StoredTensor(stored)
        return found

    def _locate_tensors(self) -> dict[str, Path]:
        """Which file holds each stored tensor; safetensors are preferred, .bin is accepted with a warning."""
        for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
            single = self.directory / f"{stem}.{suffix}"
            index = self.directory / f"{stem}.{suffix}.index.json"
            if not index.is_file() and not single.is_file():
                continue
            if suffix == "bin":
                warnings.warn(
                    f"{self.directory}: reading .bin weights (weights_only=True); prefer safetensors",
                    stacklevel=4,
                )
            if index.is_file():
                return _locate_shards(self.directory, _read_json(index))
            return dict.fromkeys(self._open_once(single).keys(), single)
        raise CheckpointError(
            f"{self.directory}: no model.safetensors, no index of shards and no pytorch_model.bin"
        )

    def _stored(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        shape, dtype = self._header(name)
        if not dtype.is_floating_point:
            raise CheckpointError(f"{self.directory}: tensor {name} has type {dtype}, not a float")
        return shape, dtype

    def _header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        stored = self._tensor(name)
        handle = self._handle(stored.name)
        return stored.shape(tuple(handle.shape)), handle.dtype

    def _tensor(self, name: str) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.directory}: tensor {name} is missing")
        return stored

    def _handle(self, stored: str) -> WeightSlice | torch.Tensor:
        if self._kept is not None:
            return self._kept.weights[stored]
        path = self._files[stored]
        handle = self._open_once(path).get(stored)
        if handle is None:
            raise CheckpointError(f"{self.directory}: {path.name} holds no tensor {stored}")
        return handle

    def _open_once(self, path: Path) -> Weights:
        if path not in self._handles:
            self._handles[path] = open_weights(path)
        return self._handles[path]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _locate_shards(directory: Path, index: dict[str, Any]) -> dict[str, Path]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{directory}: the index of shards has no weight_map")
    for file_name in {str(value) for value in weight_map.values()}:
        # The index is data: it may name files of this directory only.
        if Path(file_name).name != file_name or not (directory / file_name).is_file():
            raise CheckpointError(f"{directory}: shard {file_name!r} named by the index is not here")
    return {str(name): directory / str(file_name) for name, file_name in weight_map.items()}
