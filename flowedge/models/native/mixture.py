"""A mixture of experts behind a native attention: routed by torch, its products computed by the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flowedge.models.exact.aligned_activation import align_activations
from flowedge.models.lean.lean_layer import LeanLayer
from flowedge.models.native.native_layer import NotNativeError
from flowedge.models.native.native_norm import NativeNorm
from flowedge.models.products.native_linear import is_native_weight, native_float


class NativeMixture:
    """The second half of a layer whose MLP is a mixture, with rows that do not depend on each other."""

    def __init__(self, layer: LeanLayer) -> None:
        """Prepare the layer, whose experts get native products.

        Raises:
            NotNativeError: when the kernels have no product for a weight.
        """
        mixture: Any = layer.mlp
        self._gate, self._experts = mixture.gate, mixture.experts
        self._norm = NativeNorm(layer.post_attention_layernorm, layer.form)
        self._multiplier = layer.form.residual_multiplier
        for path, linear in list(mixture.named_modules()):
            if type(linear) is nn.Linear:
                if not is_native_weight(linear.weight):
                    raise NotNativeError(f"there are no kernels for experts of {linear.weight.dtype}")
                mixture.set_submodule(path, native_float(linear))
        align_activations(mixture)
        out, width = self._gate.weight.shape
        router = nn.Linear(width, out, bias=False, device="meta")
        router.weight = self._gate.weight
        if not is_native_weight(router.weight):
            raise NotNativeError(f"there are no kernels for a router of {router.weight.dtype}")
        self._router = native_float(router)

    def add_to(self, hidden: torch.Tensor) -> None:
        """Add the mixture's result to rows [n, hidden], in place."""
        rows = hidden.clone()
        self._norm(rows)
        weights, chosen = self._routed(self._router(rows))
        hidden.add_(self._experts(rows, chosen, weights), alpha=self._multiplier)

    def _routed(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and the indices [n, k] of each row's experts, as transformers' routers choose them."""
        gate = self._gate
        weights, chosen = torch.topk(torch.softmax(logits.float(), dim=-1), gate.top_k, dim=-1)
        is_qwen = hasattr(gate, "norm_topk_prob")
        if not is_qwen or gate.norm_topk_prob:
            weights /= weights.sum(dim=-1, keepdim=True)
        return (weights.to(logits.dtype) if is_qwen else weights), chosen
