"""The angles of positions have the bits of transformers' angles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

from flowedge.models.families.table import FAMILIES
from flowedge.models.rotary import RotaryAngles

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
}
LONG = {"original_max_position_embeddings": 64, "factor": 4.0, "rope_theta": 1e4}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    "llama3": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LONG},
    "yarn": {"rope_type": "yarn", **LONG},
    "dynamic": {"rope_type": "dynamic", **LONG},
}


@pytest.mark.parametrize("rope", ROPES)
def test_positions_have_the_bits_of_transformers(rope: str) -> None:
    settings = SIZES | {"rope_parameters": ROPES[rope]}
    rotary, reference = (
        RotaryAngles(FAMILIES["llama"].config(**settings)),
        LlamaRotaryEmbedding(LlamaConfig(**settings)),
    )
    like = torch.empty(0)
    for positions in (torch.arange(7), torch.arange(60, 200), torch.arange(3)):  # longer, and back again
        for one, other in zip(rotary(like, positions[None]), reference(like, positions[None]), strict=True):
            assert torch.equal(one, other)
