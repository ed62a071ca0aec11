"""Checkpoints with the shapes of SmolLM2, random weights, fewer layers and the bundled tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from flowedge.drafting.loading import BUNDLED_PATH
from flowedge.models.checkpoint.model_source import TOKENIZER_FILES

_BUNDLED = BUNDLED_PATH / "model"
# What config.json of each published model says, and transformers' defaults do not.
_WIDTHS = {  # hidden, MLP, heads, key-value heads
    "135M": (576, 1536, 9, 3),
    "360M": (960, 2560, 15, 5),
}
_SHARED: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.041666666666666664,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "use_cache": True,
}
_TEMPLATE = """
{%- if messages[0]['role'] != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def make_smollm2(directory: Path, size: str, *, layers: int = 2) -> Path:
    """Write a checkpoint of the size "135M" or "360M" in bfloat16, and return its directory."""
    for pattern in TOKENIZER_FILES:
        for file in _BUNDLED.glob(pattern):
            shutil.copy(file, directory / file.name)
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    vocab_size = json.loads((_BUNDLED / "config.json").read_text())["vocab_size"]
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    shape = dict(zip(names, _WIDTHS[size], strict=True))
    shape |= {"num_hidden_layers": layers, "vocab_size": vocab_size}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape, **_SHARED)).to(torch.bfloat16)
    model.save_pretrained(directory)
    _save_as_published(directory)
    published = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(published | shape | _SHARED, indent=2))
    return directory


def _save_as_published(directory: Path) -> None:
    """Write the weights anew: the published file has no tensor of the LM head, which is the embedding."""
    file = directory / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name != "lm_head.weight"}
    save_file(tensors, file, metadata={"format": "pt"})
