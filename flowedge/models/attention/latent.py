"""Multi-head latent attention over the caches of sessions, whose keys are latent vectors; see Latent."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from flowedge.models.architecture import Architecture
from flowedge.models.attention.attention import Attention, Scoring
from flowedge.models.families.parts import Latent
from flowedge.models.rotary import Rotation
from flowedge.models.row_functions import RmsNorm


class HeadLinears(nn.Module):
    """A linear layer of each head, which no quantisation rounds: [heads, out, in]."""

    bias = None

    def __init__(self, heads: int, width: int, outputs: int) -> None:
        """Make the layers, whose weights are not loaded."""
        super().__init__()
        self.in_features, self.out_features = heads * width, heads * outputs
        self.weight = nn.Parameter(torch.empty(heads, outputs, width))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., heads * out] for rows [..., heads * in]."""
        heads, _, width = self.weight.shape
        products = self.by_head(rows.reshape(-1, heads, width).transpose(0, 1))
        return products.transpose(0, 1).reshape(*rows.shape[:-1], self.out_features)

    def by_head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [heads, n, out] for rows [heads, n, in]."""
        return torch.bmm(rows, self.weight.mT)


class LatentAttention(nn.Module):
    """Latent attention; modules are named as transformers' modules, but for the two that `kv_b_proj` is.

    Attributes:
        cache_index: the layer's index in the caches.
        key_heads: the one head of the keys that queries read.
    """

    def __init__(self, architecture: Architecture, latent: Latent, cache_index: int) -> None:
        """Make the attention of a layer, whose weights are not loaded."""
        super().__init__()
        self.cache_index, self.latent = cache_index, latent
        self._architecture, self.key_heads = architecture, architecture.usual_heads
        hidden, heads, bias = architecture.hidden, architecture.heads, architecture.qkv_bias
        queries = heads * latent.query
        if latent.query_rank is None:
            self.q_proj = nn.Linear(hidden, queries, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, latent.query_rank, bias=bias)
            self.q_a_layernorm = RmsNorm(latent.query_rank, latent.epsilon)
            self.q_b_proj = nn.Linear(latent.query_rank, queries, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, latent.rank + latent.rotated, bias=bias)
        self.kv_a_layernorm = RmsNorm(latent.rank, latent.epsilon)
        self.k_b = HeadLinears(heads, latent.plain, latent.rank)
        self.v_b = HeadLinears(heads, latent.rank, latent.value)
        self.o_proj = nn.Linear(heads * latent.value, hidden, bias=architecture.output_bias)

    @cached_property
    def _scoring(self) -> Scoring:
        return Scoring(self._architecture.scaling)

    def forward(self, rows: torch.Tensor, attention: Attention, rotation: Rotation) -> torch.Tensor:
        """Return [rows, hidden] for the normed `rows` of this shape; arguments as of DecoderLayer."""
        latent, count, heads = self.latent, rows.shape[0], self._architecture.heads
        of_query, of_key = (latent.plain, latent.rotated), (latent.rank, latent.rotated)
        plain, turned = self._queries(rows).view(count, heads, -1).split_with_sizes(of_query, 2)
        compressed, turned_key = self.kv_a_proj_with_mqa(rows).split_with_sizes(of_key, 1)
        vectors = rows.new_empty((count, heads + 1, latent.rank + latent.rotated))  # of queries, and the key
        vectors[:, :heads, : latent.rank] = self.k_b.by_head(plain.transpose(0, 1)).transpose(0, 1)
        vectors[:, heads, : latent.rank] = self.kv_a_layernorm(compressed)
        parts = torch.cat((turned, turned_key[:, None]), 1)
        if latent.paired:
            parts = parts.view(count, heads + 1, -1, 2).transpose(2, 3).flatten(2)
        rotation.rotate(parts, vectors[..., latent.rank :])
        queries, key = vectors.transpose(0, 1).split_with_sizes((heads, 1))
        # A key is its own value. Of the numbers that are attended to, those that rotated are not used.
        attention.store_rows(self.cache_index, key.expand(2, 1, -1, -1))
        attended = attention.attend(self.cache_index, queries.unsqueeze(0), 1, self._scoring)
        values = self.v_b.by_head(attended[0, :, :, : latent.rank]).transpose(0, 1).reshape(count, -1)
        output: torch.Tensor = self.o_proj(values)
        return output

    def _queries(self, rows: torch.Tensor) -> torch.Tensor:
        if self.latent.query_rank is None:
            found: torch.Tensor = self.q_proj(rows)
        else:
            found = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(rows)))
        return found
