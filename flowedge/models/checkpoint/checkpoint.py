"""A checkpoint of Hugging Face or GGUF, read one tensor or a few rows of a tensor at a time."""

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
from huggingface_hub.errors import StrictDataclassError

import flowedge
from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint import prequantised
from flowedge.models.checkpoint.config_support import check_config
from flowedge.models.checkpoint.families import EMBEDDING, LM_HEAD, Family, family_of
from flowedge.models.checkpoint.gguf.architectures import architecture_of, module_tensors
from flowedge.models.checkpoint.gguf.config import ARCHITECTURE_KEY
from flowedge.models.checkpoint.gguf.gguf_model import GGUFModel
from flowedge.models.checkpoint.gguf.model_files import files_in
from flowedge.models.checkpoint.model_source import BUNDLED, model_directory
from flowedge.models.checkpoint.quantiser_settings import quantiser_file, quantiser_settings
from flowedge.models.checkpoint.stored_tensors import StoredTensor, experts_of, is_stack
from flowedge.models.checkpoint.weight_file import StoredSlice, Weights, drop_cached_pages, open_weights
from flowedge.models.stored_quant.integer_weight import IntegerFormat
from flowedge.models.stored_quant.settings import integer_format

_SAMPLES_PER_FILE = 256
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class ExternalTensors:
    """The tensors of a checkpoint whose weight files are not in its directory.

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


class Checkpoint:
    """A model on disk: its config and its tensors, which are read on demand.

    Tensor names are those of the family's modules, whatever names the files use.

    Attributes:
        directory: the directory of the config; for a GGUF model, one of this process.
        place: the path to name in messages: the directory, or the GGUF file.
        gguf: the GGUF files that hold the tensors; empty for other models.
        tokenizer: the directory of a tokenizer that replaces the model's; None for the model's.
        quant: the quantisation that holds the checkpoint's linear layers as they are stored, "none" for most.
        integer_format: the layout of weights that GPTQ, AWQ or compressed-tensors stored; None for others.
    """

    def __init__(self, directory: Path, external: ExternalTensors | None = None) -> None:
        """Open the model in `directory`. `external` replaces the weight files of the directory."""
        self.directory = directory
        self.tokenizer: Path | None = None
        self._external = external
        self._converted = files_in(directory)
        self.gguf: tuple[Path, ...] = () if self._converted is None else self._converted.paths
        self.place = self.gguf[0] if self.gguf else directory
        self._raw_config = read_json_object(directory / "config.json")
        self.family: Family = family_of(str(self._raw_config.get("model_type")))
        self._quantiser = quantiser_settings(self._raw_config, directory)
        self.integer_format = _integer_format(self._quantiser, directory)
        self.quant = (
            prequantised.stored_quant(self._quantiser, directory)
            if self.integer_format is None
            else self.integer_format.quant
        )
        self.config = self._load_config()
        self._handles: dict[Path, Weights] = {}
        self._files = dict(external.paths) if external is not None else self._locate_tensors()
        self._tensors = self._name_tensors()

    @classmethod
    def open(cls, source: str, *, hub: bool = True) -> Checkpoint:
        """Open a directory, a GGUF file, a model of the hub (see `model_directory`) or the word "bundled".

        `hub` allows a download from the hub.

        Raises:
            CheckpointError: when the source cannot be found, downloaded or understood.
        """
        if source == BUNDLED:
            return cls(Path(flowedge.__file__).parent / "bundled" / "model")
        return cls(model_directory(source, hub=hub))

    def tokenizer_directory(self) -> Path:
        """The directory of the tokenizer's files, which are made for a GGUF model when they are needed.

        Raises:
            CheckpointError: when the tokenizer of a GGUF model cannot be converted.
        """
        if self.tokenizer is not None:
            return self.tokenizer
        if self._converted is not None:
            self._converted.add_tokenizer()
        return self.directory

    def has(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape of a tensor, from the file's header."""
        return self._stored(name)[0]

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor, in its stored dtype, on the CPU."""
        self._stored(name)
        return self._read(name)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read rows [start, stop) of a tensor, in its stored dtype, on the CPU."""
        return self._read(name, slice(start, stop))

    def check_shape(self, name: str, shape: Sequence[int]) -> None:
        """Check the stored shape of a tensor.

        Raises:
            CheckpointError: when the stored shape differs from `shape`.
        """
        found = self.shape(name)
        if found != tuple(shape):
            raise CheckpointError(
                f"{self.place}: tensor {name} has shape {list(found)}, the config asks for {list(shape)}"
            )

    def dtype(self, name: str) -> torch.dtype:
        return self._stored(name)[1]

    def source(self, name: str) -> tuple[Path, StoredTensor]:
        """The file that holds a tensor, and the tensor's place in that file."""
        stored = self._tensor(name)
        return self._files[stored.name], stored

    def drop_cached_pages(self) -> None:
        """Free the page cache of the checkpoint's files, which an integrated GPU counts as used memory."""
        for path in set(self._files.values()):
            drop_cached_pages(path)

    def sha256(self, name: str) -> str | None:
        """The SHA-256 of a tensor's bytes, or None where only reading the tensor would tell."""
        stored = self._tensor(name)
        if self._external is None or stored.expert is not None:
            return None
        return self._external.digests[stored.name]

    def block_type(self, name: str) -> str:
        """The type of GGUF that a tensor is stored in, if it stores blocks; "" for other tensors."""
        handle = self._handle(self._tensor(name).name)
        return "" if isinstance(handle, torch.Tensor) or handle.blocks is handle else handle.type_name

    def stored_form(self, name: str) -> str:
        """How the values of a tensor follow from its stored bytes; "" where the bytes are the values."""
        return f"{self.block_type(name)} {self._tensor(name).form}".strip()

    def block_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read rows [start, stop) of a tensor as it is stored, uint8 [rows, bytes] for blocks."""
        return self._read_stored(name, self._tensor(name), start, stop)

    def file_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read rows [start, stop) of a tensor as it is stored, counted in the order of the file."""
        stored = self._tensor(name)
        in_file = StoredTensor(stored.name, stored.expert, stored.rows)
        return self._read_stored(name, in_file, start, stop)

    def _read_stored(self, name: str, part: StoredTensor, start: int, stop: int) -> torch.Tensor:
        handle = self._handle(part.name)
        whole = handle if isinstance(handle, torch.Tensor) else handle.blocks
        return self._take(name, part, whole, slice(start, stop))

    def is_quantised(self, name: str) -> bool:
        """Return whether a weight is stored in the quantisation `quant`."""
        if self.integer_format is not None:
            return self.has(self.integer_format.marker(name.removesuffix("weight")))
        return self.quant != "none" and self.has(prequantised.marker(self.quant, name))

    def quantised(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a weight that bitsandbytes stored quantised, by their names in its encoded form."""
        parts = prequantised.part_names(self.quant, name)
        return {part: self._read(stored) for part, stored in parts.items()}

    def quantised_bytes(self, name: str) -> int:
        """The bytes in memory of a weight that bitsandbytes stored quantised, scales included."""
        parts = prequantised.part_names(self.quant, name)
        return self.tensor_bytes(parts[part] for part in parts if part in prequantised.COUNTED)

    def header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of a tensor of any dtype, from the file's header."""
        return self._header(name)

    def raw(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Read a tensor of any dtype, or some of its rows, on the CPU."""
        return self._read(name, rows)

    @property
    def manifest_id(self) -> str | None:
        """The id of the manifest of external tensors; None for a model in a directory."""
        return None if self._external is None else self._external.manifest_id

    @property
    def files(self) -> list[Weights]:
        return [self._open_once(path) for path in sorted(set(self._files.values()))]

    def _read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        stored = self._tensor(name)
        return self._take(name, stored, self._handle(stored.name), rows)

    def _take(
        self, name: str, part: StoredTensor, whole: StoredSlice | torch.Tensor, rows: slice | None
    ) -> torch.Tensor:
        try:
            return part.take(whole, rows)
        except OSError as error:
            raise CheckpointError(f"{self.place}: tensor {name} cannot be read: {error}") from error

    def tensor_bytes(self, names: Iterable[str]) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in map(self._header, names))

    @property
    def head_name(self) -> str:
        """The tensor of the LM head; the embedding's tensor where the two are tied."""
        if self.has(LM_HEAD):
            return LM_HEAD
        if self.is_quantised(LM_HEAD):
            raise CheckpointError(
                f"{self.place}: the LM head is quantised, which is not supported; give a checkpoint "
                "whose LM head is in floating point"
            )
        if self.config.tie_word_embeddings:
            return EMBEDDING
        raise CheckpointError(f"{self.place}: tensor {LM_HEAD} is missing and the config does not tie it")

    @property
    def embedding_name(self) -> str:
        """The tensor of the token embedding; the LM head's tensor where only that one is stored."""
        if not self.has(EMBEDDING) and self.config.tie_word_embeddings and self.has(LM_HEAD):
            return LM_HEAD
        return EMBEDDING

    @cached_property
    def fingerprint(self) -> str:
        """A hex digest that two devices compare to find out whether they hold the same model.

        The digest covers config.json, a quantiser's file beside it, the names and sizes of the weight files,
        and 1 MiB of evenly spaced samples of each file. It tells models and fine-tunes apart without reading
        gigabytes, and is no protection against a crafted file.
        """
        if self._external is not None:
            return self._external.fingerprint
        digest = hashlib.sha256((self.directory / "config.json").read_bytes())
        quantiser = quantiser_file(self._raw_config, self.directory)
        if quantiser is not None:
            digest.update(quantiser.read_bytes())
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
            raise CheckpointError(f"{self.place}: the config has no text_config, the decoder's part")
        try:
            config = self.family.config.from_pretrained(self.directory, local_files_only=True)
        except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
            raise CheckpointError(f"{self.place}: config.json is not valid: {error}") from error
        if self.integer_format is not None:
            config.__dict__.pop("quantization_config", None)  # transformers' own layers are not used
        elif self.quant != "none":
            # A multimodal config.json has the setting at its top; transformers reads that of the decoder.
            config.quantization_config = self._quantiser
        try:
            check_config(self.family, config)
        except CheckpointError as error:
            raise CheckpointError(f"{self.place}: {error}") from error
        return config

    def _name_tensors(self) -> dict[str, StoredTensor]:
        """The place of each tensor, by the name that the family's modules have for it."""
        architecture = self._raw_config.get(ARCHITECTURE_KEY)
        if architecture is not None:
            return self._name_gguf_tensors(architecture)
        found: dict[str, StoredTensor] = {}
        for stored in self._files:
            name = self.family.module_name(stored)
            if is_stack(name):
                found |= experts_of(name, stored, tuple(self._handle(stored).shape))
            else:
                found[name] = StoredTensor(stored)
        return found

    def _name_gguf_tensors(self, architecture: object) -> dict[str, StoredTensor]:
        shapes = {stored: tuple(self._handle(stored).shape) for stored in self._files}
        heads, kv_heads = int(self.config.num_attention_heads), int(self.config.num_key_value_heads)
        try:
            return module_tensors(architecture_of(architecture), shapes, heads, kv_heads)
        except CheckpointError as error:
            raise CheckpointError(f"{self.place}: {error}") from error

    def _locate_tensors(self) -> dict[str, Path]:
        """The file of each stored tensor. Safetensors are preferred; .bin files come with a warning."""
        if self.gguf:
            files = GGUFModel(self.gguf).files
            self._handles |= {file.path: file for file in files}
            return {name: file.path for file in files for name in file}
        for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
            single = self.directory / f"{stem}.{suffix}"
            index = self.directory / f"{stem}.{suffix}.index.json"
            if not index.is_file() and not single.is_file():
                continue
            if suffix == "bin":
                warnings.warn(
                    f"{self.place}: reading .bin weights (weights_only=True); prefer safetensors",
                    stacklevel=4,
                )
            if index.is_file():
                return _locate_shards(self.directory, read_json_object(index))
            return dict.fromkeys(self._open_once(single).keys(), single)
        single_file = self._quantisers_file()
        if single_file is not None:
            return dict.fromkeys(self._open_once(single_file).keys(), single_file)
        raise CheckpointError(
            f"{self.place}: no model.safetensors, no index of shards and no pytorch_model.bin; a GGUF model "
            "beside a config.json is named by the path of its file"
        )

    def _quantisers_file(self) -> Path | None:
        """The only safetensors file of a quantised checkpoint. The first tools chose a name of their own."""
        found = sorted(self.directory.glob("*.safetensors")) if self.integer_format is not None else []
        return found[0] if len(found) == 1 else None

    def _stored(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        shape, dtype = self._header(name)
        if not dtype.is_floating_point:
            raise CheckpointError(f"{self.place}: tensor {name} has type {dtype}, not a float")
        return shape, dtype

    def _header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        stored = self._tensor(name)
        handle = self._handle(stored.name)
        return stored.shape(tuple(handle.shape)), handle.dtype

    def _tensor(self, name: str) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.place}: tensor {name} is missing")
        return stored

    def _handle(self, stored: str) -> StoredSlice | torch.Tensor:
        if self._external is not None:
            return self._external.weights[stored]
        path = self._files[stored]
        handle = self._open_once(path).get(stored)
        if handle is None:
            raise CheckpointError(f"{self.place}: {path.name} holds no tensor {stored}")
        return handle

    def _open_once(self, path: Path) -> Weights:
        if path not in self._handles:
            self._handles[path] = open_weights(path)
        return self._handles[path]


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _integer_format(settings: dict[str, Any] | None, directory: Path) -> IntegerFormat | None:
    try:
        return None if settings is None else integer_format(settings)
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from error


def _locate_shards(directory: Path, index: dict[str, Any]) -> dict[str, Path]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{directory}: the index of shards has no weight_map")
    for file_name in {str(value) for value in weight_map.values()}:
        # The index is data: it may name files of this directory only.
        if Path(file_name).name != file_name or not (directory / file_name).is_file():
            raise CheckpointError(f"{directory}: the index names shard {file_name!r}, which is not there")
    return {str(name): directory / str(file_name) for name, file_name in weight_map.items()}
