"""A random P-EAGLE head in its published layouts, and its computation without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.drafting.block_files import MASK, TAPS
from tests.drafting.eagle3_files import HEADS, INNER, KV_HEADS, PlainEagle3, save_eagle3_head

DEPTHS = 4


def save_parallel_head(
    directory: Path,
    *,
    hidden: int,
    vocab: int,
    draft_vocab: int = 25,
    layers: int = 3,
    mask_name: str = "ptd_token_id",
    speculators: bool = False,
    windows: bool = False,
    query_key_norms: bool = False,
    **settings: Any,
) -> Path:
    """Save a head that predicts DEPTHS tokens, and return its directory.

    Args:
        mask_name: the setting that has the mask token.
        speculators: whether the files are in the layout of speculators, which names the setting itself.
        windows: whether the first layer sees four positions alone.
        settings: of config.json, those of norms among them.
    """
    named = {"eagle_aux_hidden_state_layer_ids": list(TAPS)}
    save_eagle3_head(
        directory,
        hidden=hidden,
        vocab=vocab,
        draft_vocab=draft_vocab,
        own_embedding=True,
        taps=len(TAPS),
        query_key_norms=query_key_norms,
        speculators=speculators,
        **named,
        **settings,
    )
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int, around: float = 0.0, scale: float = 0.3) -> Tensor:
        return around + scale * torch.randn(shape, generator=generator)

    tensors, kv = load_file(directory / "model.safetensors"), hidden // HEADS * KV_HEADS
    for layer in range(1, layers):
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (INNER, hidden),
            "mlp.up_proj": (INNER, hidden),
            "mlp.down_proj": (hidden, INNER),
        }
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if query_key_norms:
            norms |= {f"self_attn.{name}_norm": hidden // HEADS for name in "qk"}
        for name, shape in shapes.items():
            tensors[f"layers.{layer}.{name}.weight"] = random(*shape)
        for name, width in norms.items():
            tensors[f"layers.{layer}.{name}.weight"] = random(width, around=1, scale=0.1)
    width = len(TAPS) * hidden
    tensors["mask_hidden"] = random(1, 1, width, scale=1) if speculators else random(1, width, scale=1)
    save_file(tensors, directory / "model.safetensors")
    path = directory / "config.json"
    config = json.loads(path.read_text())
    of_layers = config["transformer_layer_config"] if speculators else config
    of_layers["num_hidden_layers"] = layers
    if windows:
        types = ["sliding_attention", *["full_attention"] * (layers - 1)]
        of_layers |= {"layer_types": types, "sliding_window": 4, "use_sliding_window": True}
    if speculators:
        methods = [{"proposal_type": "greedy", "speculative_tokens": DEPTHS}]
        config |= {
            "architectures": ["PEagleSpeculator"],
            "speculators_model_type": "peagle",
            "mask_token_id": MASK,
            "speculators_config": {"algorithm": "peagle", "proposal_methods": methods},
        }
    else:
        config |= {mask_name: MASK, "num_depths": DEPTHS}
    path.write_text(json.dumps(config))
    return directory


class PlainParallel(PlainEagle3):
    """A head by its definition, one whole chain of the text's rows and mask tokens at a time."""

    depths = DEPTHS

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        config = json.loads((directory / "config.json").read_text())
        of_layers = config.get("transformer_layer_config", config)
        types = of_layers.get("layer_types", ["full_attention"] * of_layers["num_hidden_layers"])
        self._windows = [4 if each == "sliding_attention" else None for each in types]

    def log_probs_below(self, tapped: Tensor, tokens: list[int], path: list[int]) -> Tensor:
        """The log-probabilities [draft_vocab] below a path of draft tokens; arguments as of PlainBlocks."""
        masks = len(path)
        embedded = self.weights["embed_tokens.weight"][torch.tensor(tokens + [MASK] * masks)]
        mask = self.weights["mask_hidden"].view(1, -1).expand(masks, -1)
        rows = self.first_layer(embedded, self.fuse(torch.cat((tapped, mask))), self._windows[0])
        for layer, window in enumerate(self._windows[1:], start=1):
            name = f"layers.{layer}"
            rows = self.layer(name, self._norm(f"{name}.input_layernorm", rows), rows, window)
        return self.log_probs(self.finished(rows)[-1:])[0]
