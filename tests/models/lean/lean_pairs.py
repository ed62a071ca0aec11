"""Decoder layers of transformers beside lean layers with the same weights, over caches of their own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig

from flowedge.models.exact.aligned_activation import align_activations
from flowedge.models.exact.attention_test import AttentionSizes, attention_sizes
from flowedge.models.files.config_support import layer_windows
from flowedge.models.files.families import FAMILIES, Family
from flowedge.models.kv.store import head_size
from flowedge.models.layers import attention
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.experts import split_experts
from flowedge.models.layers.rotary import Rotary
from flowedge.models.lean.lean_layer import LeanLayer, lean_layer
from flowedge.models.quant.quantize import quantize_block
from tests.models.tiny_families import SHARED, TINY, randomise

CPU = torch.device("cpu")
CONTEXT, TAIL = 70, 5  # committed rows, and rows of a draft tree after them
PARENTS = np.array([-1, CONTEXT, CONTEXT, -1, CONTEXT + 1])
DEPTHS = np.array([0, 1, 1, 0, 2])


@dataclass(frozen=True)
class LayerPair:
    """The layers of a small model by transformers, and lean layers with copies of the weights."""

    family: Family
    config: Any
    theirs: list[nn.Module]
    ours: list[nn.Module]
    dtype: torch.dtype

    @torch.inference_mode()
    def outputs(self, *, ordered: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of a context, and of a draft tree after it, by transformers' layers and by ours.

        The rows of the tree go through all layers together, and each through a cache of its own kind.
        """
        sizes = self.sizes() if ordered else None
        return self._computed(self.theirs, sizes), self._computed(self.ours, sizes)

    def sizes(self) -> AttentionSizes:
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        sizes = attention_sizes(CPU, kv_heads, heads // kv_heads, head_size(self.config))
        assert sizes is not None
        return sizes

    def _computed(self, layers: list[nn.Module], sizes: AttentionSizes | None) -> torch.Tensor:
        windows = layer_windows(self.family, self.config)
        cache = SessionCache(self.config, len(layers), 128, self.dtype, windows=windows, ordered=sizes)
        rotary = Rotary(self.family, self.config, range(len(layers)), CPU)
        generator = torch.Generator().manual_seed(7)
        rows = torch.randn(CONTEXT + TAIL, self.config.hidden_size, generator=generator).to(self.dtype)
        chain = np.array([-1, *range(CONTEXT - 1)])
        outputs = [
            self._forward(layers, cache, rotary, rows[:CONTEXT], 0, (0, np.arange(CONTEXT), chain)),
            self._forward(
                layers, cache, rotary, rows[CONTEXT:], CONTEXT, (CONTEXT, CONTEXT + DEPTHS, PARENTS)
            ),
        ]
        return torch.cat(outputs, 1)[0].float()

    def _forward(
        self,
        layers: list[nn.Module],
        cache: SessionCache,
        rotary: Rotary,
        rows: torch.Tensor,
        cached: int,
        place: tuple[int, Any, Any],
    ) -> torch.Tensor:
        context, positions, parents = place
        cache.begin(cached, len(rows))
        masks = cache.prepare(context, parents, positions)
        hidden, ids = rows[None], torch.from_numpy(positions)[None]
        rotations = rotary(hidden, ids, positions)
        for layer, mask, rotation in zip(layers, masks, rotations, strict=True):
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=ids,
                past_key_values=cache,
                position_embeddings=rotation,
            )
        return hidden


def layer_pair(
    name: str,
    dtype: torch.dtype = torch.float32,
    quant: str = "none",
    ordered: bool = False,
    **changes: Any,
) -> LayerPair:
    """Make the layers of a model of TINY; `changes` are changes of its config."""
    model_type, own = TINY[name]
    config = AutoConfig.for_model(model_type, **(SHARED | own | changes))
    family, layer_config = FAMILIES[model_type], copy.deepcopy(config)
    kind = attention.ORDERED if ordered else attention.MASKED
    layer_config._attn_implementation = kind  # noqa: SLF001 (there is no public way)
    attention.register_in_transformers()
    torch.manual_seed(11)
    theirs, ours = [], []
    for index in range(config.num_hidden_layers):
        layer = family.in_transformers.decoder_layer(layer_config, index)
        _start(layer, config.initializer_range)
        held = family.decoder_layer(layer_config, index)  # what a block makes a lean layer of
        held.load_state_dict(layer.state_dict())
        layer, held = (
            quantize_block(split_experts(each).to(dtype), quant, dtype).requires_grad_(False).eval()
            for each in (layer, held)
        )
        lean = lean_layer(held, config)
        assert isinstance(lean, LeanLayer)
        if ordered:
            align_activations(layer)
            align_activations(lean)
        theirs.append(layer)
        ours.append(lean)
    return LayerPair(family, config, theirs, ours, dtype)


def _start(layer: nn.Module, std: float) -> None:
    """Give weights the values that a new model has; a layer alone leaves those of experts empty."""
    for parameter in layer.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
    randomise(layer)
