"""Checkpoints with a random layer that predicts further tokens, and its computation without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from tests.models.conftest import edit_config, edit_tensors
from tests.models.tiny_families import make_multimodal, make_tiny


def make_mtp(directory: Path, family: str = "qwen3_5", *, multimodal: bool = False, **saving: Any) -> Path:
    """Save the tiny checkpoint of a family (see TINY) with such a layer; return its directory."""
    if multimodal:
        make_multimodal(directory, family)
    else:
        make_tiny(directory, family, **saving)
    return add_mtp(directory, stacked=family == "qwen3_5_moe")


def add_mtp(directory: Path, *, stacked: bool = False, seed: int = 3) -> Path:
    """Add such a layer to a checkpoint in one file.

    stacked: whether the experts' weights are stored as two stacks, as in Qwen 3.5, or each by itself.
    """
    config = text_config(directory)
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 0.3) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    if "kv_lora_rank" in config:
        edit_tensors(directory, _behind_layers(directory, config, random))
        edit_config(directory, num_nextn_predict_layers=1)
        return directory
    hidden, size = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = {
        "fc": random(hidden, 2 * hidden),
        "pre_fc_norm_embedding": random(hidden),
        "pre_fc_norm_hidden": random(hidden),
        "norm": random(hidden),
        "layers.0.input_layernorm": random(hidden),
        "layers.0.post_attention_layernorm": random(hidden),
        "layers.0.self_attn.q_proj": random(2 * heads * size, hidden),
        "layers.0.self_attn.k_proj": random(kv_heads * size, hidden),
        "layers.0.self_attn.v_proj": random(kv_heads * size, hidden),
        "layers.0.self_attn.o_proj": random(hidden, heads * size),
        "layers.0.self_attn.q_norm": random(size),
        "layers.0.self_attn.k_norm": random(size),
    }
    named = {f"mtp.{name}.weight": tensor for name, tensor in tensors.items()}
    edit_tensors(directory, named | _mlp(config, random, stacked=stacked))
    edit_config(directory, mtp_num_hidden_layers=1)
    return directory


def _behind_layers(directory: Path, config: dict[str, Any], random: Any) -> dict[str, Tensor]:
    """The layer of a GLM-4.7-Flash, with the names and the copies of its published files."""
    hidden, inner, heads = (
        config[name] for name in ("hidden_size", "moe_intermediate_size", "num_attention_heads")
    )
    rank, query_rank, rotated = (config[name] for name in ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"))
    plain, value, count = (config[name] for name in ("qk_nope_head_dim", "v_head_dim", "n_routed_experts"))
    weights = {
        "eh_proj": random(hidden, 2 * hidden),
        "enorm": 1 + random(hidden),
        "hnorm": 1 + random(hidden),
        "shared_head.norm": 1 + random(hidden),
        "input_layernorm": 1 + random(hidden),
        "post_attention_layernorm": 1 + random(hidden),
        "self_attn.q_a_proj": random(query_rank, hidden),
        "self_attn.q_a_layernorm": 1 + random(query_rank),
        "self_attn.q_b_proj": random(heads * (plain + rotated), query_rank),
        "self_attn.kv_a_proj_with_mqa": random(rank + rotated, hidden),
        "self_attn.kv_a_layernorm": 1 + random(rank),
        "self_attn.kv_b_proj": random(heads * (plain + value), rank),
        "self_attn.o_proj": random(hidden, heads * value),
        "mlp.gate": random(count, hidden, scale=1.0),
    }
    own = [f"mlp.experts.{expert}" for expert in range(count)]
    for each, width in (*((name, inner) for name in own), ("mlp.shared_experts", inner)):
        weights |= {
            f"{each}.gate_proj": random(width, hidden),
            f"{each}.up_proj": random(width, hidden),
            f"{each}.down_proj": random(hidden, width),
        }
    tensors = {f"{name}.weight": tensor for name, tensor in weights.items()}
    tensors["mlp.gate.e_score_correction_bias"] = random(count, scale=1.0)
    if config["attention_bias"]:
        tensors["self_attn.q_a_proj.bias"] = random(query_rank)
        tensors["self_attn.kv_a_proj_with_mqa.bias"] = random(rank + rotated)
        tensors["self_attn.o_proj.bias"] = random(hidden)
    target = load_file(directory / "model.safetensors")
    tensors["embed_tokens.weight"] = target["model.embed_tokens.weight"].clone()
    tensors["shared_head.head.weight"] = target["lm_head.weight"].clone()
    return {f"model.layers.{config['num_hidden_layers']}.{name}": each for name, each in tensors.items()}


def _mlp(config: dict[str, Any], random: Any, *, stacked: bool) -> dict[str, Tensor]:
    hidden, before = config["hidden_size"], "mtp.layers.0.mlp."
    if "num_experts" not in config:
        inner = config["intermediate_size"]
        return {
            f"{before}gate_proj.weight": random(inner, hidden),
            f"{before}up_proj.weight": random(inner, hidden),
            f"{before}down_proj.weight": random(hidden, inner),
        }
    count, inner, shared = (
        config[name] for name in ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")
    )
    gates, downs = random(count, 2 * inner, hidden), random(count, hidden, inner)
    found = {
        f"{before}gate.weight": random(count, hidden, scale=1.0),
        f"{before}shared_expert_gate.weight": random(1, hidden),
        f"{before}shared_expert.gate_proj.weight": random(shared, hidden),
        f"{before}shared_expert.up_proj.weight": random(shared, hidden),
        f"{before}shared_expert.down_proj.weight": random(hidden, shared),
    }
    if stacked:
        return found | {f"{before}experts.gate_up_proj": gates, f"{before}experts.down_proj": downs}
    for expert in range(count):
        own = f"{before}experts.{expert}."
        found[f"{own}gate_proj.weight"] = gates[expert, :inner].clone()
        found[f"{own}up_proj.weight"] = gates[expert, inner:].clone()
        found[f"{own}down_proj.weight"] = downs[expert].clone()
    return found


def text_config(directory: Path) -> dict[str, Any]:
    """The config of a checkpoint's decoder."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    found: dict[str, Any] = config.get("text_config", config)
    return found


class PlainMtp:
    """The layer by its definition, one whole sequence at a time, in float32."""

    def __init__(self, directory: Path) -> None:
        self.config = text_config(directory)
        tensors = load_file(directory / "model.safetensors")
        self.weights = {
            name.removeprefix("mtp."): tensor.float()
            for name, tensor in tensors.items()
            if name.startswith("mtp.")
        }
        self._embedding = next(each for name, each in tensors.items() if name.endswith("embed_tokens.weight"))
        self._lm_head = tensors.get("lm_head.weight", self._embedding)

    def states(self, tokens: Tensor, before: Tensor) -> Tensor:
        """The states [n, hidden] of a chain of rows at positions from 0 on.

        Args:
            tokens: int64 [n], the token after each row; before: [n, hidden], the state of each row.
        """
        embedded = self._norm("pre_fc_norm_embedding", self._embedding[tokens].float())
        rows = self._linear("fc", torch.cat((embedded, self._norm("pre_fc_norm_hidden", before)), dim=-1))
        rows = rows + self._attention(self._norm("layers.0.input_layernorm", rows))
        rows = rows + self._mlp(self._norm("layers.0.post_attention_layernorm", rows))
        return self._norm("norm", rows)

    def log_probs(self, states: Tensor) -> Tensor:
        """[n, vocab]."""
        return torch.log_softmax(states @ self._lm_head.float().T, dim=-1)

    def _attention(self, rows: Tensor) -> Tensor:
        config, size = self.config, self.config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        both = self._linear("layers.0.self_attn.q_proj", rows).view(-1, heads, 2, size)
        queries, gates = self._norm("layers.0.self_attn.q_norm", both[:, :, 0]), both[:, :, 1]
        keys = self._linear("layers.0.self_attn.k_proj", rows).view(-1, kv_heads, size)
        values = self._linear("layers.0.self_attn.v_proj", rows).view(-1, kv_heads, size)
        rope = config["rope_parameters"]
        queries, keys = (
            rotated(each, int(size * rope["partial_rotary_factor"]), rope["rope_theta"])
            for each in (queries, self._norm("layers.0.self_attn.k_norm", keys))
        )
        attended = torch.zeros(len(rows), heads, size)
        for row in range(len(rows)):
            for head in range(heads):
                of_group = head // (heads // kv_heads)
                scores = keys[: row + 1, of_group] @ queries[row, head] / size**0.5
                attended[row, head] = torch.softmax(scores, dim=0) @ values[: row + 1, of_group]
        return self._linear("layers.0.self_attn.o_proj", (attended * gates.sigmoid()).flatten(1))

    def _mlp(self, rows: Tensor) -> Tensor:
        before = "layers.0.mlp."
        if "num_experts" not in self.config:
            return self._gated(before, rows)
        likelihoods = torch.softmax(self._linear(f"{before}gate", rows), dim=-1)
        best = likelihoods.topk(self.config["num_experts_per_tok"], dim=-1)
        weights = best.values
        if self.config.get("norm_topk_prob", True):
            weights = weights / weights.sum(dim=-1, keepdim=True)
        share = self._linear(f"{before}shared_expert_gate", rows).sigmoid()
        output = share * self._gated(f"{before}shared_expert.", rows)
        for row in range(len(rows)):
            for weight, expert in zip(weights[row], best.indices[row].tolist(), strict=True):
                output[row] += weight * self._expert(expert, rows[row])
        return output

    def _expert(self, expert: int, row: Tensor) -> Tensor:
        before = "layers.0.mlp.experts."
        stacked = self.weights.get(f"{before}gate_up_proj")
        if stacked is None:
            return self._gated(f"{before}{expert}.", row)
        gate, up = (stacked[expert] @ row).chunk(2)
        return self.weights[f"{before}down_proj"][expert] @ (functional.silu(gate) * up)

    def _gated(self, before: str, rows: Tensor) -> Tensor:
        gate = functional.silu(self._linear(f"{before}gate_proj", rows))
        return self._linear(f"{before}down_proj", gate * self._linear(f"{before}up_proj", rows))

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return rows @ self.weights[f"{name}.weight"].T

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        eps = self.config["rms_norm_eps"]
        normed = rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt()
        return normed * (1 + self.weights[f"{name}.weight"])


class PlainLatentMtp(PlainMtp):
    """The layer behind those of a GLM-4.7-Flash, with keys and values of each head as in the paper."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        tensors = load_file(directory / "model.safetensors")
        before = f"model.layers.{self.config['num_hidden_layers']}."
        own = {
            "eh_proj.weight": "fc.weight",
            "enorm.weight": "pre_fc_norm_embedding.weight",
            "hnorm.weight": "pre_fc_norm_hidden.weight",
            "shared_head.norm.weight": "norm.weight",
        }
        names = [name for name in tensors if name.startswith(before)]
        self.weights = {
            own.get(name.removeprefix(before), f"layers.0.{name.removeprefix(before)}"): tensors[name].float()
            for name in names
        }

    def _attention(self, rows: Tensor) -> Tensor:
        config, before = self.config, "layers.0.self_attn."
        heads, rank, size = (
            config[name] for name in ("num_attention_heads", "kv_lora_rank", "qk_rope_head_dim")
        )
        plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
        compressed = self._norm(f"{before}q_a_layernorm", self._linear(f"{before}q_a_proj", rows), 1e-6)
        queries = self._linear(f"{before}q_b_proj", compressed).view(-1, heads, plain + size)
        latent = self._linear(f"{before}kv_a_proj_with_mqa", rows)
        normed = self._norm(f"{before}kv_a_layernorm", latent[:, :rank], 1e-6)
        both = self._linear(f"{before}kv_b_proj", normed).view(-1, heads, plain + value)
        theta = config["rope_parameters"]["rope_theta"]
        turned, turned_key = (
            rotated(_unpaired(each), size, theta) for each in (queries[..., plain:], latent[:, None, rank:])
        )
        queries = torch.cat((queries[..., :plain], turned), -1)
        keys = torch.cat((both[..., :plain], turned_key.expand(-1, heads, -1)), -1)
        scores = torch.einsum("ihd,jhd->hij", queries, keys) / (plain + size) ** 0.5
        seen = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return self._linear(
            f"{before}o_proj", torch.einsum("hij,jhd->ihd", weights, both[..., plain:]).flatten(1)
        )

    def _mlp(self, rows: Tensor) -> Tensor:
        before, config = "layers.0.mlp.", self.config
        scores = self._linear(f"{before}gate", rows).sigmoid()
        chosen = (scores + self.weights[f"{before}gate.e_score_correction_bias"]).topk(
            config["num_experts_per_tok"], dim=-1
        )
        weights = scores.gather(1, chosen.indices)
        if config["norm_topk_prob"]:
            weights = weights / weights.sum(-1, keepdim=True)
        output = self._gated(f"{before}shared_experts.", rows)
        for row in range(len(rows)):
            for weight, expert in zip(weights[row], chosen.indices[row].tolist(), strict=True):
                output[row] += weight * config["routed_scaling_factor"] * self._expert(expert, rows[row])
        return output

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return super()._linear(name, rows) + self.weights.get(f"{name}.bias", 0)

    def _norm(self, name: str, rows: Tensor, epsilon: float | None = None) -> Tensor:
        epsilon = self.config["rms_norm_eps"] if epsilon is None else epsilon
        normed = rows * (rows.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        return normed * self.weights[f"{name}.weight"]


def plain_mtp(directory: Path) -> PlainMtp:
    """The layer of a checkpoint by its definition."""
    return (PlainLatentMtp if "kv_lora_rank" in text_config(directory) else PlainMtp)(directory)


def _unpaired(rows: Tensor) -> Tensor:
    """Rows [..., size], whose pairs that an angle turns lie side by side, with pairs half a row apart."""
    return torch.cat((rows[..., ::2], rows[..., 1::2]), -1)


def rotated(rows: Tensor, size: int, theta: float) -> Tensor:
    """[n, heads, head size], row n at position n, whose first `size` values rotate in two halves."""
    half = size // 2
    angles = torch.arange(len(rows))[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high, still = rows[..., :half], rows[..., half:size], rows[..., size:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin, still), dim=-1)
