"""The layers of transformers' model with the linear layers of blocks, so that they can be quantised alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray
from flowedge.models.architecture import Clamp, layer_prefix
from flowedge.models.check.gguf_reference import grouped_order
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.experts import ExpertLinears
from flowedge.models.row_functions import DecidingLinear, activation_of

_INNER = ".layer"  # in the path of a linear layer that another one stands around
_DECIDING = frozenset({"in_proj_a", "in_proj_b", "in_proj_ba", "shared_expert_gate"})


class SplitExperts(ExpertLinears):
    """Experts as blocks have them, with the arguments of transformers' experts."""

    def __init__(self, stacked: Any) -> None:
        """Use the weights of `stacked`, a transformers experts module: views where these are whole rows."""
        in_turns = hasattr(stacked, "gate_up_proj_bias")  # as of experts_of
        both, down = stacked.gate_up_proj, stacked.down_proj
        if in_turns:
            both, down = both.mT, down.mT
            clamp = Clamp(float(stacked.limit), float(stacked.alpha))
            activation = activation_of("silu", clamp)
        else:
            clamp, activation = None, stacked.act_fn
        count, hidden, inner = down.shape
        super().__init__(activation, hidden, inner, count, biases=in_turns, clamp=clamp)
        self._take("weight", both, down, in_turns=in_turns)
        if in_turns:
            self._take("bias", stacked.gate_up_proj_bias, stacked.down_proj_bias, in_turns=in_turns)

    def _take(self, name: str, both: torch.Tensor, down: torch.Tensor, *, in_turns: bool) -> None:
        gate, up = (both[:, ::2], both[:, 1::2]) if in_turns else both.chunk(2, 1)
        for part, values in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            for index, own in enumerate(values):
                kept = nn.Parameter(own.detach().contiguous(), requires_grad=False)
                setattr(self.get_submodule(f"{index}.{part}"), name, kept)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum [n, hidden] of each row's experts."""
        return super().forward(hidden_states, top_k_weights, top_k_index)


def split_experts(module: nn.Module) -> nn.Module:
    """Replace what blocks have otherwise inside `module`, and return `module`.

    These are stacked experts, and linear layers that no quantisation rounds.
    """
    for path, child in list(module.named_modules()):
        weight = getattr(child, "gate_up_proj", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 3:
            with torch.device("meta"):
                module.set_submodule(path, SplitExperts(child))
        elif isinstance(child, nn.Linear) and path.rpartition(".")[2] in _DECIDING:
            deciding = DecidingLinear(child.in_features, child.out_features)
            deciding.weight = nn.Parameter(child.weight.detach(), requires_grad=False)
            module.set_submodule(path, deciding)
    return module


def layers_as_stored(checkpoint: Checkpoint, model: Any) -> nn.Module:
    """Give the layers of a model the linear layers that blocks quantise, in a file's order; return them."""
    layers = split_experts(model.model.layers)
    for path, linear in list(layers.named_modules()):
        order = grouped_order(checkpoint.architecture.recurrence, path.rpartition(".")[2])
        if isinstance(linear, nn.Linear) and order is not None:
            layers.set_submodule(path, _Reordered(linear, order, inputs=path.endswith("out_proj")))
    return layers


def stored_name(checkpoint: Checkpoint, path: str) -> str:
    """The name of the weight of a linear layer, by its path among the layers of `layers_as_stored`."""
    index, _, inner = path.partition(".")
    return checkpoint.family.module_name(f"{layer_prefix(int(index))}{inner.removesuffix(_INNER)}.weight")


class _Reordered(nn.Module):
    """A linear layer whose weight is in the order of its file, with the results of the one it replaces."""

    def __init__(self, linear: nn.Linear, order: IntArray, *, inputs: bool) -> None:
        """order: int64, where each output of `linear` is in the file; or each of its `inputs`."""
        super().__init__()
        back = torch.from_numpy(np.argsort(order))
        self._inputs, self._order = inputs, back if inputs else torch.from_numpy(order)
        own = linear.weight.detach()
        linear.weight = nn.Parameter(own[:, back] if inputs else own[back], requires_grad=False)
        self.layer: nn.Module = linear

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] for rows [..., in_features]."""
        computed: torch.Tensor = self.layer(rows[..., self._order] if self._inputs else rows)
        return computed if self._inputs else computed[..., self._order]
