"""A decoder layer, and a norm, as the kernels compute them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from flowedge.device.kernel_library import library
from flowedge.models.architecture import Architecture
from flowedge.models.attention.latent import HeadLinears, LatentAttention
from flowedge.models.decoder_layer import DecoderLayer, GatedMlp, GroupedAttention
from flowedge.models.experts import ExpertLinears, MixtureMlp, Router
from flowedge.models.families.parts import Experts
from flowedge.models.kernels.linear import KernelLinear, fits_kernels, float_linear, rounding
from flowedge.models.kernels.structures import (
    FORMATS,
    ConvolutionFields,
    LatentFields,
    LayerFields,
    LinearFields,
    LinearRecurrenceFields,
    MixtureFields,
    pointer,
)
from flowedge.models.recurrent.delta_net import GatedDeltaNet
from flowedge.models.recurrent.mamba2 import StateSpace
from flowedge.models.recurrent.short_convolution import GatedConvolution
from flowedge.models.row_functions import DecidingLinear, RmsNorm

FREE_ROWS = 4  # rows that take about as long as one
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu2": 3}


class NoKernelError(Exception):
    """The kernels cannot compute a layer; the message says why."""


class KernelLayer:
    """A layer's structure, and the tensors that it refers to.

    Attributes:
        structure: what the kernels read.
        weight_bytes: the bytes that a forward of the structure's weights reads.
    """

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype, window: int | None, rotated: int) -> None:
        """Prepare a layer, whose weights stay where they are.

        Args:
            dtype: the dtype of hidden rows.
            window: the positions that a row sees; None for all.
            rotated: the dimensions of a head that rotate.

        Raises:
            NoKernelError: when the kernels cannot compute the layer.
        """
        self._kept: list[object] = []
        self.weight_bytes = 0
        self.structure = self._structure(layer, dtype, window, rotated)

    def _structure(
        self, layer: DecoderLayer, dtype: torch.dtype, window: int | None, rotated: int
    ) -> LayerFields:
        architecture = layer.architecture
        fields = LayerFields(
            hidden=architecture.hidden,
            epsilon=architecture.norm_eps,
            residual=architecture.residual_multiplier,
            activation=_ACTIVATIONS[architecture.activation],
            format=FORMATS[dtype],
            ungated=not architecture.gated,
            factor=float(layer.layer_scalar) if architecture.layer_factor else 0.0,
        )
        if layer.is_recurrent or layer.attends:
            fields.input_norm = self._norm(layer.input_layernorm)
        if layer.is_recurrent:
            recurrent = layer.linear_attn
            fields.output = self._linear(recurrent.out_proj)
            if isinstance(recurrent, GatedConvolution):
                fields.convolution = self._convolution(recurrent)
            else:
                fields.recurrence = self._recurrence(recurrent)
        elif layer.attends:
            self._attention(fields, layer.self_attn, architecture, window, rotated)
        if layer.has_mlp:
            self._mlp_half(fields, layer)
        return fields

    def _mlp_half(self, fields: LayerFields, layer: DecoderLayer) -> None:
        architecture, mlp = layer.architecture, layer.mlp
        alone = not (layer.is_recurrent or layer.attends)
        second = self._norm(layer.input_layernorm if alone else layer.post_attention_layernorm)
        if architecture.norms_after:
            fields.attention_norm = second
            fields.mlp_norm = self._norm(layer.pre_feedforward_layernorm)
            fields.output_norm = self._norm(layer.post_feedforward_layernorm)
        else:
            fields.mlp_norm = second
        if isinstance(mlp, GatedMlp):
            _fill(fields.gate_up, [self._linear(part) for part in mlp.projections])
            fields.down = self._linear(mlp.down_proj)
            fields.intermediate = fields.down.width
        else:
            self._put_mixture(fields, self._mixture(mlp))
        if layer.has_experts_beside:
            self._put_mixture(fields, self._experts_beside(fields, layer))
        if architecture.layer_input:
            fields.given = architecture.layer_input
            fields.given_gate = self._linear(layer.per_layer_input_gate)
            fields.given_output = self._linear(layer.per_layer_projection)
            fields.given_norm = self._norm(layer.post_per_layer_input_norm)

    def _attention(
        self,
        fields: LayerFields,
        attention: GroupedAttention | LatentAttention,
        architecture: Architecture,
        window: int | None,
        rotated: int,
    ) -> None:
        key_heads = attention.key_heads
        fields.heads, fields.kv_heads = architecture.heads, key_heads.count
        fields.head_size, fields.window = key_heads.size, window or 0
        fields.scaling, fields.softcap = architecture.scaling, architecture.softcap or 0.0
        fields.output = self._linear(attention.o_proj)
        if isinstance(attention, LatentAttention):
            fields.rotated = rotated
            self._latent(fields, attention)
            return
        fields.rotated = rotated if attention.rotates else 0
        fields.gates = architecture.heads * key_heads.size if architecture.output_gate else 0
        fields.keys_as_values, fields.shares_keys = attention.keys_as_values, attention.shares_keys
        fields.rounds_keys = attention.is_shared
        if architecture.value_norm:
            fields.value_norm = self._floats(torch.ones(key_heads.size))
        _fill(fields.qkv, [self._linear(part) for part in attention.projections])
        if architecture.query_key_norms:
            fields.query_norm = self._norm(attention.q_norm)
            if not attention.shares_keys:
                fields.key_norm = self._norm(attention.k_norm)
        if attention.sinks is not None:
            fields.sinks = self._floats(attention.sinks)

    def _latent(self, fields: LayerFields, attention: LatentAttention) -> None:
        sizes = attention.latent
        own = LatentFields(
            heads=fields.heads,
            rank=sizes.rank,
            rotated=sizes.rotated,
            plain=sizes.plain,
            value=sizes.value,
            key_norm=self._norm(attention.kv_a_layernorm),
            epsilon=sizes.epsilon,
            paired=sizes.paired,
            keys=self._heads(attention.k_b),
            values=self._heads(attention.v_b),
        )
        first = attention.q_proj if sizes.query_rank is None else attention.q_a_proj
        _fill(fields.qkv, [self._linear(first), self._linear(attention.kv_a_proj_with_mqa)])
        if sizes.query_rank is not None:
            own.queries = self._linear(attention.q_b_proj)
            own.query_norm = self._norm(attention.q_a_layernorm)
        fields.latent = ctypes.addressof(own)
        self._kept.append(own)

    def _heads(self, module: HeadLinears) -> int:
        """The address of the structures of each head's linear layer."""
        heads, outputs, inputs = module.weight.shape
        fields = (LinearFields * heads)()
        for head, weight in enumerate(module.weight):
            linear = nn.Linear(inputs, outputs, bias=False, device="meta").requires_grad_(False)
            linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
            fields[head] = self._linear(linear)
        self._kept.append(fields)
        return ctypes.addressof(fields)

    def _convolution(self, part: GatedConvolution) -> int:
        fields = ConvolutionFields(
            part.net.inputs, self._linear(part.in_proj), self._floats(part.conv.weight.squeeze(1).t())
        )
        self._kept.append(fields)
        return ctypes.addressof(fields)

    def _recurrence(self, part: GatedDeltaNet | StateSpace) -> int:
        net, convolution = part.net, part.conv1d
        fields = LinearRecurrenceFields(
            key_heads=net.key_heads,
            value_heads=net.value_heads,
            key_size=net.key_size,
            value_size=net.value_size,
            inputs=net.inputs,
            tiled=net.tiled,
            corrects=isinstance(part, GatedDeltaNet),
            convolution=self._floats(convolution.weight.squeeze(1).t()),
            convolution_bias=None if convolution.bias is None else self._floats(convolution.bias),
            decay=self._floats(-part.A_log.float().exp()),
            decay_bias=self._floats(part.dt_bias),
            skip=self._floats(part.D) if isinstance(part, StateSpace) else None,
            norm=self._norm(part.norm),
        )
        _fill(fields.projections, [self._linear(each) for each in part.projections])
        self._kept.append(fields)
        return ctypes.addressof(fields)

    def _put_mixture(self, fields: LayerFields, mixture: MixtureFields) -> None:
        fields.mixture = ctypes.addressof(mixture)
        self._kept.append(mixture)

    def _mixture(self, mlp: MixtureMlp) -> MixtureFields:
        shared = mlp.shared_expert
        fields = self._experts(mlp.gate.experts, mlp.gate, mlp.experts, shared)
        if mlp.gate.choice_bias is not None:
            fields.choice_bias = self._floats(mlp.gate.choice_bias)
        fields.shared = shared is not None
        if mlp.shared_expert_gate is not None:
            fields.shared_gate = self._linear(mlp.shared_expert_gate)
        return fields

    def _experts_beside(self, fields: LayerFields, layer: DecoderLayer) -> MixtureFields:
        router = layer.router
        fields.behind_mlp_norm = self._norm(layer.post_feedforward_layernorm_1)
        fields.experts_norm = self._norm(layer.pre_feedforward_layernorm_2)
        fields.behind_experts_norm = self._norm(layer.post_feedforward_layernorm_2)
        mixture = self._experts(router.experts, router.proj, layer.experts)
        mixture.router_norm = self._floats(router.factor)
        mixture.scales = self._floats(router.per_expert_scale)
        return mixture

    def _experts(
        self, sizes: Experts, router: nn.Module, chosen: ExpertLinears, shared: nn.Module | None = None
    ) -> MixtureFields:
        modules = [*chosen.children(), *([] if shared is None else [shared])]
        experts = (LinearFields * (3 * len(modules)))()
        fields = MixtureFields(
            count=sizes.count,
            chosen=sizes.chosen,
            normalised=sizes.normalised,
            rounded=sizes.rounded,
            unrounded=sizes.unrounded,
            sigmoid=sizes.scores == "sigmoid",
            least_sum=sizes.least_sum,
            scale=sizes.scale,
            router=self._linear(router),
            experts=ctypes.addressof(experts),
        )
        if sizes.clamp is not None:
            fields.limit, fields.slope = sizes.clamp.limit, sizes.clamp.slope
        before = self.weight_bytes
        for index, expert in enumerate(modules):
            for place, part in enumerate(("gate_proj", "up_proj", "down_proj"), 3 * index):
                if part in expert._modules:
                    experts[place] = self._linear(expert.get_submodule(part), padded=True)
        of_others, of_shared = experts[: 3 * sizes.count], experts[3 * sizes.count :]
        inputs = ([*linears[::3], *linears[1::3]] for linears in (of_others, of_shared))
        for linears in ([each for each in own if each.weight] for own in (*inputs, of_others[2::3])):
            if len({(rounding(each), each.width) for each in linears}) > 1:
                raise NoKernelError("the experts of a layer round their rows in different groups")
        # Rows of a few tokens read the experts that they choose.
        read = min(len(modules), FREE_ROWS * sizes.chosen)
        self.weight_bytes = before + (self.weight_bytes - before) * read // len(modules)
        self._kept.append(experts)
        return fields

    def _linear(self, module: nn.Module, *, padded: bool = False) -> LinearFields:
        """The structure of a linear layer; if it may be `padded`, zeros follow its inputs."""
        linear: Any = module
        if isinstance(module, Router | DecidingLinear):
            outputs, inputs = module.weight.shape
            module = nn.Linear(inputs, outputs, bias=False, device="meta").requires_grad_(False)
            module.weight, module.bias = cast("nn.Parameter", linear.weight), linear.bias
        if type(module) is nn.Linear and fits_kernels(module.weight):
            linear = float_linear(module)
        if not isinstance(linear, KernelLinear):
            dtype = next(module.parameters()).dtype
            raise NoKernelError(f"there are no kernels for a {type(module).__name__} of {dtype}")
        if linear.width != linear.in_features and not padded:
            raise NoKernelError(f"{linear.in_features} inputs are no multiple of a group")
        self._kept.append(linear)
        self.weight_bytes += sum(part.nbytes for part in linear.parameters())
        return linear.structure

    def _norm(self, norm: RmsNorm) -> Any:
        return self._floats(_norm_factor(norm))

    def _floats(self, values: torch.Tensor) -> Any:
        """The address of values as contiguous floats."""
        floats = values.detach().float().contiguous()
        self._kept.append(floats)
        return pointer(floats)


class KernelNorm:
    """A norm that overwrites its rows."""

    def __init__(self, norm: RmsNorm) -> None:
        self._factor, self._epsilon = _norm_factor(norm), norm.eps

    def __call__(self, rows: torch.Tensor) -> None:
        """Normalise rows [n, hidden] in place."""
        library().flowedge_norm(
            FORMATS[rows.dtype],
            pointer(rows),
            ctypes.c_int64(len(rows)),
            ctypes.c_int64(rows.shape[1]),
            pointer(self._factor),
            ctypes.c_float(self._epsilon),
        )


def _norm_factor(norm: RmsNorm) -> torch.Tensor:
    """The factor float32 [hidden] of a norm."""
    factor: torch.Tensor = norm.weight.detach().float() + (1.0 if norm.plus_one else 0.0)
    return factor


def _fill(fields: ctypes.Array[LinearFields], linears: Sequence[LinearFields]) -> None:
    """Put linear layers that read the same rows into a structure."""
    for index, linear in enumerate(linears):
        fields[index] = linear
