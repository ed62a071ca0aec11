"""Small random LLaMA checkpoints, written by transformers' own save_pretrained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from flowedge.models.files.weight_file import OpenFile

VOCAB = 97

Make = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    with threads_of_torch(1):
        yield


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(directory: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """Replace tensors of a checkpoint; None removes a tensor."""
    tensors = {**load_file(directory / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, directory / "model.safetensors", {"format": "pt"})


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


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """A copy of `directory` that a test may change."""
    return Path(shutil.copytree(directory, tmp_path / "copy"))


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each reading of a weight file."""
    sizes: list[int] = []
    real = OpenFile.read_into

    def spy(file: OpenFile, tensor: torch.Tensor, offset: int) -> None:
        sizes.append(tensor.nbytes)
        real(file, tensor, offset)

    monkeypatch.setattr(OpenFile, "read_into", spy)
    return sizes
