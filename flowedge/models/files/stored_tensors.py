"""The place of a model's tensor in a checkpoint: a stored tensor, or a part of a stack of experts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.families.parts import DeltaNet, Latent
from flowedge.models.files.config_numbers import MAX_EXPERTS

_BY_KEY_HEAD = re.compile(r"((?:.*\.)?linear_attn\.)in_proj_(qkvz|ba)\.weight")
_GATE_UP = re.compile(r"(.*\.)gate_up_proj\.(\w+)")
# Of a linear layer, the parts whose rows or columns are its outputs, and the parts that all outputs share.
_BY_ROW = frozenset({"weight", "weight_packed", "weight_scale", "weight_zero_point"})
_BY_COLUMN = frozenset({"qweight", "qzeros", "scales"})  # of GPTQ and AWQ
_SHARED = frozenset({"g_idx", "weight_g_idx", "weight_shape"})
_KEYS_AND_VALUES = re.compile(r"((?:.*\.)?self_attn\.)kv_b_proj\.weight")
_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|up_proj|down_proj)(_bias|_blocks|_scales)?")


class Indexed(Protocol):
    """A tensor, or one of a file that is read by indexing."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: Any) -> torch.Tensor: ...


@dataclass(frozen=True)
class StoredTensor:
    """A stored tensor, or some rows of one expert in a stored stack of experts.

    Attributes:
        name: the stored tensor's name in its file.
        expert: the expert's index on the first axis of a stack; None for a whole stored tensor.
        rows: [start, stop) of the expert's rows, of which it has every one, or every `step`-th.
        transposed: whether the expert's rows are the columns of what is stored; of a stack, whether the rows
            that were chosen become columns.
        exponents: the stored tensor of the exponents of blocks in MXFP4; "" for other tensors.
        paired_heads: the number of heads among the rows, if the two rows that a rotary angle turns are stored
            side by side; 0 if the first half of a head's rows precedes the second half, as in transformers.
        added: the value that was added to each element before it was stored.
        spans: the [start, stop) of the stored rows that this part has, in its order; none for all rows.
        axis: where an axis of length 1 was left out; None where none was.
        log_negated: whether the stored values are -e^x of the model's values x.
        flat: whether the stored axes are one in the model.
        stack: the number of matrices whose rows are stored one after the other, and which are a stack in the
            model, each with some of its rows as an expert; 0 for none.
        by_column: whether `spans` are those of columns.
        integers: the linear layer, with its last dot, whose weight a quantiser stored as integers in several
            tensors, of which `name` is one; "" where the stored tensor holds the values.
    """

    name: str
    expert: int | None = None
    rows: tuple[int, int] = (0, 0)
    paired_heads: int = 0
    added: float = 0.0
    spans: tuple[tuple[int, int], ...] = ()
    axis: int | None = None
    log_negated: bool = False
    flat: bool = False
    step: int = 1
    transposed: bool = False
    exponents: str = ""
    stack: int = 0
    by_column: bool = False
    integers: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stored tensors that this part is read from."""
        return (self.name, self.exponents) if self.exponents else (self.name,)

    @property
    def is_whole(self) -> bool:
        """Whether this is all of the stored tensor."""
        return self.expert is None and not self.spans and not self.stack

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of this part of a stored tensor of shape `whole`."""
        if self.spans:
            size = sum(stop - start for start, stop in self.spans)
            return (*whole[:1], size) if self.by_column else (size, *whole[1:])
        if self.stack:
            sizes = (self.rows[1] - self.rows[0], *whole[1:])
            return (self.stack, *(reversed(sizes) if self.transposed else sizes))
        if self.flat:
            return (math.prod(whole),)
        if self.axis is not None:
            return (*whole[: self.axis], 1, *whole[self.axis :])
        if self.expert is None:
            return whole
        inner = whole[1:-1] if self.transposed else whole[2:]
        return (len(range(*self.rows, self.step)), *inner)

    def take(self, whole: Indexed, rows: slice | None = None) -> torch.Tensor:
        """Read the given rows of this part, or all rows, out of the stored tensor `whole`."""
        if self.axis is not None:
            return whole[...].unsqueeze(self.axis)[rows or slice(None)]
        if self.log_negated or self.flat:
            values = whole[...].reshape(-1) if self.flat else whole[...]
            return (values.float().neg().log() if self.log_negated else values)[rows or slice(None)]
        if self.spans or self.stack:
            return self._matrices(whole, rows) if self.stack else self._joined(whole, rows)
        if self.expert is not None:
            span = range(*self.rows, self.step)[rows or slice(None)]
            chosen = slice(span.start, span.stop, span.step)
            if self.transposed:
                return whole[self.expert].t()[chosen].contiguous()
            index: Any = self.expert, chosen
        else:
            index = ... if rows is None else rows
        if self.paired_heads:
            return self._heads(whole, range(whole.shape[0])[rows or slice(None)])
        taken = whole[index]
        return taken - self.added if self.added else taken

    def _joined(self, whole: Indexed, rows: slice | None) -> torch.Tensor:
        """The given rows of all spans, or of all columns in them."""
        if self.by_column:
            chosen = whole[rows or slice(None)]
            return torch.cat([chosen[:, start:stop] for start, stop in self.spans], 1)
        return torch.cat([whole[span.start : span.stop] for span in self._spans_of(rows)])

    def _matrices(self, whole: Indexed, rows: slice | None) -> torch.Tensor:
        """The given matrices of a stack, or all."""
        chosen, size = range(self.stack)[rows or slice(None)], whole.shape[0] // self.stack
        stored = whole[chosen.start * size : chosen.stop * size]
        parts = stored.view(len(chosen), size, *stored.shape[1:])[:, slice(*self.rows)]
        return (parts.transpose(1, 2) if self.transposed else parts).contiguous()

    def _spans_of(self, rows: slice | None) -> list[range]:
        """The stored rows that the given rows of this part are, or all of them."""
        found, before = [], 0
        wanted = range(sum(stop - start for start, stop in self.spans))[rows or slice(None)]
        for start, stop in self.spans:
            first, last = max(wanted.start - before, 0), min(wanted.stop - before, stop - start)
            if first < last:
                found.append(range(start + first, start + last))
            before += stop - start
        return found

    def _heads(self, whole: Indexed, rows: range) -> torch.Tensor:
        """The rows in the order of transformers; all rows of their heads are read."""
        size = whole.shape[0] // self.paired_heads
        first, last = rows.start // size, -(-rows.stop // size)
        stored = whole[first * size : last * size]
        pairs = stored.view(last - first, size // 2, 2, *stored.shape[1:])
        ordered = pairs.transpose(1, 2).reshape(stored.shape)
        return ordered[rows.start - first * size : rows.stop - first * size]

    @property
    def encoding(self) -> str:
        """What distinguishes this part from the stored tensor, beside the choice of rows; "" if nothing."""
        paired = f"{self.paired_heads} paired heads" if self.paired_heads else ""
        kind = "columns " if self.by_column else "rows "
        spans = kind + ",".join(f"{start}:{stop}" for start, stop in self.spans) if self.spans else ""
        if self.stack:
            spans = f"rows {self.rows[0]}:{self.rows[1]} of each of {self.stack}"
        axis = "" if self.axis is None else f"without axis {self.axis}"
        added = f"added {self.added:g}" if self.added else ""
        every = f"every {self.step}" if self.step > 1 else ""
        flags = {"-e^x": self.log_negated, "flat": self.flat, "transposed": self.transposed}
        others = (name for name, is_set in flags.items() if is_set)
        return " ".join(filter(None, (paired, added, spans, axis, every, *others)))

    def __str__(self) -> str:
        """A text that is unique among the parts of all tensors of a file."""
        if self.expert is None:
            return f"{self.name} {self.encoding}".strip()
        return f"{self.name}[{self.expert}, {self.rows[0]}:{self.rows[1]}] {self.encoding}".strip()


def is_stack(name: str) -> bool:
    """Return whether a tensor of this name holds something of all experts of a layer, stacked."""
    return _STACK.fullmatch(name) is not None


def is_by_key_head(name: str) -> bool:
    """Return whether a tensor of this name may hold projections of a gated delta net by key heads."""
    return _BY_KEY_HEAD.fullmatch(name) is not None


def is_keys_and_values(name: str) -> bool:
    """Return whether a tensor of this name holds the matrices of latent attention's keys and values."""
    return _KEYS_AND_VALUES.fullmatch(name) is not None


def latent_parts(
    name: str, stored: str, shape: tuple[int, ...], heads: int, latent: Latent, integers: str = ""
) -> Mapping[str, StoredTensor]:
    """The matrices of keys and of values, by name, in a weight that has the rows of each head together.

    integers: as of StoredTensor.

    Raises:
        CheckpointError: when the tensor has other rows.
    """
    match = _KEYS_AND_VALUES.fullmatch(name)
    assert match is not None, "is_keys_and_values"
    plain, both = latent.plain, latent.plain + latent.value
    if len(shape) != 2 or shape[0] != both * heads:
        rows = f"{both} rows for each of {heads} heads"
        raise CheckpointError(f"tensor {stored} has shape {list(shape)}, the config asks for {rows}")
    return {
        f"{match[1]}k_b.weight": StoredTensor(
            stored, rows=(0, plain), stack=heads, transposed=True, integers=integers
        ),
        f"{match[1]}v_b.weight": StoredTensor(stored, rows=(plain, both), stack=heads, integers=integers),
    }


def is_gate_up(name: str) -> bool:
    """Return whether a tensor of this name holds the gate and the up projection of an MLP, or a part of both.

    Parts are those of a weight that a quantiser stored as integers.
    """
    match = _GATE_UP.fullmatch(name)
    return match is not None and match[2] in _BY_ROW | _BY_COLUMN | _SHARED


def gate_up_parts(name: str, stored: str, shape: tuple[int, ...]) -> Mapping[str, StoredTensor]:
    """The gate and the up projection, by name, in a tensor that has the outputs of both, the gate's first.

    Raises:
        CheckpointError: when outputs of both share a word of integers.
    """
    match = _GATE_UP.fullmatch(name)
    assert match is not None, "is_gate_up"
    gate, up = (f"{match[1]}{each}_proj.{match[2]}" for each in ("gate", "up"))
    if match[2] in _SHARED:
        return {gate: StoredTensor(stored), up: StoredTensor(stored)}
    by_column = match[2] in _BY_COLUMN
    outputs = shape[by_column] if len(shape) == 2 else 0
    half = outputs // 2
    if match[2] != "weight" and outputs != 2 * half:
        raise CheckpointError(
            f"tensor {stored} of shape {list(shape)} cannot be divided into those of gate and values"
        )
    return {
        gate: StoredTensor(stored, spans=((0, half),), by_column=by_column),
        up: StoredTensor(stored, spans=((half, outputs),), by_column=by_column),
    }


def delta_parts(name: str, stored: str, shape: tuple[int, ...], net: DeltaNet) -> Mapping[str, StoredTensor]:
    """The projections of a gated delta net, by name, in a tensor that has the rows of each key head together.

    For each key head, `in_proj_qkvz` has its query, its key, the values of its heads and their gates, and
    `in_proj_ba` the rates and the decays of these heads.

    Raises:
        CheckpointError: when the tensor has other rows.
    """
    match = _BY_KEY_HEAD.fullmatch(name)
    assert match is not None, "is_by_key_head"
    prefix, part = match.groups()
    heads = net.value_heads // net.key_heads
    values = heads * net.value_size
    if part == "ba":
        sizes = [("b", heads), ("a", heads)]
    else:
        sizes = [("qkv", net.key_size), ("qkv", net.key_size), ("qkv", values), ("z", values)]
    width, start = sum(size for _, size in sizes), 0
    if len(shape) != 2 or shape[0] != width * net.key_heads:
        rows = f"{width} rows for each of {net.key_heads} key heads"
        raise CheckpointError(f"tensor {stored} has shape {list(shape)}, the config asks for {rows}")
    spans: dict[str, list[tuple[int, int]]] = {}
    for projection, size in sizes:
        first = range(start, start + width * net.key_heads, width)
        spans.setdefault(projection, []).extend((row, row + size) for row in first)
        start += size
    return {
        f"{prefix}in_proj_{projection}.weight": StoredTensor(stored, spans=tuple(own))
        for projection, own in spans.items()
    }


def experts_of(
    name: str, stored: str, shape: tuple[int, ...], *, in_turns: bool = False
) -> Mapping[str, StoredTensor]:
    """The tensors of single experts, by name, in the stack `name` that is stored as `stored`.

    `shape` is [experts, rows, columns]. The rows of gate_up_proj are the gate's, then the up projection's.

    in_turns: whether a row of the up projection follows each of the gate's instead, as in gpt-oss. Its
        stacks are [experts, columns, rows], or blocks of MXFP4 with exponents beside them, and biases
        [experts, rows].
    """
    match = _STACK.fullmatch(name)
    if match is None:
        return {name: StoredTensor(stored)}
    experts, part, kind = match.groups()
    if len(shape) != {"_bias": 2, "_blocks": 4, "_scales": 3}.get(kind, 3) or shape[0] > MAX_EXPERTS:
        return {name: StoredTensor(stored)}
    if kind == "_scales":  # read with the blocks
        return {}
    transposed = in_turns and kind is None
    rows = shape[2] if transposed else shape[1]
    parts = {part: (0, rows, 1)}
    if part == "gate_up_proj" and in_turns:
        parts = {"gate_proj": (0, rows, 2), "up_proj": (1, rows, 2)}
    elif part == "gate_up_proj":
        parts = {"gate_proj": (0, rows // 2, 1), "up_proj": (rows // 2, rows, 1)}
    exponents = f"{stored.removesuffix('_blocks')}_scales" if kind == "_blocks" else ""
    return {
        f"{experts}.{expert}.{projection}.{'bias' if kind == '_bias' else 'weight'}": StoredTensor(
            stored, expert, (start, stop), step=step, transposed=transposed, exponents=exponents
        )
        for expert in range(shape[0])
        for projection, (start, stop, step) in parts.items()
    }
