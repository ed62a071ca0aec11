"""A lean layer as the kernels compute it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flowedge.models.lean.form import LayerForm
from flowedge.models.lean.lean_layer import LeanLayer
from flowedge.models.native.native_norm import norm_factor
from flowedge.models.products.native_linear import NativeLinear, is_native_weight, native_float
from flowedge.models.products.structures import FORMATS, LayerFields, LinearFields, pointer

ATTENTION, MLP = 1, 2  # halves of a layer
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}


class NotNativeError(Exception):
    """The kernels cannot compute a layer; the message says why."""


class NativeLayer:
    """A layer's structure, and the tensors that it refers to.

    Attributes:
        structure: what the kernels read.
        halves: the halves that the kernels compute: a mixture of experts is computed by its module.
        weight_bytes: the bytes that a forward of the native halves reads.
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype, window: int | None, rotated: int) -> None:
        """Prepare a layer, whose weights stay where they are.

        Args:
            dtype: the dtype of hidden rows.
            window: the positions that a row sees; None for all.
            rotated: the dimensions of a head that rotate, where the layer rotates.

        Raises:
            NotNativeError: when the kernels cannot compute the layer.
        """
        if not isinstance(layer, LeanLayer):
            raise NotNativeError(f"a {type(layer).__name__} is computed by transformers")
        if layer.form.experts and layer.form.sandwich:
            raise NotNativeError("a mixture of experts is followed by a norm")
        self._kept: list[object] = []
        self.weight_bytes = 0
        self.structure = self._structure(layer, dtype, window, rotated)
        self.halves = ATTENTION if layer.form.experts else ATTENTION | MLP

    def _structure(
        self, layer: LeanLayer, dtype: torch.dtype, window: int | None, rotated: int
    ) -> LayerFields:
        form, attention, mlp = layer.form, layer.self_attn, layer.mlp
        own = LayerFields(
            hidden=form.hidden,
            heads=form.heads,
            kv_heads=form.kv_heads,
            head_size=form.head_size,
            rotated=rotated if form.rotates else 0,
            window=window or 0,
            scaling=form.scaling,
            softcap=form.softcap or 0.0,
            epsilon=form.norm_eps,
            residual=form.residual_multiplier,
            activation=_ACTIVATIONS[form.activation],
            format=FORMATS[dtype],
            output=self._linear(attention.get_submodule("o_proj")),
        )
        _fill(
            own.qkv,
            [self._linear(part) for part in _parts(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")],
        )
        own.input_norm = self._norm(layer.input_layernorm, form)
        second = self._norm(layer.post_attention_layernorm, form)
        if form.sandwich:
            own.attention_norm = second
            own.mlp_norm = self._norm(layer.pre_feedforward_layernorm, form)
            own.output_norm = self._norm(layer.post_feedforward_layernorm, form)
        else:
            own.mlp_norm = second
        if form.query_key_norms:
            own.query_norm, own.key_norm = (
                self._norm(norm, form) for norm in (attention.q_norm, attention.k_norm)
            )
        if not form.experts:
            _fill(
                own.gate_up,
                [self._linear(part) for part in _parts(mlp, "gate_up_proj", "gate_proj", "up_proj")],
            )
            own.down = self._linear(mlp.get_submodule("down_proj"))
            own.intermediate = own.down.width
        return own

    def _linear(self, module: nn.Module) -> LinearFields:
        native: Any = module
        if type(module) is nn.Linear and is_native_weight(module.weight):
            native = native_float(module)
        if not isinstance(native, NativeLinear):
            dtype = next(module.parameters()).dtype
            raise NotNativeError(f"there are no kernels for a {type(module).__name__} of {dtype}")
        if native.width != native.in_features:
            raise NotNativeError(f"{native.in_features} inputs are no multiple of a group")
        self._kept.append(native)
        self.weight_bytes += sum(part.nbytes for part in native.parameters())
        return native.structure

    def _norm(self, norm: Any, form: LayerForm) -> Any:
        factor = norm_factor(norm, form)
        self._kept.append(factor)
        return pointer(factor)


def _parts(module: nn.Module, fused: str, *names: str) -> list[nn.Module]:
    own = [fused] if fused in module._modules else list(names)
    return [module.get_submodule(name) for name in own]


def _fill(places: ctypes.Array[LinearFields], linears: Sequence[LinearFields]) -> None:
    """Put linear layers in the places of a structure; all of them take the same operands."""
    if len({(linear.format, linear.group) for linear in linears}) > 1:
        raise NotNativeError("linear layers that read the same rows have different formats")
    for index, linear in enumerate(linears):
        places[index] = linear
