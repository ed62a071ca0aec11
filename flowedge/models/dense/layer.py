"""The decoder layer of dense families. Modules have the names and the results of transformers' layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flowedge.models.dense.attention_functions import ATTENTION_FUNCTIONS
from flowedge.models.dense.norm import DenseNorm
from flowedge.models.dense.rotary import rotate_heads

# By model type, what differs between the layers. Other families ignore the settings of biases.
_MLP_BIAS = {"llama"}  # where config says so
_ATTENTION_BIAS = {"llama", "qwen3"}  # where config says so
_INPUT_BIAS = {"qwen2"}  # always, of queries, keys and values
_HEAD_NORMS = {"qwen3"}


class DenseMLP(nn.Module):
    """The gated MLP."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        bias = config.model_type in _MLP_BIAS and config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.act_fn = _activation(config.hidden_act)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden] for rows [..., hidden]."""
        product: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows))
        return product


class DenseAttention(nn.Module):
    """Grouped-query attention with rotary positions, and for Qwen3 with norms of queries and keys."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or hidden // heads
        self.scaling = self.head_dim**-0.5
        output_bias = config.model_type in _ATTENTION_BIAS and config.attention_bias
        bias = output_bias or config.model_type in _INPUT_BIAS
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=output_bias)
        if config.model_type in _HEAD_NORMS:
            self.q_norm = DenseNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = DenseNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(
        self,
        rows: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: Any,
        past_key_values: Any,
    ) -> torch.Tensor:
        """Return [1, rows, hidden] for rows [1, rows, hidden]; see DenseLayer.forward."""
        shape = (*rows.shape[:-1], -1, self.head_dim)
        queries, keys, values = (each(rows).view(shape) for each in (self.q_proj, self.k_proj, self.v_proj))
        if "q_norm" in self._modules:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        cos, sin = (angles.unsqueeze(1) for angles in position_embeddings)
        queries, keys = (rotate_heads(heads.transpose(1, 2), cos, sin) for heads in (queries, keys))
        keys, values = past_key_values.update(keys, values.transpose(1, 2), self.layer_idx)
        attend = ATTENTION_FUNCTIONS[self.config._attn_implementation]
        attended, _ = attend(self, queries, keys, values, attention_mask, scaling=self.scaling)
        output: torch.Tensor = self.o_proj(attended.reshape(*rows.shape[:-1], -1))
        return output


class DenseLayer(nn.Module):
    """A decoder layer of Llama, Mistral, Qwen2 or Qwen3, as its config says."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = DenseAttention(config, layer_idx)
        self.mlp = DenseMLP(config)
        self.input_layernorm = DenseNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = DenseNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: Any = None,
        past_key_values: Any,
        **_without_effect: Any,
    ) -> torch.Tensor:
        """Return the layer's output [1, rows, hidden].

        Args:
            hidden_states: [1, rows, hidden].
            position_embeddings: cos and sin, each [1, rows, head_size].
            attention_mask: what the attention function of the config takes.
            past_key_values: the session's cache.
        """
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(normed, position_embeddings, attention_mask, past_key_values)
        between = hidden_states + attended
        output: torch.Tensor = between + self.mlp(self.post_attention_layernorm(between))
        return output


def _activation(name: str) -> nn.Module:
    if name == "silu":
        return nn.SiLU()
    from transformers.activations import ACT2FN  # noqa: PLC0415 (its import takes seconds and 140 MiB)

    activation: nn.Module = ACT2FN[name]
    return activation
