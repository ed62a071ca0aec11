"""A checkpoint of Hugging Face or GGUF, read one tensor or a few rows of a tensor at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.architecture import EMBEDDING, LM_HEAD
from flowedge.models.checkpoint.model_config import ModelConfig
from flowedge.models.checkpoint.model_source import BUNDLED, BUNDLED_PATH, model_directory
from flowedge.models.checkpoint.mxfp4_stack import Mxfp4Stack
from flowedge.models.checkpoint.tensor_files import DirectoryTensors, ExternalTensors, TensorFiles
from flowedge.models.families.parts import DeltaNet, Latent
from flowedge.models.files import prequantised
from flowedge.models.files.stored_tensors import (
    Indexed,
    StoredTensor,
    delta_parts,
    experts_of,
    gate_up_parts,
    is_by_key_head,
    is_gate_up,
    is_keys_and_values,
    is_stack,
    latent_parts,
)
from flowedge.models.files.weight_file import StoredSlice, Weights, WeightSlice
from flowedge.models.gguf.model_files import files_in
from flowedge.models.gguf_families.architectures import ARCHITECTURE_KEY, architecture_of
from flowedge.models.gguf_families.module_tensors import module_tensors
from flowedge.models.quant.packed_integers import IntegerRows

_WEIGHT = ".weight"
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.")


def name_tensors(model: ModelConfig, files: TensorFiles, place: Path) -> dict[str, StoredTensor]:
    """Return the place of each tensor, by the name that the family's modules have for it.

    Args:
        place: the path of the model to name in errors.

    Raises:
        CheckpointError: when the tensors do not fit the architecture, or a quantiser stored a matrix in which
            no part can be told from another.
    """
    architecture = model.raw.get(ARCHITECTURE_KEY)
    if architecture is not None:
        return _name_gguf_tensors(model, files, place, architecture)
    found: dict[str, StoredTensor] = {}
    named = {model.family.module_name(stored): stored for stored in files.paths}
    _check_divided(model, named, place)
    for name, stored in named.items():
        net = model.architecture.recurrence if model.family.delta_by_key_head else None
        if isinstance(net, DeltaNet) and is_by_key_head(name):
            found |= delta_parts(name, stored, tuple(files.handle(stored).shape), net)
        elif model.architecture.latent is not None and is_keys_and_values(_weight_of(name)):
            found |= _keys_and_values(model, model.architecture.latent, named, name, files)
        elif is_gate_up(name) and not model.architecture.fused:
            found |= gate_up_parts(name, stored, tuple(files.handle(stored).shape))
        elif is_stack(name):
            shape, in_turns = tuple(files.handle(stored).shape), model.family.experts_in_turns
            found |= experts_of(name, stored, shape, in_turns=in_turns)
        else:
            found[name] = StoredTensor(stored)
    return found


def _check_divided(model: ModelConfig, named: Mapping[str, str], place: Path) -> None:
    """Raise CheckpointError for a matrix that blocks divide, if bitsandbytes stored it quantised."""
    if model.quant == "none" or model.integer_format is not None:
        return
    for name, stored in named.items():
        if not name.endswith(_WEIGHT) or prequantised.marker(model.quant, name) not in named:
            continue
        is_divided = is_gate_up(name) and not model.architecture.fused
        if is_divided or is_by_key_head(name) or is_keys_and_values(name):
            raise CheckpointError(
                f"{place}: tensor {stored} is quantised in {model.quant} as one matrix, which cannot be "
                f"divided; give the original checkpoint and the quantisation (--quant {model.quant})"
            )


def _keys_and_values(
    model: ModelConfig, latent: Latent, named: Mapping[str, str], name: str, files: TensorFiles
) -> Mapping[str, StoredTensor]:
    """What a tensor of the linear layer to keys and values of latent attention holds, by name.

    named: the stored names by those of the family's modules.
    """
    heads, form = model.architecture.heads, model.integer_format
    stored, weight = named[name], _weight_of(name)
    layer = weight.removesuffix("weight")
    marker = weight if form is None or form.marker(layer) not in named else form.marker(layer)
    if name != marker:
        return {name: StoredTensor(stored)}
    if marker == weight:
        return latent_parts(weight, stored, tuple(files.handle(stored).shape), heads, latent)
    shape = heads * (latent.plain + latent.value), latent.rank  # as is checked when it is read
    parts = latent_parts(weight, stored, shape, heads, latent, integers=layer)
    return {name: StoredTensor(stored), **parts}


def _weight_of(name: str) -> str:
    """The name of the weight of the linear layer that a tensor belongs to."""
    return f"{name.rpartition('.')[0]}{_WEIGHT}"


def _name_gguf_tensors(
    model: ModelConfig, files: TensorFiles, place: Path, architecture: object
) -> dict[str, StoredTensor]:
    shapes = {stored: tuple(files.handle(stored).shape) for stored in files.paths}
    heads, kv_heads = model.architecture.heads, model.architecture.kv_heads
    try:
        layers = int(model.config.num_hidden_layers)
        return module_tensors(architecture_of(architecture), shapes, heads, kv_heads, layers)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}") from error


def stored_layers(names: Iterable[str]) -> frozenset[int]:
    """The indices of the decoder layers that any of the named tensors belongs to."""
    return frozenset(int(match[1]) for match in map(_LAYER.match, names) if match is not None)


class Checkpoint:
    """A model on disk: its config and its tensors, which are read on demand.

    Tensor names are those of the family's modules, whatever names the files use.

    Attributes:
        directory: the directory of the config; for a GGUF model, one of this process.
        place: the path to name in messages: the directory, or the GGUF file.
        family: the model's family; config: its decoder's config, of the family's class.
        architecture: what the config says of the computation.
        gguf: the GGUF files that hold the tensors; empty for other models.
        tokenizer: the directory of a tokenizer that replaces the model's; None for the model's.
        quant: the quantisation that holds the checkpoint's linear layers as they are stored, "none" for most.
        integer_format: the layout of weights that GPTQ, AWQ or compressed-tensors stored; None for others.
    """

    def __init__(self, directory: Path, external: ExternalTensors | None = None) -> None:
        """Open the model in `directory`. `external` replaces the weight files of the directory."""
        self.directory = directory
        self.tokenizer: Path | None = None
        self._converted = files_in(directory)
        self.gguf: tuple[Path, ...] = () if self._converted is None else self._converted.paths
        self.place = self.gguf[0] if self.gguf else directory
        model = ModelConfig.read(directory, self.place)
        self.family, self.config, self.architecture = model.family, model.config, model.architecture
        self.quant, self.integer_format = model.quant, model.integer_format
        self._files: TensorFiles = external or DirectoryTensors(directory, self.gguf, model)
        self._tensors = name_tensors(model, self._files, self.place)

    @classmethod
    def open(cls, source: str, *, hub: bool = True) -> Checkpoint:
        """Open a directory, a GGUF file, a model of the hub (see `model_directory`) or the word "bundled".

        `hub` allows a download from the hub.

        Raises:
            CheckpointError: when the source cannot be found, downloaded or understood.
        """
        if source == BUNDLED:
            return cls(BUNDLED_PATH / "model")
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
        return self._files.paths[stored.name], stored

    def drop_cached_pages(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Free the page cache of rows [start, stop) of a tensor, or of the whole file that holds it.

        It is the file also where the rows are stored in another order, or with others. What the system has
        read ahead goes with the file.
        """
        stored = self._tensor(name)
        for handle in map(self._files.handle, stored.names):
            if isinstance(
                handle, torch.Tensor
            ):  # of a mapped file, whose pages stay as long as they are mapped
                continue
            if stop is None or stored.encoding or not stored.is_whole:
                handle.blocks.file.drop_cached(0, 0)
            else:
                handle.blocks.drop_cached(start, stop)

    @cached_property
    def stored_bytes(self) -> int:
        """The bytes of the files that hold the tensors."""
        return sum(path.stat().st_size for path in set(self._files.paths.values()) if path.is_file())

    def tensors_of(self, module: str) -> Sequence[str]:
        """The names of a module's own tensors, those by which a quantiser stores its weight among them.

        module: its name, with the last dot.
        """
        return self._by_module.get(module, ())

    @cached_property
    def _by_module(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name in self._tensors:
            # Parts of a weight of bitsandbytes have the weight's name before their own.
            module = name.partition(_WEIGHT)[0] if _WEIGHT in name else name.rpartition(".")[0]
            found.setdefault(f"{module}.", []).append(name)
        return found

    def sha256(self, name: str) -> str | None:
        """The SHA-256 of a tensor's bytes, or None where only reading the tensor would tell."""
        stored = self._tensor(name)
        return self._files.sha256(stored.name) if stored.is_whole else None

    @property
    def stores_blocks(self) -> bool:
        """Whether `block_type` may name a type: of a GGUF model, or of one with experts in MXFP4."""
        return bool(self.gguf) or any(part.exponents for part in self._tensors.values())

    def block_type(self, name: str) -> str:
        """The type of GGUF that a tensor is stored in, if it stores blocks; "" for other tensors."""
        handle = self._handle(self._tensor(name))
        return "" if isinstance(handle, torch.Tensor) or handle.blocks is handle else handle.type_name

    def stored_encoding(self, name: str) -> str:
        """How the values of a tensor follow from its stored bytes; "" where the bytes are the values."""
        return f"{self.block_type(name)} {self._tensor(name).encoding}".strip()

    def is_read_unchanged(self, name: str) -> bool:
        """Return whether the file has a tensor's bytes as memory does, so that they can be read into it."""
        stored = self._tensor(name)
        return stored.is_whole and not stored.encoding and self._plain(stored) is not None

    def read_into(self, rows: torch.Tensor, name: str, start: int) -> None:
        """Fill contiguous rows in the stored dtype, on the CPU, from the row `start` of a tensor on.

        The tensor is one that is_read_unchanged.
        """
        handle = self._plain(self._tensor(name))
        assert handle is not None, "is_read_unchanged"
        try:
            handle.read_into(rows, start)
        except OSError as error:
            raise CheckpointError(f"{self.place}: tensor {name} cannot be read: {error}") from error

    def _plain(self, stored: StoredTensor) -> WeightSlice | None:
        handle = self._handle(stored)
        return handle if isinstance(handle, WeightSlice) else None

    def block_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read rows [start, stop) of a tensor as it is stored, uint8 [rows, bytes] for blocks."""
        return self._read_stored(name, self._tensor(name), start, stop)

    def file_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read rows [start, stop) of a tensor as it is stored, counted in the order of the file."""
        stored = self._tensor(name)
        in_file = replace(stored, paired_heads=0, added=0.0, axis=None, log_negated=False)
        return self._read_stored(name, in_file, start, stop)

    def _read_stored(self, name: str, part: StoredTensor, start: int, stop: int) -> torch.Tensor:
        handle = self._handle(part)
        whole = handle if isinstance(handle, torch.Tensor) else handle.blocks
        return self._take(name, part, whole, slice(start, stop))

    def is_quantised(self, name: str) -> bool:
        """Return whether a weight is stored in the quantisation `quant`."""
        if self.integer_format is not None:
            return self.has(self.integer_format.marker(name.removesuffix("weight")))
        return self.quant != "none" and self.has(prequantised.marker(self.quant, name))

    def quantised(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a weight that bitsandbytes stored quantised, by their names in its encoded form."""
        parts = prequantised.tensor_names(self.quant, name)
        return {part: self._read(stored) for part, stored in parts.items()}

    def quantised_bytes(self, name: str) -> int:
        """The bytes in memory of a weight that bitsandbytes stored quantised, scales included."""
        parts = prequantised.tensor_names(self.quant, name)
        return self.tensor_bytes(parts[part] for part in parts if part in prequantised.COUNTED)

    def header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of a tensor of any dtype, from the file's header."""
        return self._header(name)

    def raw(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Read a tensor of any dtype, or some of its rows, on the CPU."""
        return self._read(name, rows)

    @cached_property
    def transformers_config(self) -> Any:
        """The decoder's config, read by transformers' own class: for the reference."""
        return ModelConfig.read(self.directory, self.place, in_transformers=True).config

    @property
    def manifest_id(self) -> str | None:
        """The id of the manifest of external tensors; None for a model in a directory."""
        return self._files.manifest_id

    @property
    def files(self) -> list[Weights]:
        """The tensors of each weight file, in the order of the files' names."""
        return self._files.opened()

    def _read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        stored = self._tensor(name)
        return self._take(name, stored, self._handle(stored), rows)

    def _integer_rows(self, part: StoredTensor) -> IntegerRows:
        form, latent = self.integer_format, self.architecture.latent
        assert form is not None and latent is not None, "as named"
        rows = IntegerRows(form, part.integers, self)
        expected = self.architecture.heads * (latent.plain + latent.value), latent.rank
        if rows.shape != expected:
            raise CheckpointError(
                f"{self.place}: {part.integers}weight is stored as {list(rows.shape)}, the config asks for "
                f"{list(expected)}"
            )
        return rows

    def _handle(self, part: StoredTensor) -> StoredSlice | Mxfp4Stack | IntegerRows | torch.Tensor:
        """The stored tensor that a part is of."""
        handle = self._files.handle(part.name)
        if part.integers:
            return self._integer_rows(part)
        if not part.exponents:
            return handle
        if part.exponents not in self._files.paths:
            raise CheckpointError(f"{self.place}: tensor {part.exponents} is missing")
        try:
            return Mxfp4Stack(handle, self._files.handle(part.exponents))
        except CheckpointError as error:
            raise CheckpointError(f"{self.place}: tensor {part.name}: {error}") from error

    def _take(self, name: str, part: StoredTensor, whole: Indexed, rows: slice | None) -> torch.Tensor:
        try:
            return part.take(whole, rows)
        except OSError as error:
            raise CheckpointError(f"{self.place}: tensor {name} cannot be read: {error}") from error

    def tensor_bytes(self, names: Iterable[str]) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in map(self._header, names))

    @cached_property
    def _layers(self) -> frozenset[int]:
        return stored_layers(self._tensors)

    def check_layer(self, index: int) -> None:
        """Check that the files hold a tensor of decoder layer `index`.

        Raises:
            CheckpointError: when they hold none, because the config asks for more layers than there are.
        """
        if index not in self._layers:
            raise CheckpointError(
                f"{self.place}: config.json asks for {self.config.num_hidden_layers} layers "
                f"(num_hidden_layers), and the files hold no tensor of layer {index}"
            )

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
        return self._files.fingerprint

    def _stored(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        shape, dtype = self._header(name)
        if not dtype.is_floating_point:
            raise CheckpointError(f"{self.place}: tensor {name} has type {dtype}, not a float")
        return shape, dtype

    def _header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        stored = self._tensor(name)
        handle = self._handle(stored)
        return stored.shape(tuple(handle.shape)), handle.dtype

    def _tensor(self, name: str) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.place}: tensor {name} is missing{self._advice}")
        return stored

    @property
    def _advice(self) -> str:
        """What to do where a tensor is missing; empty where the checkpoint is not quantised."""
        if self.quant == "none":
            return ""
        return (
            "; if the quantiser stored it in another form, give the original checkpoint and the quantisation "
            f"(--quant {self.quant})"
        )
