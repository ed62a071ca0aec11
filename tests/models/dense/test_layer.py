"""Dense layers give the bits of transformers' layers, for the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from flowedge.models.dense.layer import DenseLayer
from flowedge.models.dense.rotary import DenseRotary
from flowedge.models.files.families import FAMILIES
from flowedge.models.layers.attention import MASKED, register_in_transformers

ROWS = 5
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
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
CASES = [
    ("llama", {}),
    ("llama", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    ("mistral", {"sliding_window": 8, "attention_bias": True, "mlp_bias": True}),  # ignored by Mistral
    ("qwen2", {}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"head_dim": 16, "attention_bias": True}),
]


def computed(layer: nn.Module, config: Any, rotary: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Return what a layer makes of two forwards of rows, the second of which reads the first's cache."""
    generator, outputs = torch.Generator().manual_seed(2), []
    cache = DynamicCache()
    for first in (0, ROWS):
        positions = torch.arange(first, first + ROWS)[None]
        hidden = torch.randn((1, ROWS, config.hidden_size), generator=generator).to(dtype)
        visible = torch.arange(first + ROWS)[None] <= positions[0][:, None]
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, float("-inf"))
        with torch.inference_mode():
            output: torch.Tensor = layer(
                hidden,
                attention_mask=mask[None, None],
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=rotary(hidden, positions),
            )
        outputs.append(output)
    return torch.cat(outputs)


@pytest.mark.parametrize(("model_type", "changes"), CASES, ids=str)
def test_a_layer_has_the_bits_of_transformers(model_type: str, changes: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        register_in_transformers()
        ours, theirs = FAMILIES[model_type], FAMILIES[model_type].in_transformers
        torch.manual_seed(1)
        config, own_config = (family.config(**SIZES, **changes) for family in (theirs, ours))
        for each in (config, own_config):
            each._attn_implementation = MASKED  # noqa: SLF001 (there is no public way)
        reference = theirs.decoder_layer(config, 0)
        for parameter in reference.parameters():
            nn.init.normal_(parameter, std=0.3)
        layer = ours.decoder_layer(own_config, 0)
        assert isinstance(layer, DenseLayer)
        layer.load_state_dict(reference.state_dict())
        one, other = (
            computed(module.to(dtype).eval(), like, family.rotary(like), dtype)
            for module, like, family in ((layer, own_config, ours), (reference, config, theirs))
        )
        assert torch.equal(one, other)


@pytest.mark.parametrize("rope", ROPES)
def test_positions_have_the_bits_of_transformers(rope: str) -> None:
    ours, theirs = FAMILIES["llama"], FAMILIES["llama"].in_transformers
    settings = SIZES | {"rope_parameters": ROPES[rope]}
    rotary, reference = (family.rotary(family.config(**settings)) for family in (ours, theirs))
    assert isinstance(rotary, DenseRotary)
    like = torch.empty(0)
    for positions in (torch.arange(7), torch.arange(60, 200), torch.arange(3)):  # longer, and back again
        for one, other in zip(rotary(like, positions[None]), reference(like, positions[None]), strict=True):
            assert torch.equal(one, other)


def test_a_norm_has_the_bits_of_transformers() -> None:
    ours, theirs = FAMILIES["qwen3"], FAMILIES["qwen3"].in_transformers
    rows = torch.randn((3, 64), generator=torch.Generator().manual_seed(1)) * 5
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        norms = [family.norm(64, eps=1e-5).to(dtype) for family in (ours, theirs)]
        for norm in norms:
            norm.weight.data = torch.linspace(0.1, 3, 64, dtype=dtype)
        assert torch.equal(norms[0](rows.to(dtype)), norms[1](rows.to(dtype)))
