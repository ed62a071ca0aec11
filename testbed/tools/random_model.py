"""Write a checkpoint of the shape of LLaMA2-7B, or of Qwen 3 with experts, with random weights.

The tokenizer is the bundled model's.

A model of this size shows times and memory; its text means nothing. Run: python -m testbed.tools.random_model
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from flowedge.models.checkpoint.checkpoint import Checkpoint

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
SCALE = 0.02  # standard deviation of the weights


def shapes(config: PretrainedConfig) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield the name, the shape and the shard of each tensor: a shard a layer, and one for the rest."""
    hidden, rest = config.hidden_size, config.num_hidden_layers
    key_values = int(config.num_key_value_heads or 0) * (hidden // config.num_attention_heads)
    experts = getattr(config, "num_experts", 0)
    mlps = [f"mlp.experts.{expert}." for expert in range(experts)] or ["mlp."]
    inner = config.moe_intermediate_size if experts else config.intermediate_size
    yield "model.embed_tokens.weight", (config.vocab_size, hidden), rest
    yield "lm_head.weight", (config.vocab_size, hidden), rest
    yield "model.norm.weight", (hidden,), rest
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        yield f"{prefix}input_layernorm.weight", (hidden,), layer
        yield f"{prefix}post_attention_layernorm.weight", (hidden,), layer
        for name, out in (("q", hidden), ("k", key_values), ("v", key_values), ("o", hidden)):
            yield f"{prefix}self_attn.{name}_proj.weight", (out, hidden), layer
        if experts:
            yield f"{prefix}mlp.gate.weight", (experts, hidden), layer
            for name in ("q_norm", "k_norm"):
                yield f"{prefix}self_attn.{name}.weight", (hidden // config.num_attention_heads,), layer
        for mlp in mlps:
            yield f"{prefix}{mlp}gate_proj.weight", (inner, hidden), layer
            yield f"{prefix}{mlp}up_proj.weight", (inner, hidden), layer
            yield f"{prefix}{mlp}down_proj.weight", (hidden, inner), layer


def write_model(directory: Path, config: PretrainedConfig, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config, tokenizer and weights, of which one shard is in memory at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    bundled = Checkpoint.open("bundled").directory
    for name in TOKENIZER:
        shutil.copy(bundled / name, directory / name)
    config.save_pretrained(directory)
    generator = torch.Generator().manual_seed(0)
    shards: dict[int, dict[str, torch.Tensor]] = {}
    files: dict[str, str] = {}
    tensors = list(shapes(config))
    for place, (name, shape, shard) in enumerate(tensors):
        values = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * SCALE
        shards.setdefault(shard, {})[name] = values.to(dtype)
        files[name] = f"model-{shard:05d}.safetensors"
        if place + 1 == len(tensors) or tensors[place + 1][2] != shard:
            save_file(shards.pop(shard), directory / files[name], metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.random_model", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=11008)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument(
        "--experts", type=int, default=0, help="of a layer; --intermediate is the width of each"
    )
    parser.add_argument("--chosen", type=int, default=8, help="experts of a row")
    options = parser.parse_args()
    bundled = Checkpoint.open("bundled").config
    mixture = {
        "num_experts": options.experts,
        "num_experts_per_tok": options.chosen,
        "moe_intermediate_size": options.intermediate,
        "head_dim": options.hidden // options.heads,
    }
    kind, changes = (Qwen3MoeConfig, mixture) if options.experts else (LlamaConfig, {})
    config = kind(
        vocab_size=bundled.vocab_size,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        max_position_embeddings=4096,
        bos_token_id=bundled.bos_token_id,
        eos_token_id=bundled.eos_token_id,
        pad_token_id=bundled.pad_token_id,
        tie_word_embeddings=False,
        **changes,
    )
    write_model(options.out, config)


if __name__ == "__main__":
    main()
