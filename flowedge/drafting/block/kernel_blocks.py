"""The layers of a block head over blocks, computed by the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from flowedge.drafting.block.block_head import BlockHead
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.drafting.heads.kernel_head import (
    cache_fields,
    head_layer_fields,
    no_head_reason,
    no_layer_reason,
    rotation_of,
)
from flowedge.models.kernels.block import MOST_ROWS
from flowedge.models.kernels.layer import NoKernelError
from flowedge.models.kernels.rotation_table import RotationTable
from flowedge.models.kernels.row_paths import RowPaths
from flowedge.models.kernels.run import KernelRows, KernelRun
from flowedge.models.kernels.structures import LayerFields


@dataclass(frozen=True, eq=False)
class BlockStart:
    """Where the block of a session begins.

    Attributes:
        token: the last token of the text.
        position: its position; the rows of the text before it are stored.
        path: the draft tokens behind it, which the block has before its mask tokens.
        left_out: mask tokens, and so depths, that the block lacks.
    """

    store: HeadStore
    token: int
    position: int
    path: tuple[int, ...] = ()
    left_out: int = 0

    def rows(self, size: int) -> int:
        """The rows of a block that has `size` rows behind the text."""
        return len(self.path) + size - self.left_out


class KernelBlocks:
    """A block head's layers as the kernels read them."""

    def __init__(self, head: BlockHead) -> None:
        """Use the memory of a head.

        Raises:
            NoKernelError: when torch has to compute the head.
        """
        reason = no_head_reason(head) or _no_layers_reason(head)
        if reason:
            raise NoKernelError(reason)
        self._head = head  # the owner of the memory
        self._size, self._causal = head.blocks.size, head.blocks.layers[0].causal
        self._dtype = head.norm.weight.dtype
        self._kept: list[object] = []
        self._rotations = RotationTable(partial(rotation_of, head, len(head.layers)), self._dtype)
        fields = [head_layer_fields(each, head.config, self._dtype, self._kept) for each in head.layers]
        self._layers = (ctypes.POINTER(LayerFields) * len(fields))(*map(ctypes.pointer, fields))

    def predict(self, embedded: torch.Tensor, starts: Sequence[BlockStart]) -> torch.Tensor:
        """Return the states [rows, hidden] of the rows of blocks, whose tokens have these embeddings."""
        hidden, first = embedded.to(self._dtype, copy=True), 0
        for together in self._batches(starts):
            sessions = [self._rows(start) for start in together]
            stop = first + sum(len(each.paths.positions) for each in sessions)
            KernelRun(self._layers, self._rotations, hidden[first:stop], sessions).compute(
                0, len(self._layers)
            )
            first = stop
        states: torch.Tensor = self._head.norm(hidden)
        return states

    def _batches(self, starts: Sequence[BlockStart]) -> Iterator[Sequence[BlockStart]]:
        """Divide blocks into those that are computed at once: MOST_ROWS rows, one block of a session."""
        batch: list[BlockStart] = []
        for start in starts:
            rows = sum(each.rows(self._size) for each in (*batch, start))
            if batch and (rows > MOST_ROWS or any(each.store is start.store for each in batch)):
                yield batch
                batch = []
            batch.append(start)
        yield batch

    def _rows(self, start: BlockStart) -> KernelRows:
        positions = np.arange(start.position, start.position + start.rows(self._size))
        seen = positions + 1 if self._causal else np.full_like(positions, positions[-1] + 1)
        paths = RowPaths(positions, seen, np.zeros_like(positions), positions[:0])
        return KernelRows(paths, start.position, cache_fields(start.store))


def _no_layers_reason(head: BlockHead) -> str:
    """Return why torch has to compute the layers of a head; empty where kernels can."""
    kinds = {*head.blocks.layers}
    if len(kinds) > 1 or any(layer.window is not None for layer in kinds):
        return "its layers see parts of the text"
    if head.blocks.convolution is not None:
        return "there are no kernels for its convolutions"
    return no_layer_reason(head)
