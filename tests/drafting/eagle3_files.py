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
    taps: int = 3,
    query_key_norms: bool = False,
    speculators: bool = False,
    **settings: Any,
) -> Path:
    """Every second token and some more make up the draft vocabulary. Returns the directory.

    Args:
        taps: the number of the target's states that it reads.
        speculators: whether the files are in the layout of speculators.
        settings: of config.json, those of norms among them.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, around: float = 0.0, scale: float = 0.3) -> Tensor:
        return around + scale * torch.randn(shape, generator=generator)

    kv = hidden // HEADS * KV_HEADS
    ids = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
    known = torch.zeros(vocab, dtype=torch.bool)
    known[ids] = True
    tensors = {
        "fc.weight": random(hidden, taps * (target_hidden or hidden), scale=0.15),
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
    if settings.get("norm_before_fc"):
        tensors["input_norm.weight"] = random(taps * (target_hidden or hidden), around=1, scale=0.1)
    if settings.get("fc_norm"):
        for index in range(taps):
            tensors[f"fc_norm.{index}.weight"] = random(target_hidden or hidden, around=1, scale=0.1)
    if query_key_norms:
        for name in "qk":
            tensors[f"midlayer.self_attn.{name}_norm.weight"] = random(hidden // HEADS, around=1, scale=0.1)
    config: dict[str, Any] = {
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
    if speculators:
        config = _of_speculators(config, "qwen3" if query_key_norms else "llama", settings)
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        tensors["verifier_lm_head.weight"] = random(draft_vocab, hidden)
        tensors["verifier_norm.weight"] = random(hidden)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _of_speculators(config: dict[str, Any], kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    own = ("draft_vocab_size", "target_hidden_size", *settings)
    layer = {name: value for name, value in config.items() if name not in own}
    return {
        **{name: config[name] for name in own if name in config},
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculator_model",
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/model"}},
        "norm_before_residual": settings.get("norm_before_residual", False),
        "transformer_layer_config": layer | {"model_type": kind},
    }


class PlainEagle3:
    """The head by its definition, one whole sequence at a time."""

    def __init__(self, directory: Path) -> None:
        stored = load_file(directory / "model.safetensors")
        self.weights = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in stored.items()}
        self.target_ids = torch.arange(len(self.weights["d2t"])) + self.weights["d2t"]
        config = json.loads((directory / "config.json").read_text())
        self._norm_output = config.get("norm_output", False)
        self._norm_before_residual = config.get("norm_before_residual", False)

    def fuse(self, tapped: Tensor) -> Tensor:
        """[n, taps * hidden] -> [n, hidden]."""
        if "input_norm.weight" in self.weights:
            tapped = self._norm("input_norm", tapped)
        if "fc_norm.0.weight" in self.weights:
            count = tapped.shape[1] // len(self.weights["fc_norm.0.weight"])
            parts = enumerate(tapped.chunk(count, dim=1))
            tapped = torch.cat([self._norm(f"fc_norm.{index}", part) for index, part in parts], dim=1)
        return tapped @ self.weights["fc.weight"].T

    def states(self, embedded: Tensor, before: Tensor) -> Tensor:
        """The outputs [n, hidden] of a chain of rows at positions from 0 on."""
        return self.finished(self.first_layer(embedded, before))

    def finished(self, rows: Tensor) -> Tensor:
        return self._norm("norm", rows) if self._norm_output else rows

    def first_layer(self, embedded: Tensor, before: Tensor, window: int | None = None) -> Tensor:
        inputs = torch.cat((self._norm("midlayer.input_layernorm", embedded), before), dim=-1)
        width = before.shape[1]
        inputs[:, width:] = self._norm("midlayer.hidden_norm", before)
        residual = inputs[:, width:] if self._norm_before_residual else before
        return self.layer("midlayer", inputs, residual, window)

    def layer(self, layer: str, inputs: Tensor, residual: Tensor, window: int | None = None) -> Tensor:
        """The output [n, hidden] of a layer whose rows see those of `inputs`, the last `window` at most."""
        size = residual.shape[1] // HEADS
        queries, keys, values = (
            self._linear(f"{layer}.self_attn.{name}_proj", inputs).view(len(inputs), -1, size)
            for name in "qkv"
        )
        if f"{layer}.self_attn.q_norm.weight" in self.weights:
            queries = self._norm(f"{layer}.self_attn.q_norm", queries)
            keys = self._norm(f"{layer}.self_attn.k_norm", keys)
        queries, keys = rotated(queries), rotated(keys)
        attended = torch.zeros(len(inputs), HEADS, size)
        for row in range(len(inputs)):
            seen = slice(0 if window is None else max(row + 1 - window, 0), row + 1)
            for head in range(HEADS):
                of_group = head // (HEADS // KV_HEADS)
                scores = keys[seen, of_group] @ queries[row, head] / size**0.5
                attended[row, head] = torch.softmax(scores, dim=0) @ values[seen, of_group]
        hidden = residual + self._linear(f"{layer}.self_attn.o_proj", attended.flatten(1))
        normed = self._norm(f"{layer}.post_attention_layernorm", hidden)
        gate = torch.nn.functional.silu(self._linear(f"{layer}.mlp.gate_proj", normed))
        return hidden + self._linear(
            f"{layer}.mlp.down_proj", gate * self._linear(f"{layer}.mlp.up_proj", normed)
        )

    def log_probs(self, states: Tensor) -> Tensor:
        """[n, draft_vocab]."""
        normed = states if self._norm_output else self._norm("norm", states)
        return torch.log_softmax(self._linear("lm_head", normed), dim=-1)

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
