"""Attention with a mask over views of a session's keys and values, by torch's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from flowedge.core.arrays import IntArray
from flowedge.models.attention.attention import Scoring, Windows
from flowedge.models.attention.draft_rows import draft_depths, visible_drafts
from flowedge.models.attention.kv_store import KeyValueStore
from flowedge.models.host.copies import HostArray, to_device


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Attention by the kernel that suits the device and the dtype; no keys and values are copied.

    Args:
        query: [1, heads, rows, head_size].
        key, value: [1, kv_heads, context, head_size], views of any stride.
        attention_mask: additive, [1, 1, rows, context], of the query's dtype.

    Returns:
        [1, heads, rows, head_size].
    """
    scaling = scoring.scaling
    if scoring.softcap is not None or scoring.sinks is not None:
        return attend_weighted(query, key, value, attention_mask, scoring)
    grouped = query.shape[1] != key.shape[1]
    # In 16 bits, torch's kernel for CPUs packs the keys of every query head, so heads are folded there too.
    if grouped and not (query.is_cpu and query.dtype == torch.float32):
        return attend_packed(query, key, value, attention_mask, scaling)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=grouped
    )


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Grouped-query attention whose query heads with a common key head are folded into rows.

    On CUDA, torch's kernels with a mask need as many key heads as query heads, and enable_gqa selects a
    kernel that copies the keys and values. Shapes as in `attend_masked`.
    """
    folded = query.reshape(1, key.shape[1], -1, query.shape[3])
    if attention_mask is not None:
        group, rows = query.shape[1] // key.shape[1], query.shape[2]
        attention_mask = (
            attention_mask.expand(-1, -1, group, -1) if rows == 1 else torch.cat([attention_mask] * group, 2)
        )
    output = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(query.shape)


def attend_weighted(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Attention with soft-capped scores or sinks, for which torch has no kernel; heads are folded as above.

    Shapes as in `attend_masked`.
    """
    _, _, rows, size = query.shape
    kv_heads = key.shape[1]
    folded = query.reshape(1, kv_heads, -1, size)
    scores = torch.matmul(folded, key.transpose(2, 3))
    if scoring.softcap is None:
        scores.mul_(scoring.scaling)
    else:
        scores.mul_(scoring.scaling / scoring.softcap).tanh_().mul_(scoring.softcap)
    scores = scores.view(1, kv_heads, -1, rows, key.shape[2])
    if attention_mask is not None:
        scores.add_(attention_mask[:, None])
    if scoring.sinks is not None:
        sinks = scoring.sinks.view(1, kv_heads, -1, 1, 1).expand(-1, -1, -1, rows, -1)
        scores = torch.cat((scores, sinks), -1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)[..., : key.shape[2]].to(query.dtype)
    output = torch.matmul(weights.reshape(*folded.shape[:3], -1), value)
    return output.reshape(query.shape)


# cuDNN's attention, which torch prefers on some GPUs, is compiled anew for every number of columns.
torch.backends.cuda.enable_cudnn_sdp(False)
# NVIDIA's containers set a variable by which products of float32 are rounded to 11 bits. The angles of
# positions above 2,048, and the self-tests of exact blocks, need float32.
torch.set_float32_matmul_precision("highest")


_ALIGNED_COLUMNS = 16  # views of a mask begin at a multiple of this many columns


@dataclass(frozen=True, eq=False)
class MaskRows:
    """The columns that each row of a forward sees.

    Attributes:
        context: the columns below it are the context.
        seen: [rows, tail], True where a row sees a column of [context, context + tail).
        first_seen: [rows], the first column of the context that each row sees; None for 0.
    """

    context: int
    seen: npt.NDArray[np.bool_]
    first_seen: npt.NDArray[np.int64] | None = None

    @cached_property
    def edge(self) -> slice:
        """The columns of the context that some rows see and others do not, and up to 15 columns before."""
        if self.first_seen is None:
            return slice(0, 0)
        first = self.first_seen.clip(0, self.context)
        # Kernels want views of keys and mask to begin at a multiple of 16 bytes.
        return slice(int(first.min()) // _ALIGNED_COLUMNS * _ALIGNED_COLUMNS, int(first.max()))

    def hidden(self) -> list[HostArray]:
        """What each row does not see of the tail [rows, tail], and of the edge, if there is one."""
        if self.first_seen is None:
            return [~self.seen]
        return [~self.seen, np.arange(self.edge.start, self.edge.stop) < self.first_seen[:, None]]


def write_masks(masks: Sequence[AttentionMask], rows: Sequence[MaskRows]) -> list[torch.Tensor]:
    """Write the rows of each mask, after one copy to the device of all masks; see `AttentionMask.write`."""
    if not masks:  # a block of recurrent layers alone
        return []
    arrays = [each.hidden() for each in rows]
    copied = iter(to_device(masks[0].device, *(array for own in arrays for array in own)))
    return [
        mask.write(own, [next(copied) for _ in hidden])
        for mask, own, hidden in zip(masks, rows, arrays, strict=True)
    ]


class AttentionMask:
    """The additive mask buffer of a session and a window. Each write changes only columns that may differ."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device | str) -> None:
        # A constant: with a fill computed from the mask, a row that sees one key would see all of them.
        self.fill = torch.finfo(dtype).min
        # Rows begin at aligned addresses as well; torch would copy another mask in every layer on CUDA.
        aligned = -(-capacity // _ALIGNED_COLUMNS) * _ALIGNED_COLUMNS
        self._buffer = torch.zeros((0, aligned), dtype=dtype, device=device)
        self._clean = 0  # columns below are visible to every row, except for those of _edge
        self._edge = slice(0, 0)  # context columns that the last write hid from some row

    @property
    def device(self) -> torch.device:
        return self._buffer.device

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def write(self, own: MaskRows, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        """Write the mask of some rows.

        Args:
            hidden: the arrays of `own.hidden()`, on the device.

        Returns:
            A view [1, 1, rows, columns] of the buffer, valid until the next write: 0 where a row sees a
            column, the fill elsewhere. The last column is context + tail - 1. The first is 0, or with
            `first_seen` up to 15 columns before the first that some row sees.
        """
        context, (rows, tail) = own.context, own.seen.shape
        self._reserve(rows)
        if context > self._clean:
            self._buffer[:, self._clean : context] = 0
        self._clean = context
        self._buffer[:, self._edge] = 0
        self._edge = own.edge
        for part in hidden[1:]:
            self._buffer[:rows, self._edge].masked_fill_(part, self.fill)
        block = self._buffer[:rows, context : context + tail]
        block.zero_().masked_fill_(hidden[0], self.fill)
        return self._buffer[None, None, :rows, own.edge.start : context + tail]

    def _reserve(self, rows: int) -> None:
        held, capacity = self._buffer.shape
        if rows <= held:
            return
        # Zeros are right for columns below _clean; each write sets the columns above.
        self._buffer = self._buffer.new_zeros((max(rows, 2 * held, 16), capacity))


class MaskedAttention:
    """Attention by torch's kernels over views of all cached rows, with a mask."""

    def __init__(self, store: KeyValueStore, windows: Windows, dtype: torch.dtype) -> None:
        self._store = store
        self._windows = windows
        capacity, device = store.capacity, store.device
        self._masks = {window: AttentionMask(capacity, dtype, device) for window in set(windows)}

    @property
    def nbytes(self) -> int:
        return sum(mask.nbytes for mask in self._masks.values())

    def seen_keys(self, context: int, tail_parents: IntArray, positions: IntArray, rows: int) -> MaskedKeys:
        if rows != positions.size:
            raise ValueError("attention with a mask takes no rows of padding")
        seen = visible_drafts(tail_parents, context, positions.size)
        own = []
        for window in self._masks:
            if window is None:
                own.append(MaskRows(context, seen))
                continue
            first_seen = positions - (window - 1)
            tail_positions = context + draft_depths(tail_parents, context)
            own.append(MaskRows(context, seen & (tail_positions >= first_seen[:, None]), first_seen))
        written = dict(zip(self._masks, write_masks([*self._masks.values()], own), strict=True))
        return MaskedKeys(
            self._store, context + tail_parents.size, [written[window] for window in self._windows]
        )


class MaskedKeys:
    """The SeenKeys of a mask."""

    def __init__(self, store: KeyValueStore, stop: int, masks: Sequence[torch.Tensor]) -> None:
        """Read the slots before `stop`, by the mask [1, 1, rows, columns] of each layer, which ends there."""
        self._store, self._stop, self._masks = store, stop, masks

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        kv_heads: int,  # noqa: ARG002
        scoring: Scoring,
    ) -> torch.Tensor:
        mask = self._masks[layer]
        keys, values = self._store.view(layer, self._stop - mask.shape[3], self._stop)
        return attend_masked(query, keys, values, mask, scoring)
