"""The layers of transformers' model with the linear layers of blocks, so that they can be quantised alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray
from flowedge.models.architecture import layer_prefix
from flowedge.models.check.gguf_reference import grouped_order
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.experts import ExpertLinears
from flowedge.models.families.parts import Clamp
from flowedge.models.row_functions import DecidingLinear, activation_of

_INNER = ".layer"  # in the path of a linear layer that another one stands around
_DECIDING = frozenset({"in_proj_a", "in_proj_b", "in_proj_ba", "kv_b_proj", "proj", "shared_expert_gate"})


class SplitExperts(ExpertLinears):
    """Experts as blocks have them, with the arguments of transformers' experts."""

    def __init__(self, stacked: Any) -> None:
        """Use the weights of `stacked`, a transformers experts module: views where these are whole rows."""
        in_turns = hasattr(stacked, "gate_up_proj_bias")  # as of experts_of
        gated = hasattr(stacked, "gate_up_proj")
        both, down = stacked.gate_up_proj if gated else stacked.up_proj, stacked.down_proj
        if in_turns:
            both, down = both.mT, down.mT
            clamp = Clamp(float(stacked.limit), float(stacked.alpha))
            activation = activation_of("silu", clamp)
        else:
            clamp, activation = None, stacked.act_fn
        count, hidden, inner = down.shape
        super().__init__(activation, hidden, inner, count, gated=gated, biases=in_turns, clamp=clamp)
        if not gated:
            self._take("weight", {"up_proj": both, "down_proj": down})
            return
        self._take("weight", self._divided(both, down, in_turns=in_turns))
        if in_turns:
            biases = self._divided(stacked.gate_up_proj_bias, stacked.down_proj_bias, in_turns=True)
            self._take("bias", biases)

    @staticmethod
    def _divided(both: torch.Tensor, down: torch.Tensor, *, in_turns: bool) -> dict[str, torch.Tensor]:
        gate, up = (both[:, ::2], both[:, 1::2]) if in_turns else both.chunk(2, 1)
        return {"gate_proj": gate, "up_proj": up, "down_proj": down}

    def _take(self, name: str, parts: Mapping[str, torch.Tensor]) -> None:
        for part, values in parts.items():
            for index, own in enumerate(values):
                kept = nn.Parameter(own.detach().contiguous(), requires_grad=False)
                setattr(self.get_submodule(f"{index}.{part}"), name, kept)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum [n, hidden] of each row's experts."""
        return super().forward(hidden_states, top_k_weights, top_k_index)


class SplitMlp(nn.Module):
    """Granite 4's MLP, whose gate and values are one linear layer there and two in blocks."""

    def __init__(self, fused: Any) -> None:
        """Use views of the weights of `fused`, a transformers MLP."""
        super().__init__()
        self.activation = fused.activation
        gate, up = fused.input_linear.weight.chunk(2)
        for name, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", fused.output_linear.weight)):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
            self.add_module(name, linear)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden] for rows of this shape."""
        gate, values = self.get_submodule("gate_proj")(rows), self.get_submodule("up_proj")(rows)
        product: torch.Tensor = self.get_submodule("down_proj")(self.activation(gate) * values)
        return product


def split_experts(module: nn.Module) -> nn.Module:
    """Replace what blocks have otherwise inside `module`, and return `module`.

    These are stacked experts, gates and values in one linear layer, and linear layers that no quantisation
    rounds.
    """
    for path, child in list(module.named_modules()):
        weight = getattr(child, "down_proj", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 3:
            with torch.device("meta"):
                module.set_submodule(path, SplitExperts(child))
        elif path.endswith("shared_mlp"):
            with torch.device("meta"):
                module.set_submodule(path, SplitMlp(child))
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
