"""The layer of an EAGLE-1/2 head, computed by the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from flowedge.core.arrays import IntArray
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_rows import HeadRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.models.files.config_support import fixed_rope_length
from flowedge.models.kernels.block import MOST_ROWS
from flowedge.models.kernels.linear import KernelLinear, fits_kernels, float_linear, product
from flowedge.models.kernels.rotation_table import RotationTable
from flowedge.models.kernels.row_paths import RowPaths
from flowedge.models.kernels.run import KernelRows, KernelRun
from flowedge.models.kernels.structures import (
    FORMATS,
    CacheFields,
    LayerFields,
    LinearFields,
    pointer,
)
from flowedge.models.rotary import Rotation

_ACTIVATION = "silu"


class KernelEagle:
    """A head's weights as the kernels read them; a row has the same bits beside any other rows."""

    def __init__(self, head: EagleHead) -> None:
        """Use the memory of a head for which `no_kernels_reason` returns an empty text."""
        layer: Any = head.layers[0]
        config: Any = head.config
        self._head = head  # the owner of the memory
        self._dtype = layer.post_attention_layernorm.weight.dtype
        self._fc = _kernel_linear(head.fc)
        attention, mlp = layer.self_attn, layer.mlp
        self._linears: list[KernelLinear] = []  # the owners of the memory that the layer refers to
        self._norm = layer.post_attention_layernorm.weight.detach().float()
        fields = LayerFields(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads or config.num_attention_heads,
            head_size=attention.head_dim,
            rotated=attention.head_dim,
            scaling=attention.head_dim**-0.5,
            epsilon=config.rms_norm_eps,
            residual=1.0,
            format=FORMATS[self._dtype],
            mlp_norm=pointer(self._norm),
            qkv=(LinearFields * 3)(
                *map(self._linear, (attention.q_proj, attention.k_proj, attention.v_proj))
            ),
            gate_up=(LinearFields * 2)(*map(self._linear, (mlp.gate_proj, mlp.up_proj))),
            output=self._linear(attention.o_proj),
            down=self._linear(mlp.down_proj),
            intermediate=config.intermediate_size,
        )
        self._layers = (ctypes.POINTER(LayerFields) * 1)(ctypes.pointer(fields))
        # Not a method of this object, which would refer to itself and keep its weights until a collection.
        self._rotations = RotationTable(partial(_rotation_of, head), self._dtype)

    def predict(
        self, embedded: torch.Tensor, states: torch.Tensor, parts: Sequence[tuple[HeadRows, HeadStore]]
    ) -> torch.Tensor:
        """Return the states [n, hidden] that follow the rows of all parts, and store their keys and values.

        Args:
            embedded, states: [n, hidden], the tokens' embeddings and the states before them.
            parts: the rows of each session in this order, and their store.
        """
        hidden = product(self._fc.structure, torch.cat((embedded, states), dim=-1)).to(self._dtype)
        together: list[KernelRows] = []
        first = stop = 0
        for rows, store in parts:
            paths = rows.slots_read
            for start in range(0, rows.count, MOST_ROWS):
                part = slice(start, min(start + MOST_ROWS, rows.count))
                if stop + part.stop - part.start > first + MOST_ROWS:
                    self._compute(hidden[first:stop], together)
                    first, together = stop, []
                together.append(KernelRows(_rows_of(paths, part), rows.first + start, self._caches(store)))
                stop += part.stop - part.start
        self._compute(hidden[first:stop], together)
        return hidden

    def _compute(self, hidden: torch.Tensor, sessions: Sequence[KernelRows]) -> None:
        """Compute the layer for rows [n, hidden], in place."""
        run = KernelRun(self._layers, self._rotations, hidden, sessions)
        run.compute(0, 1)

    def _caches(self, store: HeadStore) -> ctypes.Array[CacheFields]:
        keys, values = store.kv[0]
        return (CacheFields * 1)(
            CacheFields(FORMATS[self._dtype], keys.data_ptr(), values.data_ptr(), None, None, keys.shape[1])
        )

    def _linear(self, linear: Any) -> LinearFields:
        own = _kernel_linear(linear)
        self._linears.append(own)
        return own.structure


def _rotation_of(head: EagleHead, positions: torch.Tensor, _: IntArray, dtype: torch.dtype) -> list[Rotation]:
    return [Rotation(*head.rotation(torch.empty(0, dtype=dtype), positions))]


def no_kernels_reason(head: EagleHead) -> str:
    """Return why torch has to compute a head; empty where the kernels can."""
    if head.fc.weight.device.type != "cpu":
        return "its weights are not in the host's memory"
    if missing := missing_reason():
        return missing
    if head.config.hidden_act != _ACTIVATION:
        return f"there is no kernel for its activation {head.config.hidden_act}"
    if fixed_rope_length(head.config) is not None:
        return "its rotary angles depend on the length of the text"
    weights = {parameter.dtype for parameter in head.parameters() if parameter.ndim == 2}
    if not all(fits_kernels(parameter) for parameter in head.parameters() if parameter.ndim == 2):
        return f"there are no kernels for weights of {', '.join(sorted(map(str, weights)))}"
    padded = any(isinstance(each, KernelLinear) and each.width != each.in_features for each in head.modules())
    return "the rows of its quantised weights are padded" if padded else ""


def _kernel_linear(linear: Any) -> KernelLinear:
    return linear if isinstance(linear, KernelLinear) else float_linear(linear)


def _rows_of(paths: RowPaths, part: slice) -> RowPaths:
    return RowPaths(paths.positions[part], paths.linear[part], paths.offsets[part], paths.slots)
