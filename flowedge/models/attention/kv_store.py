"""The keys and values of a session's rows, in the dtype of the block or in 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import torch

from flowedge.core.errors import BadRequestError
from flowedge.models.architecture import Architecture
from flowedge.models.families.parts import KeyHeads
from flowedge.models.host.lazy_zeros import LEAST_BYTES, lazy_zeros, takes_memory_as_written
from flowedge.models.host.shared_pages import SharedRows, rows_of_pages

if TYPE_CHECKING:
    from typing_extensions import Self

KvFormat = Literal["native", "int8"]
NATIVE: KvFormat = "native"
_LARGEST = 127  # of an int8 value; -128 is not used, so that a value's negative is a value
_WORTH_IT = 0.6  # a cache in 8 bits with more than this share of the bytes is refused


def kv_format(name: str) -> KvFormat:
    """Return the format of a KV cache by its name; "" stands for native.

    Raises:
        BadRequestError: when there is no format of this name.
    """
    for known in get_args(KvFormat):
        if known == (name or "native"):
            found: KvFormat = known
            return found
    raise BadRequestError(f"KV cache format {name!r} is not one of {', '.join(get_args(KvFormat))}")


def kv_row_bytes(heads: Iterable[KeyHeads], dtype: torch.dtype, kv: KvFormat = "native") -> int:
    """The bytes of the keys and values of one row in layers with these heads."""
    if kv == "int8":
        return sum(2 * own.count * (own.size + torch.float32.itemsize) for own in heads)
    return sum(2 * own.count * own.size * dtype.itemsize for own in heads)


def saved_rows(heads: KeyHeads, rows: int, dtype: torch.dtype, kv: KvFormat = "native") -> int:
    """Return how many rows' memory is saved where a cache has its first `rows` rows of another's memory."""
    row_bytes = heads.size * (1 if kv == "int8" else dtype.itemsize)
    if rows % rows_of_pages(row_bytes):
        return 0
    return rows * row_bytes * 2 * heads.count // kv_row_bytes([heads], dtype, kv)


def session_row_bytes(
    architecture: Architecture, start: int, stop: int, dtype: torch.dtype, kv: KvFormat = "native"
) -> int:
    """The bytes of a row that the memory of sessions is counted by, in a block of layers [start, stop).

    A block of recurrent layers alone counts as if one had keys and values.
    """
    return kv_row_bytes(architecture.cached_heads(start, stop) or [architecture.usual_heads], dtype, kv)


def check_kv(heads: Iterable[KeyHeads], dtype: torch.dtype, kv: str, exact: bool) -> None:
    """Check that a KV cache of a format exists and saves memory.

    Args:
        heads: those of the layers; exact: whether the block is asked to be exact.

    Raises:
        BadRequestError: when the format is unknown, the block is not exact, or too little memory is saved.
    """
    if kv_format(kv) != "int8":
        return
    if not exact:
        raise BadRequestError(
            "a KV cache in int8 is read by exact attention alone; ask for exact decoding too"
        )
    for own in dict.fromkeys(heads):
        share = kv_row_bytes([own], dtype, "int8") / kv_row_bytes([own], dtype)
        if share > _WORTH_IT:
            raise BadRequestError(
                f"a KV cache in int8 would take {share:.0%} of the memory of one in "
                f"{str(dtype).removeprefix('torch.')}, because each head of {own.size} values has a "
                "scale; leave out the KV cache format"
            )


class KeyValueStore(Protocol):
    """Keys, at index 0, and values, at index 1, of all rows and layers of a session.

    Attributes:
        kv: [layers, 2, kv_heads, capacity, head_size], in the format that is stored; not where heads differ
            between layers.
    """

    @property
    def kv(self) -> torch.Tensor: ...

    @property
    def capacity(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int: ...

    def store_of(self, layer: int) -> tuple[PlainStore | Int8Store, int]:
        """The store of a layer and of others with heads alike, and the layer's index in it."""

    def write_both(self, layer: int, start: int, keys_values: torch.Tensor) -> None:
        """Store keys and values [2, kv_heads, rows, head_size] from slot `start` on."""

    def put_both(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store keys and values [2, kv_heads, rows, head_size] in an index of slots [rows] on the device."""

    def clear(self) -> None:
        """Fill all slots with zeros, as in a new store."""

    def view(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, kv_heads, slots, head_size] in the block's dtype, without a copy."""

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:
        """Keys and values of the slots from `start` on in float32, with zeros beyond the capacity.

        Args:
            memory: float32 [2, kv_heads, slots, head_size], which is overwritten unless a view is returned.
        """

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """Keys and values [2, kv_heads, n, head_size] of an index of slots [n] in float32."""

    def move(self, start: int, slots: torch.Tensor) -> None:
        """Copy the slots of an index to the slots from `start` on, in all layers."""

    def copy(self, source: Self, start: int, slots: torch.Tensor | slice) -> None:
        """Copy slots of another store of the same layers to the slots from `start` on, in all layers."""

    def begin_as(self, source: Self, rows: int) -> int:
        """Make the first rows those of another store, and return how many of them lie in pages of both.

        Nothing may have been written before. Rows that do not fill whole pages of memory are copied.
        """


class _OneTensor:
    """What stores have in common that hold all layers in a tensor."""

    kv: torch.Tensor

    @property
    def capacity(self) -> int:
        return self.kv.shape[3]

    @property
    def device(self) -> torch.device:
        return self.kv.device


class PlainStore(_OneTensor):
    """Keys and values in the dtype of the block."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> None:
        self._rows = SharedRows(shape, dtype, device)
        self.kv = self._rows.tensor
        # Views of each layer, since making a view takes as long as writing a row.
        self._layers = self.kv.unbind()
        self._keys, self._values = self.kv[:, 0, None].unbind(), self.kv[:, 1, None].unbind()

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def store_of(self, layer: int) -> tuple[PlainStore, int]:
        return self, layer

    def write_both(self, layer: int, start: int, keys_values: torch.Tensor) -> None:
        self._layers[layer].narrow(2, start, keys_values.shape[2]).copy_(keys_values)

    def put_both(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        self._layers[layer].index_copy_(2, slots, keys_values)

    def clear(self) -> None:
        self.kv.zero_()

    def view(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = stop - start
        return self._keys[layer].narrow(2, start, slots), self._values[layer].narrow(2, start, slots)

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:
        stored = self._layers[layer][:, :, start : start + memory.shape[2]]
        if stored.dtype == memory.dtype and stored.shape == memory.shape:
            return stored
        if stored.shape == memory.shape:
            return memory.copy_(stored)
        memory[:, :, : stored.shape[2]] = stored
        memory[:, :, stored.shape[2] :] = 0
        return memory

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        return self._layers[layer].index_select(2, slots).float()

    def move(self, start: int, slots: torch.Tensor) -> None:
        # index_select copies the rows that move, so that overlapping moves are right.
        self.kv[:, :, :, start : start + len(slots)] = self.kv.index_select(3, slots)

    def copy(self, source: PlainStore, start: int, slots: torch.Tensor | slice) -> None:
        _copy_slots(source.kv, self.kv, start, slots)

    def begin_as(self, source: PlainStore, rows: int) -> int:
        return _begin_as(self._rows, source._rows, rows)


class Int8Store(_OneTensor):
    """Keys and values in int8, with a float32 scale for each head of each row, so that rows are independent.

    Attributes:
        scale: [layers, 2, kv_heads, capacity, 1].
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | str) -> None:
        self._rows = SharedRows(shape, torch.int8, device)
        self.kv = self._rows.tensor
        self.scale = lazy_zeros((*shape[:-1], 1), torch.float32, device)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + self.scale.nbytes

    def store_of(self, layer: int) -> tuple[Int8Store, int]:
        return self, layer

    def write_both(self, layer: int, start: int, keys_values: torch.Tensor) -> None:
        encoded, scale = _encoded(keys_values)
        stop = start + keys_values.shape[2]
        self.kv[layer, :, :, start:stop] = encoded
        self.scale[layer, :, :, start:stop] = scale

    def put_both(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        encoded, scale = _encoded(keys_values)
        self.kv[layer].index_copy_(2, slots, encoded.to(torch.int8))
        self.scale[layer].index_copy_(2, slots, scale)

    def clear(self) -> None:
        self.kv.zero_()
        self.scale.zero_()

    def view(self, *_: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise TypeError("a KV cache in int8 has no rows in the block's dtype to view")

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:
        stored = self.kv[layer, :, :, start : start + memory.shape[2]]
        count = stored.shape[2]
        scale = self.scale[layer, :, :, start : start + count]
        torch.mul(stored, scale, out=memory[:, :, :count])
        memory[:, :, count:] = 0
        return memory

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        return self.kv[layer].index_select(2, slots) * self.scale[layer].index_select(2, slots)

    def move(self, start: int, slots: torch.Tensor) -> None:
        for stored in (self.kv, self.scale):
            stored[:, :, :, start : start + len(slots)] = stored.index_select(3, slots)

    def copy(self, source: Int8Store, start: int, slots: torch.Tensor | slice) -> None:
        _copy_slots(source.kv, self.kv, start, slots)
        _copy_slots(source.scale, self.scale, start, slots)

    def begin_as(self, source: Int8Store, rows: int) -> int:
        _copy_slots(source.scale, self.scale, 0, slice(0, rows))  # of many rows to a page
        return _begin_as(self._rows, source._rows, rows)


class MixedStore:
    """Keys and values of layers whose heads differ: a store for each kind of heads."""

    def __init__(self, parts: Sequence[PlainStore | Int8Store], places: Sequence[tuple[int, int]]) -> None:
        """Join stores of equal capacity; `places` are, by layer, its part and its index there."""
        self._parts, self._places = list(parts), list(places)

    @property
    def kv(self) -> torch.Tensor:
        raise TypeError("layers whose heads differ have no tensor of keys and values in common")

    @property
    def capacity(self) -> int:
        return self._parts[0].capacity

    @property
    def device(self) -> torch.device:
        return self._parts[0].device

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def store_of(self, layer: int) -> tuple[PlainStore | Int8Store, int]:
        part, index = self._places[layer]
        return self._parts[part], index

    def write_both(self, layer: int, start: int, keys_values: torch.Tensor) -> None:
        part, index = self.store_of(layer)
        part.write_both(index, start, keys_values)

    def put_both(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        part, index = self.store_of(layer)
        part.put_both(index, slots, keys_values)

    def clear(self) -> None:
        for part in self._parts:
            part.clear()

    def view(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        part, index = self.store_of(layer)
        return part.view(index, start, stop)

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:
        part, index = self.store_of(layer)
        return part.read(index, start, memory)

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        part, index = self.store_of(layer)
        return part.take(index, slots)

    def move(self, start: int, slots: torch.Tensor) -> None:
        for part in self._parts:
            part.move(start, slots)

    def copy(self, source: MixedStore, start: int, slots: torch.Tensor | slice) -> None:
        for own, other in zip(self._parts, source._parts, strict=True):
            own.copy(other, start, slots)  # type: ignore[arg-type]  # stores of a block have one format

    def begin_as(self, source: MixedStore, rows: int) -> int:
        pairs = zip(self._parts, source._parts, strict=True)
        return min(own.begin_as(other, rows) for own, other in pairs)  # type: ignore[arg-type]  # as in copy


def _copy_slots(source: torch.Tensor, stored: torch.Tensor, start: int, slots: torch.Tensor | slice) -> None:
    copied = source[:, :, :, slots] if isinstance(slots, slice) else source.index_select(3, slots)
    stored[:, :, :, start : start + copied.shape[3]] = copied


def _begin_as(own: SharedRows, source: SharedRows, rows: int) -> int:
    """See KeyValueStore.begin_as; rows of little memory, which is taken at once, count as shared."""
    shared = own.begin_as(source, rows)
    _copy_slots(source.tensor, own.tensor, shared, slice(shared, rows))
    return rows if source.takes_memory_at_once or own.takes_memory_at_once else shared


def _encoded(keys_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers [2, kv_heads, rows, head_size] within int8, in float32, and their scale [.., 1]."""
    rows = keys_values.to(torch.float32, copy=True)
    scale = rows.abs().amax(-1, keepdim=True) / _LARGEST
    scale.clamp_(min=torch.finfo(torch.float32).tiny)
    return rows.div_(scale).round_().clamp_(-_LARGEST, _LARGEST), scale


def new_store(
    heads: Sequence[KeyHeads], rows: int, dtype: torch.dtype, device: torch.device | str, kv: KvFormat
) -> KeyValueStore:
    """Allocate zeros for so many rows of layers with these heads."""
    kinds = list(dict.fromkeys(heads)) or [KeyHeads(1, 1)]  # of recurrent layers alone, no layer
    places = [(kinds.index(own), heads[:layer].count(own)) for layer, own in enumerate(heads)]
    parts = list[PlainStore | Int8Store]()
    for kind in kinds:
        row_bytes = kind.size * (1 if kv == "int8" else dtype.itemsize)
        ranges = list(heads).count(kind) * 2 * kind.count
        own_rows = rows
        if takes_memory_as_written(device) and ranges * rows * row_bytes >= LEAST_BYTES:
            own_rows += -rows % rows_of_pages(row_bytes)  # takes no memory
        shape = (list(heads).count(kind), 2, kind.count, own_rows, kind.size)
        parts.append(Int8Store(shape, device) if kv == "int8" else PlainStore(shape, dtype, device))
    return parts[0] if len(parts) == 1 else MixedStore(parts, places)
