"""A checkpoint of random weights, of any size, written a shard at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import flowedge

BUNDLED = Path(flowedge.__file__).parent / "bundled" / "model"
VOCAB = 4096  # of the bundled tokenizer


def write_checkpoint(directory: Path, size: int, width: int = 512) -> None:
    """A LLaMA of at least 6 layers, of about `size` bytes in bfloat16, with the bundled tokenizer."""
    width = 2048 if size >= 1e9 else width
    layer = 2 * (4 * width * width + 12 * width * width)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=max(6, round(size / layer)),
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=512,
        dtype="bfloat16",
    )
    directory.mkdir()
    config.save_pretrained(directory)
    for path in BUNDLED.glob("tokenizer*"):
        shutil.copy(path, directory)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    shards: dict[str, dict[str, torch.Size]] = {}
    for name, parameter in model.named_parameters():
        index = name.split(".")[2] if ".layers." in name else "other"
        shards.setdefault(f"model-{index}.safetensors", {})[name] = parameter.shape
    generator = torch.Generator().manual_seed(7)
    for file, shapes in shards.items():
        tensors = {
            name: (torch.rand(shape, generator=generator) * 0.1 - 0.05).bfloat16()
            for name, shape in shapes.items()
        }
        save_file(tensors, directory / file, {"format": "pt"})
    weight_map = {name: file for file, shapes in shards.items() for name in shapes}
    index_file = directory / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
