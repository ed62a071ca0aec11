"""The layer of an EAGLE-1/2 or mtp head, computed by the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from flowedge.core.arrays import IntArray
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.heads.draft_head import DraftHead
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_rows import HeadRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.drafting.heads.mtp_head import MtpHead
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.files.config_support import fixed_rope_length
from flowedge.models.kernels.block import MOST_ROWS
from flowedge.models.kernels.layer import KernelLayer, NoKernelError
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


class KernelHead:
    """A head's weights as the kernels read them; a row has the same bits beside any other rows."""

    def __init__(self, head: EagleHead | MtpHead) -> None:
        """Use the memory of a head.

        Raises:
            NoKernelError: when torch has to compute the head.
        """
        if reason := _no_kernels_reason(head):
            raise NoKernelError(reason)
        layer: Any = head.layers[0]
        self._head = head  # the owner of the memory
        self._dtype = layer.post_attention_layernorm.weight.dtype
        self._fc = _kernel_linear(head.fc)
        self._kept: list[object] = []  # the owners of the memory that the layer refers to
        # Not a method of this object, which would refer to itself and keep its weights until a collection.
        self._rotations = RotationTable(partial(rotation_of, head, 1), self._dtype)
        is_decoder = isinstance(head, MtpHead)
        fields = (
            self._of_decoder(layer)
            if is_decoder
            else head_layer_fields(layer, head.config, self._dtype, self._kept)
        )
        self._layers = (ctypes.POINTER(LayerFields) * 1)(ctypes.pointer(fields))

    def _of_decoder(self, layer: DecoderLayer) -> LayerFields:
        (rotated,) = self._rotations.rotated
        kernel = KernelLayer(layer, self._dtype, None, rotated)
        self._kept.append(kernel)
        return kernel.structure

    def predict(
        self, embedded: torch.Tensor, states: torch.Tensor, parts: Sequence[tuple[HeadRows, HeadStore]]
    ) -> torch.Tensor:
        """Return the states [n, hidden] that follow the rows of all parts, and store their keys and values.

        Args:
            embedded, states: [n, hidden], the tokens' embeddings and the states before them.
            parts: the rows of each session in this order, and their store.
        """
        hidden = product(self._fc.structure, self._head.joined(embedded, states)).to(self._dtype)
        together: list[KernelRows] = []
        first = stop = 0
        for rows, store in parts:
            paths = rows.slots_read
            for start in range(0, rows.count, MOST_ROWS):
                part = slice(start, min(start + MOST_ROWS, rows.count))
                if stop + part.stop - part.start > first + MOST_ROWS:
                    self._compute(hidden[first:stop], together)
                    first, together = stop, []
                together.append(KernelRows(_rows_of(paths, part), rows.first + start, cache_fields(store)))
                stop += part.stop - part.start
        self._compute(hidden[first:stop], together)
        return self._head.finished(hidden)

    def _compute(self, hidden: torch.Tensor, sessions: Sequence[KernelRows]) -> None:
        """Compute the layer for rows [n, hidden], in place."""
        run = KernelRun(self._layers, self._rotations, hidden, sessions)
        run.compute(0, 1)


def cache_fields(store: HeadStore) -> ctypes.Array[CacheFields]:
    """The keys and values of a session in each layer of a head, as the kernels are told."""
    form = FORMATS[store.sizes.dtype]
    fields = [
        CacheFields(form, keys.data_ptr(), values.data_ptr(), None, None, keys.shape[1])
        for keys, values in store.kv
    ]
    return (CacheFields * len(fields))(*fields)


def head_layer_fields(layer: Any, config: Any, dtype: torch.dtype, kept: list[object]) -> LayerFields:
    """A layer with the attention and the MLP of draft heads, as the kernels are told.

    Args:
        config: that of the head; dtype: of hidden rows.
        kept: is given the owners of the memory that the structure refers to.
    """
    attention, mlp = layer.self_attn, layer.mlp

    def fields_of(linear: Any) -> LinearFields:
        own = _kernel_linear(linear)
        kept.append(own)
        return own.structure

    fields = LayerFields(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_size=attention.head_dim,
        rotated=attention.head_dim,
        scaling=attention.head_dim**-0.5,
        epsilon=config.rms_norm_eps,
        residual=1.0,
        format=FORMATS[dtype],
        qkv=(LinearFields * 3)(*map(fields_of, (attention.q_proj, attention.k_proj, attention.v_proj))),
        gate_up=(LinearFields * 2)(*map(fields_of, (mlp.gate_proj, mlp.up_proj))),
        output=fields_of(attention.o_proj),
        down=fields_of(mlp.down_proj),
        intermediate=config.intermediate_size,
    )
    norms = {
        "input_norm": getattr(layer, "input_layernorm", None),
        "query_norm": attention.q_norm,
        "key_norm": attention.k_norm,
        "mlp_norm": layer.post_attention_layernorm,
    }
    for name, norm in norms.items():
        if norm is not None:
            factor = norm.weight.float()
            kept.append(factor)
            setattr(fields, name, pointer(factor))
    return fields


def rotation_of(
    head: DraftHead, layers: int, positions: torch.Tensor, _: IntArray, dtype: torch.dtype
) -> list[Rotation]:
    """The rotation of positions in each layer of a head, as of RotationTable."""
    return [Rotation(*head.rotation(torch.empty(0, dtype=dtype), positions))] * layers


def _no_kernels_reason(head: EagleHead | MtpHead) -> str:
    """Return why torch has to compute a head, but for what its KernelLayer says; empty where kernels can."""
    if reason := no_head_reason(head):
        return reason
    if isinstance(head, MtpHead):
        return _no_product_reason(head.fc)
    return no_layer_reason(head)


def no_head_reason(head: DraftHead) -> str:
    """Return why torch has to compute a head, whatever its layers are; empty where kernels can."""
    if next(head.parameters()).device.type != "cpu":
        return "its weights are not in the host's memory"
    if missing := missing_reason():
        return missing
    if fixed_rope_length(head.config) is not None:
        return "its rotary angles depend on the length of the text"
    return ""


def no_layer_reason(head: DraftHead) -> str:
    """As `no_head_reason`, of a head with layers as of `head_layer_fields`."""
    if head.config.hidden_act != _ACTIVATION:
        return f"there is no kernel for its activation {head.config.hidden_act}"
    return _no_product_reason(head)


def _no_product_reason(module: nn.Module) -> str:
    """Return why the kernels cannot multiply with the weights of linear layers; empty where they can."""
    weights = [parameter for parameter in module.parameters() if parameter.ndim == 2]
    if not all(map(fits_kernels, weights)):
        kinds = sorted({str(weight.dtype) for weight in weights})
        return f"there are no kernels for weights of {', '.join(kinds)}"
    linears = [each for each in module.modules() if isinstance(each, KernelLinear)]
    padded = any(each.width != each.in_features for each in linears)
    return "the rows of its quantised weights are padded" if padded else ""


def _kernel_linear(linear: Any) -> KernelLinear:
    return linear if isinstance(linear, KernelLinear) else float_linear(linear)


def _rows_of(paths: RowPaths, part: slice) -> RowPaths:
    return RowPaths(paths.positions[part], paths.linear[part], paths.offsets[part], paths.slots)
