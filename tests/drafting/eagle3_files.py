"""A random EAGLE-3 head in its published layout, and its computation without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HEADS, KV_HEADS, INNER, THETA, EPS = 4, 2, 48, 10000.0, 1e-5


def save_eagle3_head(
    directory: Path,
    *,
    hidden: int,
    vocab: int,
    draft_vocab: int,
    seed: int = 0,
    own_embedding: bool = False,
    target_hidden: int | None = None,
    **settings: Any,
) -> Path:
    """Every second token and some more make up the draft vocabulary. Returns the directory."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, around: float = 0.0, scale: float = 0.3) -> Tensor:
        return around + scale * torch.randn(shape, generator=generator)

    kv = hidden // HEADS * KV_HEADS
    ids = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
    known = torch.zeros(vocab, dtype=torch.bool)
    known[ids] = True
    tensors = {
        "fc.weight": random(hidden, 3 * (target_hidden or hidden), scale=0.15),
        "midlayer.self_attn.q_proj.weight": random(hidden, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, hidden),
        "midlayer.mlp.gate_proj.weight": random(INNER, hidden),
        "midlayer.mlp.up_proj.weight": random(INNER, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, INNER),
        "midlayer.hidden_norm.weight": random(hidden, around=1, scale=0.1),
        "midlayer.input_layernorm.weight": random(hidden, around=1, scale=0.1),
        "midlayer.post_attention_layernorm.weight": random(hidden, around=1, scale=0.1),
        "norm.weight": random(hidden, around=1, scale=0.1),
        "lm_head.weight": random(draft_vocab, hidden),
        "d2t": ids - torch.arange(draft_vocab),
        "t2d": known,
    }
    if own_embedding:
        tensors["embed_tokens.weight"] = random(vocab, hidden, scale=1.0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        **({} if target_hidden is None else {"target_hidden_size": target_hidden}),
        **settings,
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


class PlainEagle3:
    """The head by its definition, one whole sequence at a time."""

    def __init__(self, directory: Path) -> None:
        self.weights = load_file(directory / "model.safetensors")
        self.target_ids = torch.arange(len(self.weights["d2t"])) + self.weights["d2t"]

    def fuse(self, tapped: Tensor) -> Tensor:
        """[n, 3 * hidden] -> [n, hidden]."""
        return tapped @ self.weights["fc.weight"].T

    def states(self, embedded: Tensor, before: Tensor) -> Tensor:
        """The outputs [n, hidden] of a chain of rows at positions from 0 on."""
        inputs = torch.cat((self._norm("midlayer.input_layernorm", embedded), before), dim=-1)
        width = before.shape[1]
        inputs[:, width:] = self._norm("midlayer.hidden_norm", before)
        size = width // HEADS
        queries, keys, values = (
            self._linear(f"midlayer.self_attn.{name}_proj", inputs).view(len(inputs), -1, size)
            for name in "qkv"
        )
        queries, keys = rotated(queries), rotated(keys)
        attended = torch.zeros(len(inputs), HEADS, size)
        for row in range(len(inputs)):
            for head in range(HEADS):
                of_group = head // (HEADS // KV_HEADS)
                scores = keys[: row + 1, of_group] @ queries[row, head] / size**0.5
                attended[row, head] = torch.softmax(scores, dim=0) @ values[: row + 1, of_group]
        hidden = before + self._linear("midlayer.self_attn.o_proj", attended.flatten(1))
        normed = self._norm("midlayer.post_attention_layernorm", hidden)
        gate = torch.nn.functional.silu(self._linear("midlayer.mlp.gate_proj", normed))
        return hidden + self._linear(
            "midlayer.mlp.down_proj", gate * self._linear("midlayer.mlp.up_proj", normed)
        )

    def log_probs(self, states: Tensor) -> Tensor:
        """[n, draft_vocab]."""
        return torch.log_softmax(self._linear("lm_head", self._norm("norm", states)), dim=-1)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return rows @ self.weights[f"{name}.weight"].T

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        return rows * (rows.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.weights[f"{name}.weight"]


def rotated(rows: Tensor) -> Tensor:
    """[n, heads, size], row n at position n, each half of a head rotated against the other."""
    half = rows.shape[-1] // 2
    angles = torch.arange(len(rows))[:, None] * THETA ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = rows[..., :half], rows[..., half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
