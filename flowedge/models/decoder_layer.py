"""The decoder layer of every family, computed by torch with few calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from flowedge.models.architecture import Architecture
from flowedge.models.attention.attention import Attention, Scoring
from flowedge.models.attention.latent import LatentAttention
from flowedge.models.experts import ExpertLinears, MixtureMlp, ScaledRouter
from flowedge.models.families.parts import DeltaNet, Mamba2, Recurrence
from flowedge.models.fusing import GATE_UP, QUERY_KEY_VALUE, fuse
from flowedge.models.recurrent.delta_net import GatedDeltaNet
from flowedge.models.recurrent.mamba2 import StateSpace
from flowedge.models.recurrent.short_convolution import GatedConvolution
from flowedge.models.rotary import Rotation
from flowedge.models.row_functions import (
    Activate,
    Call,
    RmsNorm,
    activation_of,
    head_norm_call,
    norm_call,
    plain_norm_call,
)

_CALLS = ("calls", "input_calls", "mixture_calls")


class _Prepared(nn.Module):
    """A module whose calls are prepared once. Exchange a child by setting it, not a weight of the child."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _CALLS}

    def _apply(self, fn: Any, recurse: bool = True) -> _Prepared:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def _forget(self) -> None:
        for name in _CALLS:
            vars(self).pop(name, None)


class GroupedAttention(_Prepared):
    """Grouped-query attention over the caches of sessions.

    Attributes:
        cache_index: the layer's index in the caches.
        rotates: whether queries and keys are rotated.
        key_heads: the heads of the keys that queries read.
        shares_keys: whether these are of an earlier layer; is_shared: whether later layers read this layer's.
        keys_as_values: whether values are what keys are made of.
    """

    def __init__(self, architecture: Architecture, layer: int, cache_index: int) -> None:
        """Make the attention of the model's layer `layer`, whose weights are not loaded."""
        super().__init__()
        self.cache_index = cache_index
        self._architecture, self.rotates = architecture, architecture.rotated[layer]
        heads, key_heads = architecture.heads, architecture.key_heads(layer)
        kv_heads, size = key_heads.count, key_heads.size
        new = partial(nn.Linear, architecture.hidden, bias=architecture.qkv_bias)
        self._gated, self.shares_keys = architecture.output_gate, architecture.shares_keys(layer)
        full = architecture.windows[layer] is None
        self.keys_as_values = architecture.keys_as_values and full and not self.shares_keys
        self.is_shared = layer in architecture.key_layers[layer + 1 :]
        if architecture.fused:
            self.qkv_proj = new((heads + 2 * kv_heads) * size)
        else:
            of_query = 2 * heads if self._gated else heads  # a gate follows the query of each head
            self.q_proj = new(of_query * size)
            if not self.shares_keys:
                self.k_proj = new(kv_heads * size)
            if not (self.shares_keys or self.keys_as_values):
                self.v_proj = new(kv_heads * size)
        self.o_proj = nn.Linear(heads * size, architecture.hidden, bias=architecture.output_bias)
        if architecture.query_key_norms:
            self.q_norm = _norm(architecture, size)
            if not self.shares_keys:
                self.k_norm = _norm(architecture, size)
        self.sinks = nn.Parameter(torch.empty(heads)) if architecture.sinks else None
        self.key_heads = key_heads
        own = 0 if self.shares_keys else kv_heads
        self._widths = (heads, 2 * own)  # of queries, and of keys and values, in heads
        self._sizes = (size, kv_heads, heads + own, heads * size)

    @cached_property
    def calls(self) -> tuple[list[Call], Call, Call | None, Call | None, Scoring]:
        """The projections to queries, keys and values, that of the output, norms of heads and of values.

        Then how keys are scored.
        """
        norm, architecture = None, self._architecture
        if architecture.query_key_norms:
            of_heads = [(self.q_norm, architecture.heads)]
            if not self.shares_keys:
                of_heads.append((self.k_norm, self.key_heads.count))
            norm = head_norm_call(of_heads)
        of_values = None
        if architecture.value_norm and not self.shares_keys:
            of_values = plain_norm_call(self.key_heads.size, architecture.norm_eps)
        scoring = Scoring(architecture.scaling, architecture.softcap, self.sinks)
        projections = [product_call(part) for part in self.projections]
        return projections, product_call(self.o_proj), norm, of_values, scoring

    @property
    def projections(self) -> list[nn.Module]:
        """The linear layers to queries, keys and values: one where they are fused."""
        return _present(self, "qkv_proj", QUERY_KEY_VALUE)

    def forward(self, rows: torch.Tensor, attention: Attention, rotation: Rotation) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape; arguments as of DecoderLayer."""
        projections, project_output, norm, norm_values, scoring = self.calls
        size, kv_heads, rotated, width = self._sizes
        count, index = rows.shape[0], self.cache_index
        heads = _beside(projections, rows).view(count, -1, size)
        gates = None
        if self._gated:
            queries, others = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads :]
            gates, heads = queries[:, 1::2], torch.cat((queries[:, ::2], others), 1)
        if self.keys_as_values:
            heads = torch.cat((heads, heads[:, -kv_heads:]), 1)
        if norm_values is not None:
            values = heads[:, rotated:]
            values.copy_(norm_values(values))
        turned = heads.narrow(1, 0, rotated)  # queries and keys
        normed = turned if norm is None else norm(turned)
        if self.rotates:
            if rotation.size != size:
                if normed is not turned:
                    turned.copy_(normed)
                normed = turned = turned[..., : rotation.size]
            rotation.rotate(normed, turned)
        elif normed is not turned:
            turned.copy_(normed)
        query, keys_values = heads.transpose(0, 1).split_with_sizes(self._widths)
        if not self.shares_keys:
            attention.store_rows(index, keys_values.view(2, kv_heads, count, size))
        attended = attention.attend(index, query.unsqueeze(0), kv_heads, scoring)
        output = attended.transpose(1, 2).reshape(-1, width)
        return project_output(output if gates is None else output * gates.reshape(-1, width).sigmoid())


class GatedMlp(_Prepared):
    """An MLP whose hidden values are multiplied by an activated gate, or activated where there is no gate.

    Attributes:
        activation: the activation of the gate, or of the values.
    """

    activation: Activate

    def __init__(self, architecture: Architecture, inner: int) -> None:
        """Make an MLP whose hidden values are `inner` wide; its weights are not loaded."""
        super().__init__()
        self.activation = activation_of(architecture.activation)
        hidden, bias, self._gated = architecture.hidden, architecture.mlp_bias, architecture.gated
        if not self._gated:
            self.up_proj = nn.Linear(hidden, inner, bias=bias)
        elif architecture.fused:
            self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=bias)
        else:
            self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    @cached_property
    def calls(self) -> tuple[list[Call], Activate, Call]:
        """The projections to gate and values, the activation, the projection back."""
        return (
            [product_call(part) for part in self.projections],
            self.activation,
            product_call(self.down_proj),
        )

    @property
    def projections(self) -> list[nn.Module]:
        """The linear layers to gate and values, or to values alone: one where they are fused."""
        return _present(self, "gate_up_proj", GATE_UP) if self._gated else [self.up_proj]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden] for `rows` of this shape."""
        projections, activate, project_back = self.calls
        if not self._gated:
            return project_back(activate(projections[0](rows)))
        if len(projections) == 1:
            gate, values = projections[0](rows).chunk(2, 1)
        else:
            gate, values = (project(rows) for project in projections)
        return project_back(activate(gate).mul_(values))


class DecoderLayer(_Prepared):
    """A decoder layer. Its modules have the names of transformers' modules, and so of checkpoints' tensors.

    Attributes:
        architecture: what the layer computes around its weights.
        has_experts: whether there is a mixture of experts.
        has_experts_beside: whether the mixture is computed beside an MLP.
        is_recurrent: whether rows update a state, by `linear_attn`, in place of attention, `self_attn`.
        attends: whether the layer has attention.
        has_mlp: whether it has an MLP. A layer with an MLP alone has one norm, `input_layernorm`.
    """

    def __init__(self, architecture: Architecture, layer: int, cache_index: int) -> None:
        """Make the model's layer `layer`, whose weights are not loaded.

        Args:
            cache_index: the index of the layer in the caches of a block, among the layers of its kind.
        """
        super().__init__()
        self.architecture, self.has_experts = architecture, architecture.has_experts(layer)
        self.is_recurrent, self.attends = architecture.is_recurrent(layer), architecture.attends(layer)
        self.has_mlp = architecture.halves[layer] != "mixing"
        if architecture.recurrence is not None and self.is_recurrent:
            self.linear_attn = _recurrent_mixer(architecture, architecture.recurrence, cache_index)
        elif self.attends:
            self.self_attn = (
                GroupedAttention(architecture, layer, cache_index)
                if architecture.latent is None
                else LatentAttention(architecture, architecture.latent, cache_index)
            )
        self.input_layernorm = _norm(architecture, architecture.hidden)
        if not self.has_mlp:
            return
        experts = architecture.experts if self.has_experts else None
        self.mlp = (
            GatedMlp(architecture, architecture.mlp_width(layer))
            if experts is None or experts.beside_mlp
            else MixtureMlp(
                architecture, experts, GatedMlp(architecture, experts.shared) if experts.shared else None
            )
        )
        if architecture.halves[layer] == "both":
            self.post_attention_layernorm = _norm(architecture, architecture.hidden)
        if architecture.norms_after:
            self.pre_feedforward_layernorm = _norm(architecture, architecture.hidden)
            self.post_feedforward_layernorm = _norm(architecture, architecture.hidden)
        self.has_experts_beside = experts is not None and experts.beside_mlp
        if experts is not None and self.has_experts_beside:
            self.router = ScaledRouter(architecture.hidden, experts, architecture.norm_eps)
            self.experts = ExpertLinears.of(architecture, experts)
            self.post_feedforward_layernorm_1 = _norm(architecture, architecture.hidden)
            self.pre_feedforward_layernorm_2 = _norm(architecture, architecture.hidden)
            self.post_feedforward_layernorm_2 = _norm(architecture, architecture.hidden)
        if architecture.layer_input:
            self.per_layer_input_gate = nn.Linear(architecture.hidden, architecture.layer_input, bias=False)
            self.per_layer_projection = nn.Linear(architecture.layer_input, architecture.hidden, bias=False)
            self.post_per_layer_input_norm = _norm(architecture, architecture.hidden)
        if architecture.layer_factor:
            self.layer_scalar = nn.Parameter(torch.ones(1))

    def fuse(self) -> None:
        """Join loaded linear layers that read the same rows, where that can be; it saves calls of torch."""
        if self.attends and self.architecture.latent is None:
            _fuse(self.self_attn, QUERY_KEY_VALUE, "qkv_proj")
        if self.has_mlp and isinstance(self.mlp, GatedMlp) and self.architecture.gated:
            _fuse(self.mlp, GATE_UP, "gate_up_proj")

    @cached_property
    def calls(self) -> tuple[Call, Call | None, Call, Call | None, Call | None, Any]:
        """Norm before and after the attention, norm before the MLP, MLP, norm after it, the attention.

        The MLP, or the attention, is None where the layer has none.
        """
        mlp: Call | None = self.mlp.forward if self.has_mlp else None
        attend: Any = None
        if self.is_recurrent or self.attends:
            attend = self.linear_attn.forward if self.is_recurrent else self.self_attn.forward
        first = norm_call(self.input_layernorm)
        if attend is None or mlp is None:
            return first, None, first, mlp, None, attend
        second = norm_call(self.post_attention_layernorm)
        if not self.architecture.norms_after:
            return first, None, second, mlp, None, attend
        third, fourth = norm_call(self.pre_feedforward_layernorm), norm_call(self.post_feedforward_layernorm)
        return first, second, third, mlp, fourth, attend

    @cached_property
    def input_calls(self) -> tuple[Call, Activate, Call, Call]:
        """What adds the given rows: gate, activation, projection, norm."""
        return (
            product_call(self.per_layer_input_gate),
            activation_of(self.architecture.activation),
            product_call(self.per_layer_projection),
            norm_call(self.post_per_layer_input_norm),
        )

    @cached_property
    def mixture_calls(self) -> tuple[Call, Call, Call]:
        """The norms around experts beside an MLP: behind the MLP, before and behind the experts."""
        behind_mlp, before = self.post_feedforward_layernorm_1, self.pre_feedforward_layernorm_2
        return norm_call(behind_mlp), norm_call(before), norm_call(self.post_feedforward_layernorm_2)

    def forward(
        self,
        rows: torch.Tensor,
        attention: Attention,
        rotation: Rotation,
        given: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden rows [rows, hidden] for hidden `rows` of this shape.

        Args:
            attention: stores the keys and values of the rows, and attends to all that they see.
            rotation: the rotation of the rows.
            given: the rows [rows, layer_input] that the layer is given of the tokens; see Architecture.
        """
        before, after, before_mlp, mlp, after_mlp, attend = self.calls
        multiplier = self.architecture.residual_multiplier
        if attend is not None:
            attended = attend(before(rows), attention, rotation)
            if after is not None:
                attended = after(attended)
            if multiplier != 1:
                attended.mul_(multiplier)
            rows = attended.add_(rows)
        if mlp is None:
            return rows
        computed = mlp(before_mlp(rows))
        if self.has_experts_beside:
            behind_mlp, before, behind = self.mixture_calls
            computed = behind_mlp(computed) + behind(self.experts(before(rows), *self.router(rows)))
        if after_mlp is not None:
            computed = after_mlp(computed)
        if multiplier != 1:
            computed.mul_(multiplier)
        rows = computed.add_(rows)
        if given is not None:
            open_gate, activate, project, after = self.input_calls
            rows = after(project(activate(open_gate(rows)).mul_(given))).add_(rows)
        return rows.mul_(self.layer_scalar) if self.architecture.layer_factor else rows


def _recurrent_mixer(
    architecture: Architecture, recurrence: Recurrence, index: int
) -> GatedDeltaNet | StateSpace | GatedConvolution:
    """The part of a recurrent layer in the place of attention; `index` as of RecurrentLayer."""
    if isinstance(recurrence, DeltaNet):
        return GatedDeltaNet(architecture, recurrence, index)
    if isinstance(recurrence, Mamba2):
        return StateSpace(architecture, recurrence, index)
    return GatedConvolution(architecture, recurrence, index)


def empty_layer(architecture: Architecture, layer: int, cache_index: int = 0) -> DecoderLayer:
    """Make the model's layer `layer` in evaluation mode, without memory for its weights."""
    with torch.device("meta"):
        return DecoderLayer(architecture, layer, cache_index).requires_grad_(False).eval()


def product_call(module: nn.Module) -> Call:
    """Return the product of rows [n, in] with the bits of the module's; [n, out] is a new tensor."""
    if type(module) is not nn.Linear:
        return module
    weight = module.weight.t()
    if module.bias is None:
        return partial(_multiply, weight)
    return partial(_multiply_with_bias, module.bias, weight)


def _multiply(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows, weight)


def _multiply_with_bias(bias: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, rows, weight)


def _norm(architecture: Architecture, width: int) -> RmsNorm:
    return RmsNorm(
        width,
        architecture.norm_eps,
        plus_one=architecture.norm_plus_one,
        in_float=architecture.norm_in_float,
    )


def _present(module: nn.Module, fused_name: str, names: Sequence[str]) -> list[nn.Module]:
    present = [fused_name] if fused_name in module._modules else names
    return [module.get_submodule(name) for name in present if name in module._modules]


def _fuse(module: nn.Module, names: Sequence[str], fused_name: str) -> None:
    """Put one linear layer in the place of the layers `names`, where they can be joined."""
    names = [name for name in names if name in module._modules]
    if fused_name in module._modules or len(names) < 2:
        return
    parts = [module.get_submodule(name) for name in names]
    for name in names:
        delattr(module, name)  # so that the parts are freed with this list
    joined = fuse(parts)
    if joined is not None:
        setattr(module, fused_name, joined)
        return
    for name, part in zip(names, parts, strict=True):
        setattr(module, name, part)


def _beside(projections: Sequence[Call], rows: torch.Tensor) -> torch.Tensor:
    """The results of projections [n, out] beside each other, in a new tensor."""
    if len(projections) == 1:
        return projections[0](rows)
    return torch.cat([project(rows) for project in projections], 1)
