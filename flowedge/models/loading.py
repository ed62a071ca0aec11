"""Decoder layers that are created without memory and filled from a checkpoint, a few rows at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.device.memory import lately_available
from flowedge.models.architecture import FINAL_NORM, layer_prefix
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.decoder_layer import DecoderLayer, empty_layer
from flowedge.models.experts import Router
from flowedge.models.files.weight_file import byte_view
from flowedge.models.fusing import adjacent_memory
from flowedge.models.host.parallel import Step, run_steps
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.block_repacking import (
    can_repack,
    is_held_as_stored,
    repack_blocks,
    repacked_block_bytes,
    stored_bytes,
    stored_linear,
)
from flowedge.models.quant.quant_cache import CacheKey, QuantCache, content_of
from flowedge.models.quant.quantize import backend_of, check_quant, linear_bytes
from flowedge.models.quant.repacking import build_repacked, repacked_bytes
from flowedge.models.row_functions import RmsNorm
from flowedge.text.json_object import errors_of_file

CHUNK_BYTES = 16 << 20  # bytes of a stored tensor that are read at once
SMALL_BYTES = 64 << 20  # of files, which memory is not asked for


@dataclass(frozen=True)
class LayerLoader:
    """Loads decoder layers of a checkpoint with their linear layers quantised.

    Attributes:
        quant: the quantisation of the linear layers, as `checkpoint_quant` returns it. With "none", those
            that a GGUF file stores as integers stay so where the kernels multiply with them.
        dtype: the dtype of all other weights, and of the rows that the layers compute.
        quant_cache: the cache that quantised weights are taken from and put into.
    """

    checkpoint: Checkpoint
    quant: str
    dtype: torch.dtype
    device: torch.device
    quant_cache: QuantCache | None = None

    def load_all(self, start: int, stop: int) -> list[DecoderLayer]:
        """Load decoder layers [start, stop), which read the layers of caches that `cached_layers` names.

        On the CPU, as many tensors are read and quantised at a time as torch has threads to compute with.

        Raises:
            CheckpointError: when a tensor is missing, does not fit the config or cannot be read.
        """
        architecture = self.checkpoint.architecture
        recurrent = [index for index in range(start, stop) if architecture.is_recurrent(index)]
        cached = architecture.cached_layers(start, stop)
        layers = []
        for index in range(start, stop):
            recurs, place = index in recurrent, 0
            if recurs or architecture.attends(index):
                place = recurrent.index(index) if recurs else cached.index(architecture.key_layers[index])
            layers.append(_empty_layer(self.checkpoint, index, place))
        self.fill([(layer, layer_prefix(index)) for index, layer in enumerate(layers, start)])
        return layers

    def fill(self, modules: Sequence[tuple[nn.Module, str]]) -> None:
        """Load modules without memory, each with its tensors' prefix; errors as in `load_all`."""
        for module, prefix in modules:
            _check_biases(module, self.checkpoint, prefix)
        steps = [step for module, prefix in modules for step in self._steps(module, prefix)]
        run_steps(steps, torch.get_num_threads() if self.device.type == "cpu" else 1)
        if self._computed_by_torch:
            parts = (each for module, _ in modules for each in list(module.modules()))
            for layer in [each for each in parts if isinstance(each, DecoderLayer)]:
                layer.fuse()  # one by one: a joined weight may be a copy

    def _steps(self, layer: nn.Module, prefix: str) -> Iterator[Step]:
        """Yield a function for each module of an empty layer that has weights, which loads the weights."""
        joined = self._computed_by_torch and self.quant == "none"
        memory = adjacent_memory(layer, self.dtype, self.device) if joined else {}
        for path, child in list(layer.named_modules()):
            base = f"{prefix}{path}." if path else prefix
            if path and isinstance(child, nn.Linear) and self._is_packed(f"{base}weight"):
                yield partial(self._load_quantised, layer, path, child, base)
            elif wanted := list(child.named_parameters(recurse=False)):
                within = {name: memory.pop(f"{path}.{name}", None) for name, _ in wanted}
                yield partial(self._load_parameters, child, base, wanted, within)

    def _load_quantised(self, layer: nn.Module, path: str, like: nn.Linear, base: str) -> None:
        unquantised = [pair for pair in like.named_parameters(recurse=False) if pair[0] != "weight"]
        self._load_parameters(like, base, unquantised, {})
        layer.set_submodule(path, self._quantised_linear(f"{base}weight", like))
        if self._gives_back:
            for name in self.checkpoint.tensors_of(base):
                self.checkpoint.drop_cached_pages(name)

    def _load_parameters(
        self,
        module: nn.Module,
        base: str,
        wanted: Sequence[tuple[str, nn.Parameter]],
        memory: Mapping[str, torch.Tensor | None],
    ) -> None:
        for name, parameter in wanted:
            dtype = _dtype_of(module, name, self.dtype)
            own = self._parameter(base + name, parameter.shape, memory.get(name), dtype)
            setattr(module, name, own)

    def _is_packed(self, name: str) -> bool:
        """Return whether a linear layer's weight is held as integers."""
        checkpoint = self.checkpoint
        return self.quant != "none" or (
            checkpoint.has(name) and is_held_as_stored(checkpoint, name, self.device)
        )

    @property
    def _computed_by_torch(self) -> bool:
        """Whether linear layers are joined; the compiled kernels take them as they are."""
        return self.device.type != "cpu" or bool(missing_reason())

    @property
    def _gives_back(self) -> bool:
        return gives_back_pages(self.checkpoint, self.device)

    def _parameter(
        self,
        name: str,
        shape: Sequence[int],
        memory: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> nn.Parameter:
        return load_parameter(self.checkpoint, name, shape, dtype or self.dtype, self.device, memory)

    def _quantised_linear(self, weight: str, like: nn.Linear) -> nn.Module:
        """The layer `like`, whose bias is loaded, with the tensor `weight` as its quantised weight."""
        checkpoint = self.checkpoint
        shape = (like.out_features, like.in_features)
        if self.quant == "none":
            checkpoint.check_shape(weight, shape)
            return stored_linear(checkpoint, weight, like)
        if checkpoint.quant == "none":
            checkpoint.check_shape(weight, shape)
            tensors = encoded_weight(
                checkpoint, weight, self.quant, self.dtype, self.quant_cache, gives_back=self._gives_back
            )
            return backend_of(self.quant).build(tensors, like, self.dtype, self.device)
        if not checkpoint.is_quantised(weight):
            like.weight = self._parameter(weight, shape)
            return like
        try:
            if checkpoint.integer_format is not None:
                stored = checkpoint.integer_format.read(weight.removesuffix("weight"), checkpoint)
                return build_repacked(stored, like, self.dtype, self.device)
            tensors = checkpoint.quantised(weight)
            return backend_of(self.quant).build(tensors, like, self.dtype, self.device)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.place}: {weight}: {error}") from error


def encoded_weight(
    checkpoint: Checkpoint,
    name: str,
    quant: str,
    dtype: torch.dtype,
    quant_cache: QuantCache | None = None,
    *,
    gives_back: bool = False,
) -> Tensors:
    """The quantised weight, from the cache or else made from the checkpoint and stored in the cache.

    A weight that needs only repacking is not cached.

    Args:
        dtype: of the block; the weight is rounded to it first, which is what the block would hold otherwise.
        gives_back: whether the page cache of a cached file is freed when the file was read.
    """
    backend = backend_of(quant)
    tensors = repack_blocks(checkpoint, name, quant)
    if tensors is not None:
        return tensors
    out_features, in_features = checkpoint.shape(name)
    rows = WeightRows(
        out_features,
        in_features,
        lambda start, stop: checkpoint.rows(name, start, stop).to(dtype),
        f"{checkpoint.place}: {name}",
    )
    if quant_cache is None:
        return backend.encode(rows)
    content, is_noted = _content(checkpoint, name, quant_cache)
    key = encoding_key(checkpoint, name, content, quant, dtype)

    def encode() -> Tensors:
        if is_noted:
            _check_content(checkpoint, name, content)
        return backend.encode(rows)

    return quant_cache.encoded(key, encode, gives_back=gives_back)


def _dtype_of(module: nn.Module, name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a module's parameter in a layer of a dtype."""
    return torch.float32 if isinstance(module, Router) and name in module.precise else dtype


def load_parameter(
    checkpoint: Checkpoint,
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    memory: torch.Tensor | None = None,
) -> nn.Parameter:
    """Load a tensor of the checkpoint as a frozen parameter, into the memory `memory` if that is given."""
    checkpoint.check_shape(name, shape)
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device) if memory is None else memory
    gives_back = gives_back_pages(checkpoint, device)
    # Straight into the tensor where its bytes are those of the file: no copy is made, not even of a few rows.
    straight = device.type == "cpu" and checkpoint.dtype(name) == dtype and checkpoint.is_read_unchanged(name)
    for start, stop in _chunks(checkpoint, name):
        if straight:
            checkpoint.read_into(tensor[start:stop], name, start)
        else:
            tensor[start:stop] = checkpoint.rows(name, start, stop)
        if gives_back:
            checkpoint.drop_cached_pages(name, start, stop)
    if gives_back:
        checkpoint.drop_cached_pages(name)
    return nn.Parameter(tensor, requires_grad=False)


def gives_back_pages(checkpoint: Checkpoint, device: torch.device) -> bool:
    """Return whether the page cache of a weight is freed as soon as the weight was read.

    An integrated GPU counts cached files as used memory, and does not wait until the system frees them. For a
    CPU it is done where memory does not hold the files beside what runs: then the weights that are loaded
    next would have to wait for the system to find pages to free.
    """
    size = checkpoint.stored_bytes
    return device.type != "cpu" or (size > SMALL_BYTES and lately_available() < size)


def checkpoint_quant(checkpoint: Checkpoint, quant: str) -> str:
    """The quantisation that layers are loaded in when `quant` is asked for.

    A checkpoint that is stored quantised is loaded as it is when "none" is asked for.

    Raises:
        BadRequestError: when the quantisation does not exist, or the checkpoint is stored in another one.
    """
    check_quant(quant)
    if checkpoint.quant == "none":
        return quant
    if quant in ("none", checkpoint.quant):
        return checkpoint.quant
    by = f" (by {checkpoint.integer_format.method})" if checkpoint.integer_format else ""
    raise BadRequestError(
        f"{checkpoint.place} is quantised in {checkpoint.quant} already{by}, so it cannot be loaded in "
        f"{quant}; omit the quantisation, or give the original checkpoint"
    )


def layer_bytes(
    checkpoint: Checkpoint,
    index: int,
    quants: Iterable[str],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> dict[str, int]:
    """The bytes in memory of the loaded decoder layer `index` by quantisation, from config and headers."""
    layer, prefix = _empty_layer(checkpoint, index), layer_prefix(index)
    return {quant: bytes_when_loaded(layer, checkpoint, prefix, quant, dtype, device) for quant in quants}


def bytes_when_loaded(
    module: nn.Module,
    checkpoint: Checkpoint,
    prefix: str,
    quant: str,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> int:
    """The bytes in memory of a module that is loaded from the tensors behind a prefix, from headers alone."""
    quant, device, total = checkpoint_quant(checkpoint, quant), torch.device(device), 0
    for path, child in module.named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            weight = f"{prefix}{path}.weight"
            if not isinstance(child, nn.Linear) or name != "weight":
                total += math.prod(parameter.shape) * _dtype_of(child, name, dtype).itemsize
            elif checkpoint.is_quantised(weight):
                total += _stored_bytes(checkpoint, weight)
            elif checkpoint.has(weight) and can_repack(checkpoint, weight, quant):
                total += repacked_block_bytes(checkpoint, weight)
            elif quant == "none" and checkpoint.has(weight) and is_held_as_stored(checkpoint, weight, device):
                total += stored_bytes(checkpoint, weight)
            else:
                own = quant if checkpoint.quant == "none" else "none"
                total += linear_bytes(child.out_features, child.in_features, own, dtype)
    return total


def _stored_bytes(checkpoint: Checkpoint, weight: str) -> int:
    """The bytes in memory of a weight that is stored quantised, scales included."""
    if checkpoint.integer_format is None:
        return checkpoint.quantised_bytes(weight)
    try:
        return repacked_bytes(checkpoint.integer_format.shape(weight.removesuffix("weight"), checkpoint))
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.place}: {weight}: {error}") from error


def encoding_key(checkpoint: Checkpoint, name: str, content: str, quant: str, dtype: torch.dtype) -> CacheKey:
    """The key of a quantised weight in a block of `dtype`; `content` as in CacheKey."""
    exact = torch.promote_types(checkpoint.dtype(name), dtype) == dtype
    return CacheKey(content, "" if exact else str(dtype), quant, backend_of(quant).format)


def linear_weights(checkpoint: Checkpoint, index: int) -> list[str]:
    """The names of the weights in decoder layer `index` that a quantisation applies to."""
    modules = _empty_layer(checkpoint, index).named_modules()
    prefix = layer_prefix(index)
    return [f"{prefix}{path}.weight" for path, child in modules if path and isinstance(child, nn.Linear)]


def weight_content(checkpoint: Checkpoint, name: str, sha256: str) -> str:
    """The `content` of a weight's CacheKey; `sha256` is the digest of the weight's stored bytes."""
    form = checkpoint.stored_encoding(name)
    return content_of(checkpoint.dtype(name), checkpoint.shape(name), f"{sha256} {form}".strip())


def _content(checkpoint: Checkpoint, name: str, quant_cache: QuantCache) -> tuple[str, bool]:
    """Return the `content` of a weight's CacheKey, and whether it was noted when the file was read before."""
    sha256 = checkpoint.sha256(name)
    if sha256 is not None:  # of an object of the weight cache, which was compared with it before
        return weight_content(checkpoint, name, sha256), False
    is_noted = True

    def compute() -> str:
        nonlocal is_noted
        is_noted = False
        return _read_content(checkpoint, name)

    path, part = checkpoint.source(name)
    return quant_cache.content(path, str(part), compute), is_noted


def _read_content(checkpoint: Checkpoint, name: str) -> str:
    digest = hashlib.sha256()
    for start, stop in _chunks(checkpoint, name):
        digest.update(byte_view(checkpoint.file_rows(name, start, stop).contiguous()))
    return weight_content(checkpoint, name, digest.hexdigest())


def _check_content(checkpoint: Checkpoint, name: str, content: str) -> None:
    """Check that a tensor still has the content by which its quantised weight will be found.

    Raises:
        CheckpointError: when the file's bytes have changed, but not its size and time.
    """
    if _read_content(checkpoint, name) != content:
        path, _ = checkpoint.source(name)
        raise CheckpointError(
            f"{path}: the bytes of {name} have changed, although the file's size and time are the same: the "
            "disk or the file is damaged. Download the model again; `touch` the file if it is right"
        )


def _chunks(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of some rows of a tensor after the other."""
    shape, itemsize = checkpoint.shape(name), checkpoint.dtype(name).itemsize
    count = max(1, CHUNK_BYTES // max(1, math.prod(shape[1:]) * itemsize))
    for start in range(0, shape[0], count):
        yield start, min(start + count, shape[0])


def _empty_layer(checkpoint: Checkpoint, index: int, cache_index: int = 0) -> DecoderLayer:
    checkpoint.check_layer(index)
    with errors_of_file(checkpoint.place, "the layers that config.json asks for cannot be made"):
        return empty_layer(checkpoint.architecture, index, cache_index)


def _check_biases(layer: nn.Module, checkpoint: Checkpoint, prefix: str) -> None:
    """Raise CheckpointError for a stored bias that the layer ignores: the model would be another one."""
    known = dict(layer.named_parameters())
    for path, child in layer.named_modules():
        name = f"{path}.bias"
        if isinstance(child, nn.Linear) and name not in known and checkpoint.has(prefix + name):
            # Early tools wrote a bias of zeros beside every weight of integers.
            if checkpoint.integer_format is not None and not checkpoint.tensor(prefix + name).any():
                continue
            raise CheckpointError(
                f"{checkpoint.place}: tensor {prefix}{name} is a bias that the config does not ask for"
            )


def load_norm(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> RmsNorm:
    """Load the norm behind the last layer."""
    architecture = checkpoint.architecture
    with torch.device("meta"):
        norm = RmsNorm(
            architecture.hidden,
            architecture.norm_eps,
            plus_one=architecture.norm_plus_one,
            in_float=architecture.norm_in_float,
        )
    norm.weight = load_parameter(checkpoint, FINAL_NORM, (architecture.hidden,), dtype, device)
    return norm.eval()
