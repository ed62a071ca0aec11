"""The interface of an EAGLE draft head, and the attention that the heads share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowedge.core.arrays import IntArray
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.architecture import Architecture
from flowedge.models.attention.masked import attend_packed
from flowedge.models.families.table import family_of
from flowedge.models.files.config_support import fixed_rope_length
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.host.copies import to_host
from flowedge.models.rotary import Angles, RotaryAngles, rotate_heads
from flowedge.models.row_functions import RmsNorm, activation_of
from flowedge.models.taps import Taps

OFFSETS_KEY = "d2t"


@dataclass(frozen=True)
class KeyValueViews:
    """Views of an external cache, each [kv_heads, kv_len, head_dim]; a forward writes its rows to the end."""

    keys: Tensor
    values: Tensor


class AttentionContext(Protocol):
    """The rotation of the rows, and what they see."""

    @property
    def rotation(self) -> Angles: ...

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None) -> Tensor:
        """Return [..., heads, rows, head_dim] for rotated queries and keys, and values, of this shape.

        scaling: the factor on the products of queries and keys; head_dim**-0.5 if None.
        """


@dataclass(frozen=True)
class CachedAttention:
    """Attention over an external cache, or causal over the batch itself; see StepHead.forward."""

    rotation: Angles
    cache: KeyValueViews | None
    mask: Tensor | None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None) -> Tensor:
        if self.cache is not None:
            rows = keys.shape[-2]
            self.cache.keys[:, -rows:] = keys
            self.cache.values[:, -rows:] = values
            queries, keys, values = queries[None], self.cache.keys[None], self.cache.values[None]
        if self.mask is not None and queries.device.type != "cpu" and queries.shape[1] != keys.shape[1]:
            return attend_packed(queries, keys, values, self.mask[None, None], scaling)
        return F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self.mask,
            is_causal=self.mask is None,
            scale=scaling,
            enable_gqa=queries.shape[-3] != keys.shape[-3],
        )


class DraftHead(nn.Module, ABC):
    """A head made for one target: what heads of all kinds have in common.

    Attributes:
        config: that of the head's layers.
        embed_tokens: the head's own embedding; None where it is the target's.
        d2t: int64 [columns], the target's token id minus the column; None where columns are token ids.
        places: of each tapped state that the head reads, its index among the states of a row: 0 is the final
            hidden state, behind which tapped states follow, which may be another drafter's.
    """

    d2t: Tensor | None

    def __init__(self, config: Any, own_embedding: bool, *, partial_rotary: bool = False) -> None:
        """partial_rotary: as of Architecture."""
        super().__init__()
        self.config = config
        self._partial_rotary = partial_rotary
        sizes = config.vocab_size, config.hidden_size
        # Given a weight, torch does not initialise one: without memory, that would import torch's compiler.
        self.embed_tokens = nn.Embedding(*sizes, _weight=torch.zeros(sizes)) if own_embedding else None
        self.rotary_emb = RotaryAngles(config, partial_rotary=partial_rotary)
        self.register_buffer(OFFSETS_KEY, None)
        self.places: list[int] = []

    def read_of(self, taps: Taps, own: Taps) -> None:
        """Have the head read the taps `own` out of rows that have `taps`."""
        self.places = [1 + taps.index(tap) for tap in own]

    def tapped(self, rows: Tensor) -> list[Tensor]:
        """The tapped states [..., hidden] that the head reads of rows [..., width]."""
        states = rows.view(*rows.shape[:-1], -1, self.target_hidden_size)
        return [states[..., place, :] for place in self.places]

    def compute_rotary(self, device: torch.device | str) -> None:
        """Compute the rotary frequencies, in float32, for a device."""
        self.rotary_emb = RotaryAngles(self.config, partial_rotary=self._partial_rotary).to(device)

    @property
    def is_recordable(self) -> bool:
        """Whether a GPU computes small forwards without waiting for the host."""
        return fixed_rope_length(self.config) is None

    @property
    @abstractmethod
    def target_hidden_size(self) -> int:
        """The width of the target's hidden states."""

    @property
    def vocabulary(self) -> IntArray | None:
        """int64 [columns], the target's token of each column of the logits; None where they are token ids."""
        return None if self.d2t is None else np.arange(len(self.d2t)) + to_host(self.d2t)[0]

    @property
    def has_lm_head(self) -> bool:
        """Whether it proposes with an LM head of its own, and not with the target's."""
        return getattr(self, "lm_head", None) is not None

    @abstractmethod
    def true_states(self, rows: Tensor) -> Tensor:
        """The states [n, hidden] of true rows, from the last stage's rows [n, width] in the head's dtype."""

    @abstractmethod
    def draft_logits(self, states: Tensor, proposals: ProposalHead) -> Tensor:
        """Logits [n, columns] of states [n, hidden]; `proposals` is over the target's LM head."""

    def rotation(self, like: Tensor, positions: Tensor) -> Angles:
        """The rotation [..., rows, head_dim] of int64 [..., rows] positions, in the dtype of `like`."""
        # Earlier versions of transformers 5 take positions with a batch alone.
        cos, sin = self.rotary_emb(like, positions.view(-1, positions.shape[-1]))
        return cos.view(*positions.shape, -1), sin.view(*positions.shape, -1)


class StepHead(DraftHead):
    """A head of one layer that predicts a state from the state before and the token that follows that.

    Row t pairs state[t] with token[t + 1] and has RoPE position t. Its result stands for state[t + 1], whose
    logits are those of token[t + 2].
    """

    def forward(
        self,
        token_embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: KeyValueViews | None,
        mask: Tensor | None,
    ) -> Tensor:
        """The states [rows, hidden] that follow the given rows, whose keys and values end the cache.

        Without cache and mask, whole sequences [batch, rows, hidden] attend causally to themselves.

        Args:
            token_embeddings, features: [rows, hidden], the tokens' embeddings and the states before them.
            positions: int64 [rows].
            mask: bool [rows, kv_len], True where a row sees a cache entry, its own included.
        """
        context = CachedAttention(self.rotation(features, positions), cache, mask)
        return self.predict(token_embeddings, features, context)

    @abstractmethod
    def predict(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        """The states that follow the given rows, for `token_embeddings` and `features` as in `forward`."""


class HeadMlp(nn.Module):
    """Llama's gated MLP; gradients pass through it."""

    def __init__(self, config: LlamaDecoderConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.activation = activation_of(Architecture.of(family_of("llama"), config).activation)

    def forward(self, rows: Tensor) -> Tensor:
        """Return [..., hidden] for rows [..., hidden]."""
        product: Tensor = self.down_proj(self.activation(self.gate_proj(rows)) * self.up_proj(rows))
        return product


class EagleAttention(nn.Module):
    """The projections of grouped-query attention."""

    def __init__(
        self, config: LlamaDecoderConfig, input_width: int | None = None, *, query_key_norms: bool = False
    ) -> None:
        """Take rows of `input_width`, which is the hidden size by default.

        query_key_norms: whether each head's queries and keys are normed before they rotate.
        """
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
        norm = partial(RmsNorm, self.head_dim, eps=config.rms_norm_eps)
        self.q_norm = norm() if query_key_norms else None
        self.k_norm = norm() if query_key_norms else None

    def forward(self, hidden: Tensor, context: AttentionContext) -> Tensor:
        """Return [..., rows, hidden] for [..., rows, input_width]."""
        queries = self._heads(self.q_proj(hidden))
        if self.q_norm is not None:
            queries = self.q_norm(queries)
        cos, sin = (angles.unsqueeze(-3) for angles in context.rotation)
        queries = rotate_heads(queries, cos, sin)
        attended = context.attend(queries, *self.keys_values(hidden, context.rotation))
        projected: Tensor = self.o_proj(attended.transpose(-2, -3).reshape(*hidden.shape[:-1], -1))
        return projected

    def keys_values(self, hidden: Tensor, rotation: Angles) -> tuple[Tensor, Tensor]:
        """The rotated keys, and the values, [..., kv_heads, rows, head_dim] of [..., rows, input_width]."""
        keys, values = self._heads(self.k_proj(hidden)), self._heads(self.v_proj(hidden))
        if self.k_norm is not None:
            keys = self.k_norm(keys)
        cos, sin = (angles.unsqueeze(-3) for angles in rotation)
        return rotate_heads(keys, cos, sin), values

    def _heads(self, projected: Tensor) -> Tensor:
        """[..., rows, heads * head_dim] -> [..., heads, rows, head_dim]."""
        return projected.view(*projected.shape[:-1], -1, self.head_dim).transpose(-2, -3)
