"""Batched decoding of the target, with caches of fixed size that drop the rows of finished prompts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FLOAT_ATTENTION = "sdpa_float32"  # bfloat16 makes products quicker, and attention of single rows slower
KEPT_SHARE = 0.8  # caches are compacted when fewer of their rows than this are still running


def float_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Compute attention in float32 for a model of any dtype, with the interface of sdpa_attention_forward."""
    attended, _ = sdpa_attention_forward(module, query.float(), key, value, mask, **settings)
    return attended.to(query.dtype), None


AttentionInterface.register(FLOAT_ATTENTION, float_attention)
AttentionMaskInterface.register(FLOAT_ATTENTION, sdpa_mask)


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The keys and values of one layer, float32 [rows, heads, capacity, head_dim], filled from the left."""

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity, self.used = capacity, 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            shape = (*key_states.shape[:2], self.capacity, key_states.shape[3])
            self.room = torch.zeros((2, *shape))
            self.is_initialized = True
        start, self.used = self.used, self.used + key_states.shape[2]
        self.room[0, :, :, start : self.used] = key_states
        self.room[1, :, :, start : self.used] = value_states
        self.keys, self.values = self.room[:, :, :, : self.used]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.used

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but those of the ascending indices."""
        self.room = self.room[:, rows]


@torch.no_grad()
def continuations(
    model: LlamaForCausalLM, prompts: list[list[int]], temperature: float, new_tokens: int
) -> list[list[int]]:
    """Return the model's answer to each prompt, with eos if the answer ends within `new_tokens`.

    Prompts are padded to the longest, so they should be of similar length.
    """
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    visible = torch.zeros(len(prompts), width + new_tokens, dtype=torch.bool)
    visible[:, :width] = ids != pad
    visible[:, width:] = True
    layers = [RoomyLayer(width + new_tokens) for _ in model.model.layers]
    cache = Cache(layers=list(layers))
    answers: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(len(prompts))  # the answer of each row of the caches
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    model.set_attn_implementation(FLOAT_ATTENTION)
    for used in range(width, width + new_tokens):
        positions = visible[:, :used].cumsum(dim=1)[:, -ids.shape[1] :] - 1
        hidden = model.model(
            input_ids=ids,
            attention_mask=visible[:, :used].long(),
            position_ids=positions.clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        drawn = draw(model.lm_head(hidden).float(), temperature)
        for row, token in zip(rows[~ended].tolist(), drawn[~ended].tolist(), strict=True):
            answers[row].append(token)
        ended |= drawn == eos
        going = (~ended).nonzero()[:, 0]
        if not len(going):
            break
        if len(going) < KEPT_SHARE * len(rows):
            rows, ended, visible, drawn = rows[going], ended[going], visible[going], drawn[going]
            for layer in layers:
                layer.keep(going)
        ids = drawn[:, None]
    return answers


def draw(logits: Tensor, temperature: float) -> Tensor:
    """Draw a token from each row of logits [rows, vocab]: the likeliest at temperature 0, a sample above."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    total = (logits / temperature).softmax(dim=-1).cumsum(dim=-1)
    return torch.searchsorted(total, torch.rand(len(total), 1) * total[:, -1:])[:, 0]
