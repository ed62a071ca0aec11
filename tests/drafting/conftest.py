"""Small random language models that have the bundled model's tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import flowedge
from flowedge.drafting.drafter import Drafter

BUNDLED_MODEL = Path(flowedge.__file__).parent / "bundled" / "model"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def save_small_lm(directory: Path, seed: int = 0, **changes: Any) -> Path:
    """A random Llama of two narrow layers, saved by transformers, with the bundled tokenizer beside it."""
    settings: dict[str, Any] = {
        "vocab_size": 4096,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**(settings | changes))).save_pretrained(directory)
    for name in TOKENIZER:
        shutil.copy(BUNDLED_MODEL / name, directory / name)
    return directory


@pytest.fixture(scope="session")
def small_lm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """small_lm(seed=.., **config) -> directory."""

    def make(**changes: Any) -> Path:
        return save_small_lm(tmp_path_factory.mktemp("small"), **changes)

    return make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Drafter]]:
    """How drafters of every kind are made, by name; see `makers`."""
    from tests.drafting.made_drafters import makers  # which imports this module

    torch.set_num_threads(1)
    return makers(tmp_path_factory.mktemp("drafters"))
