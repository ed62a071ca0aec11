"""Small random LLaMA checkpoints, written by transformers' own save_pretrained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 97

Make = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """make_checkpoint(max_shard_size=..., **config) -> directory."""

    def make(max_shard_size: str = "1GB", seed: int = 0, **changes: Any) -> Path:
        settings: dict[str, Any] = {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.15,
            "tie_word_embeddings": False,
        }
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # transformers starts them at 0 and 1
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.1)
        directory = tmp_path_factory.mktemp("checkpoint")
        model.save_pretrained(directory, max_shard_size=max_shard_size)
        return directory

    return make


@pytest.fixture(scope="session")
def directory(make_checkpoint: Make) -> Path:
    """An untied, single-file checkpoint with grouped-query attention."""
    return make_checkpoint()
