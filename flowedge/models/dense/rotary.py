"""Rotary positions of dense layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update


class DenseRotary(nn.Module):
    """The angles of positions. The attributes are those that transformers' update of frequencies changes."""

    inv_freq: torch.Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = config.rope_parameters["rope_type"]
        find = _default_frequencies if self.rope_type == "default" else ROPE_INIT_FUNCTIONS[self.rope_type]
        frequencies, self.attention_scaling = find(config)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)

    @torch.no_grad()
    @dynamic_rope_update  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [..., rows, head_size] of int64 positions [..., rows], in the dtype of `x`."""
        half = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = torch.cat((half, half), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def rotate_heads(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return heads [..., rows, head_size] that are rotated by angles that broadcast to their shape."""
    size = heads.shape[-1] // 2
    return heads * cos + torch.cat((-heads[..., size:], heads[..., :size]), dim=-1) * sin


def _default_frequencies(config: Any) -> tuple[torch.Tensor, float]:
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # With memory, whatever torch's default device is: a power without memory would import torch's compiler.
    exponents = torch.arange(0, size, 2, dtype=torch.float, device="cpu") / size
    return 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0
