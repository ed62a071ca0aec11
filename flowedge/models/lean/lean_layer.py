"""A decoder layer that computes what transformers' layer computes, with few calls of torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn

from flowedge.models.lean.calls import Call, activation_call, head_norm_call, norm_call, product_call
from flowedge.models.lean.form import LayerForm, layer_form, mlp_activation
from flowedge.models.lean.fusing import GATE_UP, QUERY_KEY_VALUE, fuse
from flowedge.models.lean.masked_attention import attend_masked
from flowedge.models.lean.rotation import HeadRotation

_CALLS = "calls"
_log = logging.getLogger(__name__)


def lean_layer(layer: nn.Module, config: Any, *, fused: bool = True) -> nn.Module:
    """Return a LeanLayer with the weights of a loaded transformers layer, or the layer itself if it is odd.

    A layer that becomes lean is taken apart, and cannot be used afterwards.

    Args:
        config: the transformers config that the layer was made with.
        fused: whether linear layers that read the same rows are joined, which saves calls of torch.
    """
    form = layer_form(layer, config)
    return layer if isinstance(form, str) else LeanLayer(layer, form, fused).eval()


def warn_of_odd_layers(layers: Sequence[nn.Module], start: int, config: Any) -> None:
    """Say in the log, once for all of them, which loaded layers are not lean, and why the first is not.

    Args:
        start: the index of the first layer in the model.
    """
    odd = [(start + index, layer) for index, layer in enumerate(layers) if not isinstance(layer, LeanLayer)]
    if odd:
        _log.warning(
            "layers %s are computed by transformers' own code, which is slower: layer %d is not known well "
            "enough (%s)",
            ", ".join(str(index) for index, _ in odd),
            odd[0][0],
            layer_form(odd[0][1], config),
        )


class _Prepared(nn.Module):
    """A module whose `calls` are prepared once. Exchange a child by setting it, not a weight of the child."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _CALLS}

    def _apply(self, fn: Any, recurse: bool = True) -> _Prepared:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def _forget(self) -> None:
        vars(self).pop(_CALLS, None)


class LeanAttention(_Prepared):
    """Grouped-query attention over a session's cache.

    Attributes:
        layer_idx: the layer of the session's cache.
    """

    def __init__(self, attention: Any, form: LayerForm, fused: bool) -> None:
        """Take the projections and norms of a transformers attention; `fused` as in `lean_layer`."""
        super().__init__()
        self.form = form
        self.layer_idx = int(attention.layer_idx)
        _take(self, attention, QUERY_KEY_VALUE, "qkv_proj", fused)
        self.o_proj = attention.o_proj
        if form.query_key_norms:
            self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        size = form.head_size
        self._widths = (form.heads, 2 * form.kv_heads)  # of queries, and of keys and values, in heads
        self._sizes = (size, form.kv_heads, form.heads + form.kv_heads, form.heads * size)

    @cached_property
    def calls(self) -> tuple[list[Call], Call, Call | None]:
        """The projections to queries, keys and values, the projection of the output, the norm of heads."""
        norm = head_norm_call(self.q_norm, self.k_norm, self.form) if self.form.query_key_norms else None
        return _fused_calls(self, QUERY_KEY_VALUE, "qkv_proj"), product_call(self.o_proj), norm

    def forward(self, rows: torch.Tensor, mask: Any, cache: Any, rotation: HeadRotation) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape.

        Args:
            mask: an additive mask [1, 1, rows, context], or an OrderedReading with the store that it reads;
                for rows of several sessions, a list of each session's number of rows, mask and cache.
            cache: the cache, which stores the keys and values of the rows.
        """
        projections, project_output, norm = self.calls
        form, (size, kv_heads, rotated, width) = self.form, self._sizes
        count = rows.shape[0]
        heads = _beside(projections, rows).view(count, -1, size)
        own = heads.narrow(1, 0, rotated)
        normed = own if norm is None else norm(own)
        if form.rotates:
            turned = rotation.cos.shape[2]
            if turned != size and normed is not own:
                own.copy_(normed)
                normed = own
            if turned != size:
                normed = own = own[..., :turned]
            rotation.rotate(normed, own)
        elif normed is not own:
            own.copy_(normed)
        by_head, index = heads.transpose(0, 1), self.layer_idx
        query, keys_values = by_head.split_with_sizes(self._widths)
        query = query.unsqueeze(0)
        cache.store_rows(keys_values.view(2, kv_heads, count, size), index)
        if type(mask) is list:
            queries = query.split_with_sizes([own for own, *_ in mask], 2)
            parts = [self._attended(own, *read) for own, (_, *read) in zip(queries, mask, strict=True)]
            attended = torch.cat(parts, 1)
        else:
            attended = self._attended(query, mask, cache)
        return project_output(attended.reshape(-1, width))

    def _attended(self, query: torch.Tensor, mask: Any, cache: Any) -> torch.Tensor:
        """The attention [1, rows, heads, head_size] of a session's queries [1, heads, rows, head_size]."""
        form, index = self.form, self.layer_idx
        attended: torch.Tensor
        if type(mask) is tuple:
            reading, store = mask
            attended = reading.attend(query, store, index, form.kv_heads, form.scaling, form.softcap)
        else:
            keys, values = cache.views(index)
            attended = attend_masked(query, keys, values, mask, form.scaling, form.softcap)
        return attended.transpose(1, 2)


class GatedMlp(_Prepared):
    """An MLP whose hidden values are multiplied by an activated gate."""

    def __init__(self, mlp: Any, fused: bool) -> None:
        """Take the projections and the activation of a transformers MLP; `fused` as in `lean_layer`."""
        super().__init__()
        self.act_fn = mlp_activation(mlp)
        _take(self, mlp, GATE_UP, "gate_up_proj", fused)
        self.down_proj = mlp.down_proj

    @cached_property
    def calls(self) -> tuple[list[Call], Call, Call]:
        """The projections to gate and values, the activation, the projection back."""
        own = _fused_calls(self, GATE_UP, "gate_up_proj")
        return own, activation_call(self.act_fn), product_call(self.down_proj)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden] for `rows` of this shape."""
        projections, activate, project_back = self.calls
        if len(projections) == 1:
            gate, values = projections[0](rows).chunk(2, 1)
        else:
            gate, values = (project(rows) for project in projections)
        return project_back(activate(gate).mul_(values))


class LeanLayer(_Prepared):
    """A decoder layer in place of transformers' layer, with the same arguments and the same weights.

    Attributes:
        form: what the layer computes around its weights.
    """

    def __init__(self, layer: Any, form: LayerForm, fused: bool = True) -> None:
        """Take a transformers layer apart, whose form is `form`; `fused` as in `lean_layer`."""
        super().__init__()
        self.form = form
        self.self_attn = LeanAttention(layer.self_attn, form, fused)
        self.mlp: nn.Module = layer.mlp if form.experts else GatedMlp(layer.mlp, fused)
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        if form.sandwich:
            self.pre_feedforward_layernorm = layer.pre_feedforward_layernorm
            self.post_feedforward_layernorm = layer.post_feedforward_layernorm

    @cached_property
    def calls(self) -> tuple[Call, Call | None, Call, Call, Call | None, Any]:
        """Norm before and after the attention, norm before the MLP, MLP, norm after it, the attention."""
        form, first = self.form, norm_call(self.input_layernorm, self.form)
        second = norm_call(self.post_attention_layernorm, form)
        mlp: Call = _Mixture(self.mlp) if form.experts else self.mlp.forward
        if not form.sandwich:
            return first, None, second, mlp, None, self.self_attn.forward
        third = norm_call(self.pre_feedforward_layernorm, form)
        return (
            first,
            second,
            third,
            mlp,
            norm_call(self.post_feedforward_layernorm, form),
            (self.self_attn.forward),
        )

    def forward(
        self,
        hidden: torch.Tensor,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,  # noqa: ARG002 (the rotation has them)
        past_key_values: Any = None,
        position_embeddings: Any = None,
    ) -> torch.Tensor:
        """Return hidden rows [1, rows, hidden] for `hidden` of this shape.

        Args:
            attention_mask: the mask, as LeanAttention takes it.
            past_key_values: the cache, which stores the keys and values of the rows.
            position_embeddings: the cosines and sines of the rows, [1, rows, size] each.
        """
        before, after, before_mlp, mlp, after_mlp, attend = self.calls
        (rows,) = hidden.unbind()
        multiplier = self.form.residual_multiplier
        rotation = HeadRotation.of(position_embeddings)
        attended = attend(before(rows), attention_mask, past_key_values, rotation)
        if after is not None:
            attended = after(attended)
        if multiplier != 1:
            attended.mul_(multiplier)
        rows = attended.add_(rows)
        computed = mlp(before_mlp(rows))
        if after_mlp is not None:
            computed = after_mlp(computed)
        if multiplier != 1:
            computed.mul_(multiplier)
        return computed.add_(rows).unsqueeze(0)


class _Mixture:
    """A mixture of experts as a function of rows [n, hidden]."""

    def __init__(self, mixture: nn.Module) -> None:
        self._mixture = mixture

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        computed: torch.Tensor = self._mixture(rows.unsqueeze(0))
        return computed[0]


def _take(module: nn.Module, source: nn.Module, names: Sequence[str], fused_name: str, fused: bool) -> None:
    """Move the projections `names` of `source` to `module`, as one layer if `fused` and where that can be."""
    if fused_name in source._modules:
        setattr(module, fused_name, source.get_submodule(fused_name))
        return
    parts = [source.get_submodule(name) for name in names]
    for name in names:
        delattr(source, name)  # so that the parts are freed with this list
    joined = fuse(parts) if fused else None
    if joined is not None:
        setattr(module, fused_name, joined)
        return
    for name, part in zip(names, parts, strict=True):
        setattr(module, name, part)


def _fused_calls(module: nn.Module, names: Sequence[str], fused_name: str) -> list[Call]:
    """The products of one fused layer, or of each layer."""
    own = [fused_name] if fused_name in module._modules else names
    return [product_call(module.get_submodule(name)) for name in own]


def _beside(projections: Sequence[Call], rows: torch.Tensor) -> torch.Tensor:
    """The results of projections [n, out] beside each other, in a new tensor."""
    if len(projections) == 1:
        return projections[0](rows)
    return torch.cat([project(rows) for project in projections], 1)
