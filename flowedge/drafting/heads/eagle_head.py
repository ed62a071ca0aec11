"""The EAGLE-1/2 draft head in its published layout: one decoder layer over (next token, target feature)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from flowedge.drafting.heads.head_files import (
    EMBEDDING_KEY,
    check_tensors,
    llama_config,
    read_config,
    read_tensors,
    write_head,
)

KIND = "EAGLE-1/2"

Rotary = tuple[Tensor, Tensor]  # cosines and sines, each [..., rows, head_dim]


@dataclass(frozen=True)
class KeyValueViews:
    """Views of an external cache, each [kv_heads, kv_len, head_dim]; a forward writes its rows to the end."""

    keys: Tensor
    values: Tensor


class EagleAttention(nn.Module):
    """Grouped-query attention over an external cache, or causal over the batch itself."""

    def __init__(self, config: LlamaConfig, input_width: int | None = None) -> None:
        """input_width: of the rows it takes; a hidden state's by default."""
        super().__init__()
        width = config.hidden_size if input_width is None else input_width
        self.head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        query_width = config.num_attention_heads * self.head_dim
        key_width = (config.num_key_value_heads or config.num_attention_heads) * self.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, query_width, bias=bias)
        self.k_proj = nn.Linear(width, key_width, bias=bias)
        self.v_proj = nn.Linear(width, key_width, bias=bias)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=bias)

    def forward(
        self, hidden: Tensor, rotary: Rotary, cache: KeyValueViews | None, mask: Tensor | None
    ) -> Tensor:
        """hidden [..., rows, input_width] -> [..., rows, hidden]; see `EagleHead.forward` for the others."""
        queries, keys = apply_rotary_pos_emb(
            self._heads(self.q_proj(hidden)), self._heads(self.k_proj(hidden)), *rotary, unsqueeze_dim=-3
        )
        values = self._heads(self.v_proj(hidden))
        if cache is not None:
            rows = hidden.shape[-2]
            cache.keys[:, -rows:] = keys
            cache.values[:, -rows:] = values
            queries, keys, values = queries[None], cache.keys[None], cache.values[None]
        attended = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        projected: Tensor = self.o_proj(attended.transpose(-2, -3).reshape(*hidden.shape[:-1], -1))
        return projected

    def _heads(self, projected: Tensor) -> Tensor:
        """[..., rows, heads * head_dim] -> [..., heads, rows, head_dim]."""
        return projected.view(*projected.shape[:-1], -1, self.head_dim).transpose(-2, -3)


class EagleLayer(nn.Module):
    """A Llama decoder layer without its input norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = EagleAttention(config)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Tensor, rotary: Rotary, cache: KeyValueViews | None, mask: Tensor | None
    ) -> Tensor:
        """hidden [..., rows, hidden] -> [..., rows, hidden]."""
        hidden = hidden + self.self_attn(hidden, rotary, cache, mask)
        updated: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return updated


class EagleHead(nn.Module):
    """Predicts the target's next feature from its last one and the token that follows it.

    A feature is the target's hidden state after the final norm. Row t pairs feature[t] with token[t+1], has
    RoPE position t and predicts feature[t+1], from which the target's LM head gives the logits of token[t+2].
    `embed_tokens` is None where the checkpoint leaves the embedding to be shared with the target.
    """

    def __init__(self, config: LlamaConfig, fc_bias: bool, own_embedding: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if own_embedding else None
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=fc_bias)
        self.layers = nn.ModuleList([EagleLayer(config)])
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(
        self,
        token_embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: KeyValueViews,
        mask: Tensor,
    ) -> Tensor:
        """Features [rows, hidden] that follow the rows given; their keys and values become the cache's last.

        token_embeddings and features [rows, hidden]; positions [rows] int64; mask [rows, kv_len] bool, True
        where a row sees a cache entry, its own included.
        """
        rotary = self.rotary_emb(features, positions)
        hidden = self.fc(torch.cat((token_embeddings, features), dim=-1))
        predicted: Tensor = self.layers[0](hidden, rotary, cache, mask)
        return predicted

    def forward_causal(self, token_embeddings: Tensor, features: Tensor) -> Tensor:
        """The same for whole sequences from position 0; inputs and result [batch, length, hidden]."""
        positions = torch.arange(features.shape[1], device=features.device)[None]
        rotary = self.rotary_emb(features, positions)
        hidden = self.fc(torch.cat((token_embeddings, features), dim=-1))
        predicted: Tensor = self.layers[0](hidden, rotary, None, None)
        return predicted


def load_eagle_head(directory: Path, dtype: torch.dtype) -> EagleHead:
    """The head of a published EAGLE-1/2 checkpoint folder, in evaluation mode with its weights in `dtype`."""
    settings = read_config(directory / "config.json")
    config = llama_config(settings, directory, KIND)
    tensors = read_tensors(directory)
    head = EagleHead(config, fc_bias=bool(settings.get("bias", True)), own_embedding=EMBEDDING_KEY in tensors)
    check_tensors(head, tensors, directory, KIND)
    # Assigned rather than head.to(dtype): that would round the rotary frequencies as well.
    head.load_state_dict({name: value.to(dtype) for name, value in tensors.items()}, assign=True)
    return head.requires_grad_(False).eval()


def save_eagle_head(head: EagleHead, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, each replaced in one step."""
    settings = {
        "bias": head.fc.bias is not None,
        "dtype": str(head.fc.weight.dtype).removeprefix("torch."),
    }
    write_head(directory, head.config, settings, head.state_dict())
