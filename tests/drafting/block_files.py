"""Random block heads in their published layouts, and their computation without a cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

HEADS, KV_HEADS, HEAD_SIZE, INNER, THETA, EPS = 4, 2, 8, 48, 10000.0, 1e-5
MASK, SIZE = 3, 5
CONVOLVED, GROUP, SELECTOR_RANK, CANDIDATES = 3, 8, 6, 4  # of DFlash2; published are 2, 16, 256 and 16
DFLASH2 = {
    "conv_kernel_size": CONVOLVED,
    "conv_group_size": GROUP,
    "selector_rank": SELECTOR_RANK,
    "selector_top_k": CANDIDATES,
}
DFLASH_IDS = [0, 2]  # of layers whose outputs are read
TAPS = (1, 3)


def save_block_head(
    directory: Path,
    kind: str = "dflash",
    *,
    hidden: int,
    vocab: int,
    layers: int = 2,
    draft_vocab: int | None = None,
    seed: int = 0,
    windows: bool = False,
    **settings: Any,
) -> Path:
    """Save a head and return its directory.

    Args:
        kind: "dflash", "dflash2", "jetspec" or "dspark"; with "speculators-" before it, that layout.
        draft_vocab: in the layout of speculators, the tokens of a vocabulary of its own.
        windows: whether the first layer sees four positions alone.
        settings: further ones of config.json.
    """
    generator = torch.Generator().manual_seed(seed)
    spoken, kind = kind.startswith("speculators-"), kind.removeprefix("speculators-")

    def random(*shape: int, around: float = 0.0, scale: float = 0.3) -> Tensor:
        return around + scale * torch.randn(shape, generator=generator)

    tensors = {
        "fc.weight": random(hidden, len(TAPS) * hidden, scale=0.15),
        "hidden_norm.weight": random(hidden, around=1, scale=0.1),
        "norm.weight": random(hidden, around=1, scale=0.1),
    }
    for index in range(layers):
        own = {
            "input_layernorm": random(hidden, around=1, scale=0.1),
            "post_attention_layernorm": random(hidden, around=1, scale=0.1),
            "self_attn.q_proj": random(HEADS * HEAD_SIZE, hidden),
            "self_attn.k_proj": random(KV_HEADS * HEAD_SIZE, hidden),
            "self_attn.v_proj": random(KV_HEADS * HEAD_SIZE, hidden),
            "self_attn.o_proj": random(hidden, HEADS * HEAD_SIZE),
            "self_attn.q_norm": random(HEAD_SIZE, around=1, scale=0.1),
            "self_attn.k_norm": random(HEAD_SIZE, around=1, scale=0.1),
            "mlp.gate_proj": random(INNER, hidden),
            "mlp.up_proj": random(INNER, hidden),
            "mlp.down_proj": random(hidden, INNER),
        }
        tensors |= {f"layers.{index}.{name}.weight": tensor for name, tensor in own.items()}
    if kind == "dflash2":
        tensors |= _of_dflash2(hidden, vocab, layers, random)
    types = ["full_attention"] * layers
    if windows:
        types[0] = "sliding_attention"
    layer = {
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 512,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": vocab,
        "layer_types": [
            "sliding_attention" if windows and not i else "full_attention" for i in range(layers)
        ],
        **({"sliding_window": 4, "use_sliding_window": True} if windows else {}),
    }
    if kind == "dspark":
        tensors["markov_head.markov_w1.weight"] = random(vocab, 6)
        tensors["markov_head.markov_w2.weight"] = random(vocab, 6)
        tensors["confidence_head.proj.weight"] = random(1, hidden + 6)
        tensors["confidence_head.proj.bias"] = random(1)
        tensors["embed_tokens.weight"] = random(vocab, hidden)
        tensors["lm_head.weight"] = random(vocab, hidden)
    config: dict[str, Any] = {"block_size": SIZE, "mask_token_id": MASK}
    if spoken and kind == "dflash2":
        config |= DFLASH2 | {"draft_vocab_size": vocab}
    if spoken:
        config |= {
            "architectures": ["DFlash2DraftModel" if kind == "dflash2" else "DFlashSpeculator"],
            "speculators_model_type": kind,
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": list(TAPS),
        }
        tensors["embed_tokens.weight"] = random(vocab, hidden)
        tensors["lm_head.weight"] = random(draft_vocab or vocab, hidden)
        tensors["verifier_lm_head.weight"] = random(draft_vocab or vocab, hidden)
        tensors["verifier_norm.weight"] = random(hidden)
        if draft_vocab is not None:
            ids = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
            known = torch.zeros(vocab, dtype=torch.bool)
            known[ids] = True
            tensors |= {"d2t": ids - torch.arange(draft_vocab), "t2d": known}
            config["draft_vocab_size"] = draft_vocab
    elif kind == "dspark":
        config |= layer | {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": DFLASH_IDS}
    else:
        config |= layer | {
            "architectures": ["DFlash2DraftModel" if kind == "dflash2" else "DFlashDraftModel"]
        }
        own_settings = {"target_layer_ids": DFLASH_IDS, "mask_token_id": config.pop("mask_token_id")}
        if kind == "dflash2":
            own_settings |= DFLASH2 | {"block_size": config.pop("block_size")}
        config["dflash_config"] = own_settings | ({"causal_head": True} if kind == "jetspec" else {})
    if kind == "dspark":
        markov = {"markov_rank": 6, "markov_head_type": "vanilla", "enable_confidence_head": True}
        config |= markov
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config | settings))
    return directory


def _of_dflash2(hidden: int, vocab: int, layers: int, random: Callable[..., Tensor]) -> dict[str, Tensor]:
    """What a head of DFlash2 has beside the tensors of DFlash."""
    name = "candidate_selector"
    tensors = {
        f"{name}.hidden_projection.weight": random(SELECTOR_RANK, hidden),
        f"{name}.predecessor_codebook": random(vocab, SELECTOR_RANK, scale=1),
        f"{name}.successor_codebook": random(vocab, SELECTOR_RANK, scale=1),
    }
    for layer in range(layers):
        for part in ("attention", "mlp"):
            name = f"layers.{layer}.{part}_conv"
            tensors[f"{name}.base_kernel"] = random(2, CONVOLVED, hidden, around=0.5)
            tensors[f"{name}.kernel_projection.weight"] = random(
                2 * CONVOLVED * hidden // GROUP, hidden, scale=0.1
            )
    return tensors


class PlainBlocks:
    """A head by its definition, a block over a whole text at a time."""

    def __init__(self, directory: Path, embedding: Tensor, lm_head: Tensor) -> None:
        """Take the target's embedding and LM head, [vocab, hidden] each."""
        self.weights = load_file(directory / "model.safetensors")
        config = json.loads((directory / "config.json").read_text())
        own = config.get("dflash_config", {})
        self.layer = config.get("transformer_layer_config", config)
        self.causal = own.get("causal_head", config.get("is_causal"))
        by_default = config.get("speculators_model_type") == "dflash2"
        self.non_causal_windows = config.get("sliding_window_non_causal", by_default)
        self.scale = config.get("input_embedding_scale", 1)
        is_dspark = config["architectures"] == ["Qwen3DSparkModel"]
        self.shifted = config.get("sample_from_anchor", is_dspark)
        self.embedding = self.weights.get("embed_tokens.weight", embedding)
        self.lm_head = self.weights.get("lm_head.weight", lm_head)
        offsets = self.weights.get("d2t")
        self.target_ids = torch.arange(len(self.lm_head))
        if offsets is not None:
            self.target_ids = self.target_ids + offsets

        self.passes = [0]  # tokens of paths behind which there is a block
        if self.causal and not self.shifted:
            self.passes = list(range(0, SIZE, config.get("pass_depths", SIZE - 1)))

    @property
    def depths(self) -> int:
        """The depths that are predicted, by the block behind the text or behind a path."""
        return self.passes[-1] + (SIZE if self.shifted else SIZE - 1)

    def log_probs(self, tapped: Tensor, tokens: list[int], path: list[int]) -> Tensor:
        """The log-probabilities [columns] below a path of draft tokens, behind the text.

        Args:
            tapped: [n, taps * hidden] of the rows before the last token.
            tokens: the n tokens behind the text's first.
        """
        weights, width, last = self.weights, self.embedding.shape[1], tokens[-1]
        text = self._norm("hidden_norm", tapped @ weights["fc.weight"].T)
        count = len(text)
        given = path[: max(each for each in self.passes if each <= len(path))]
        size = len(given) + SIZE
        rows = self.scale * self.embedding[torch.tensor([last, *given] + [MASK] * (SIZE - 1))]
        positions = torch.arange(count + size)
        for index, kind in enumerate(self.layer["layer_types"]):
            name = f"layers.{index}"
            normed = self._norm(f"{name}.input_layernorm", rows)
            normed, kernels = self._before(f"{name}.attention_conv", normed)
            seen = torch.cat((text, normed))
            q = self._heads(f"{name}.self_attn.q", normed, positions[count:], HEADS)
            k = self._heads(f"{name}.self_attn.k", seen, positions, KV_HEADS)
            v = (seen @ weights[f"{name}.self_attn.v_proj.weight"].T).view(-1, KV_HEADS, HEAD_SIZE)
            k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_SIZE**0.5
            hidden = ~self._seen(kind, count, size)
            attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -1e30).softmax(-1), v)
            projected = attended.reshape(size, -1) @ weights[f"{name}.self_attn.o_proj.weight"].T
            rows = rows + self._behind(f"{name}.attention_conv", projected, kernels)
            normed = self._norm(f"{name}.post_attention_layernorm", rows)
            normed, kernels = self._before(f"{name}.mlp_conv", normed)
            gate, up, down = (weights[f"{name}.mlp.{each}_proj.weight"].T for each in ("gate", "up", "down"))
            computed = (functional.silu(normed @ gate) * (normed @ up)) @ down
            rows = rows + self._behind(f"{name}.mlp_conv", computed, kernels)
        state = self._norm("norm", rows)[len(path) + (0 if self.shifted else 1)]
        assert state.shape == (width,)
        logits = self.lm_head @ state
        before = (path or [last])[-1]
        if "candidate_selector.hidden_projection.weight" in weights:
            return self._selected(logits, state, before)
        if "markov_head.markov_w1.weight" in weights:
            logits = (
                logits
                + weights["markov_head.markov_w2.weight"] @ weights["markov_head.markov_w1.weight"][before]
            )
        return logits.log_softmax(-1)

    def _selected(self, logits: Tensor, state: Tensor, before: int) -> Tensor:
        """The candidates share the probability that they have together by the scores of the selector."""
        name = "candidate_selector"
        log_probs = logits.log_softmax(-1)
        chosen = logits.argsort(descending=True)[:CANDIDATES]
        gate = self.weights[f"{name}.hidden_projection.weight"] @ state
        context = self.weights[f"{name}.predecessor_codebook"][before] * gate
        scores = (
            logits[chosen] + self.weights[f"{name}.successor_codebook"][self.target_ids[chosen]] @ context
        )
        log_probs[chosen] = scores.log_softmax(-1) + log_probs[chosen].logsumexp(-1)
        return log_probs

    def _before(self, name: str, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows [block, hidden] before a part, convolved, and the kernels of the second convolution."""
        projection = self.weights.get(f"{name}.kernel_projection.weight")
        if projection is None:
            return rows, None
        added = (rows @ projection.T).view(SIZE, 2, CONVOLVED, -1)
        return self._convolved(name, rows, added, 0), added

    def _behind(self, name: str, rows: Tensor, added: Tensor | None) -> Tensor:
        return rows if added is None else self._convolved(name, rows, added, 1)

    def _convolved(self, name: str, rows: Tensor, added: Tensor, side: int) -> Tensor:
        found = torch.zeros_like(rows)
        for row in range(SIZE):
            for back in range(min(CONVOLVED, row + 1)):
                kernel = self.weights[f"{name}.base_kernel"][side, back]
                kernel = kernel + added[row, side, back].repeat_interleave(GROUP)
                found[row] += kernel * rows[row - back]
        return found

    def _seen(self, kind: str, count: int, size: int) -> Tensor:
        """bool [block, text + block]."""
        keys, rows = torch.arange(count + size)[None], torch.arange(count, count + size)[:, None]
        sliding = kind == "sliding_attention"
        causal = self.causal
        if causal is None:
            causal = sliding and not self.non_causal_windows
        seen = (keys <= rows) | (not causal)
        return seen & (keys > rows - self.layer["sliding_window"]) if sliding else seen

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        normed = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + EPS)
        return normed * self.weights[f"{name}.weight"]

    def _heads(self, name: str, rows: Tensor, positions: Tensor, count: int) -> Tensor:
        """Normed and rotated heads [n, count, head size]."""
        heads = (rows @ self.weights[f"{name}_proj.weight"].T).view(-1, count, HEAD_SIZE)
        heads = self._norm(f"{name}_norm", heads)
        angles = positions[:, None] * THETA ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        cos, sin = (torch.cat((each, each), dim=1)[:, None] for each in (angles.cos(), angles.sin()))
        first, second = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-second, first), dim=-1) * sin
