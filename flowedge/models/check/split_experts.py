"""Linear layers in place of the stacked weights of transformers' experts, so that they can be quantised."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flowedge.models.experts import ExpertLinears
from flowedge.models.row_functions import DecidingLinear

_DECIDING = frozenset({"in_proj_a", "in_proj_b", "in_proj_ba", "shared_expert_gate"})


class SplitExperts(ExpertLinears):
    """Experts as blocks have them, with the arguments of transformers' experts."""

    def __init__(self, stacked: Any) -> None:
        """Use views of the weights of `stacked`, a transformers experts module."""
        count, hidden, inner = stacked.down_proj.shape
        super().__init__(stacked.act_fn, hidden, inner, count)
        for index, (gate_up, down) in enumerate(zip(stacked.gate_up_proj, stacked.down_proj, strict=True)):
            for name, weight in zip(
                ("gate_proj", "up_proj", "down_proj"), (*gate_up.chunk(2), down), strict=True
            ):
                linear: Any = self.get_submodule(f"{index}.{name}")
                linear.weight = nn.Parameter(weight.detach(), requires_grad=False)

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
