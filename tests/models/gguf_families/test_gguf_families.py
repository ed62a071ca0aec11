"""A GGUF file of every architecture is the model that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from flowedge.core.errors import CheckpointError
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.families.parts import DeltaNet
from flowedge.models.gguf.gguf_model import GGUFModel
from flowedge.models.gguf_families.config import make_config
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.models.gguf_families.model_facts import ModelFacts
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import TINY, make_tiny
from tests.support.breadth import dealt
from tests.support.gguf_files import tiled, write_gguf

TOKENS = list(range(1, 40))
# What a file does not store follows the published models of the family.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"] * 4},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "qwen3_moe": {"mlp_only_layers": []},
    "gpt_oss": {"swiglu_limit": 7.0},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "lfm2": {"block_auto_adjust_ff_dim": False, "intermediate_size": 48},
    "nemotron_h": {"time_step_min": 1e-12},  # so that transformers limits no steps
    "nemotron_h-mlps": {"time_step_min": 1e-12},
}
NOT_STORED = (
    "glm4_moe_lite-yarn",
    "llama-dynamic",
    "qwen2-windows",
    "qwen3_next",
    "granitehybrid-attention",
    "gemma4_unified",
)
# One of each architecture of a file, and of each kind of positions that a file stores.
TESTED = {"llama-llama3", "llama-yarn", "qwen2", "qwen3", "gemma2", "gemma3", "phi3-longrope", "granite"}
TESTED |= {
    "smollm3",
    "mixtral",
    "ministral3",
    "qwen3_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "lfm2",
    "lfm2_moe",
    "glm4_moe_lite",
    "gpt_oss",
    "granitehybrid",
    "granitehybrid-experts",
    "nemotron_h",
    "nemotron_h-mlps",
}
TESTED |= {"gemma4", "gemma4-small", "gemma4-moe"}
CONFIG_NAMES = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
    "tie_word_embeddings",
    "sliding_window",
    "max_position_embeddings",
)


def tiny(directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint `name` of TINY as published models are."""
    model_type, changes = TINY[name]
    monkeypatch.setitem(TINY, name, (model_type, changes | PUBLISHED.get(name, {})))
    return make_tiny(directory, name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", dealt((name for name in TINY if name not in NOT_STORED), TESTED.__contains__)
)
def test_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    directory = tiny(tmp_path / "hf", name, monkeypatch)
    path = write_gguf(tmp_path / f"{name}.gguf", directory, tokenizer=None)
    ours, original = Checkpoint.open(str(path)), Checkpoint(directory)
    assert ours.names == original.names
    for tensor in original.names:
        values = original.tensor(tensor)
        if isinstance(original.architecture.recurrence, DeltaNet):
            values = torch.from_numpy(tiled(values.numpy(), tensor, original.config))
        assert torch.allclose(ours.tensor(tensor), values, atol=1e-6)
    for field in CONFIG_NAMES:
        if field not in (original.config.per_layer_attributes or ()):
            assert getattr(ours.config, field, None) == getattr(original.config, field, None), field
    assert ours.architecture.cached_heads(0, 4) == original.architecture.cached_heads(0, 4)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()(
            torch.tensor([TOKENS])
        )
        reference = ReferenceModel.load(ours).model(torch.tensor([TOKENS]))
    assert torch.allclose(reference.logits, expected.logits, atol=5e-5)
    assert torch.allclose(Pipeline(ours, 2).commit(TOKENS), expected.logits[0], atol=5e-5)


def test_published_llama3_scaling_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_type, changes = TINY["llama-llama3"]
    rope = changes["rope_parameters"] | {"factor": 8.0, "original_max_position_embeddings": 8192}
    published = {"rope_parameters": rope | {"rope_theta": 500000.0}, "head_dim": 64}
    monkeypatch.setitem(TINY, "llama-llama3", (model_type, published))
    directory = make_tiny(tmp_path / "hf", "llama-llama3")
    path = write_gguf(tmp_path / "x.gguf", directory, tokenizer=None)
    assert Checkpoint.open(str(path)).config.rope_parameters == Checkpoint(directory).config.rope_parameters


def test_windows_without_their_layers_are_refused(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "hf", "qwen2-windows")
    path = write_gguf(tmp_path / "x.gguf", directory, tokenizer=None)
    with pytest.raises(CheckpointError, match="sliding_window is 8, and the file does not say which layers"):
        Checkpoint.open(str(path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.sliding_window_pattern", [True] * 3, "sliding_window_pattern does not say for each of 4"),
        ("feed_forward_length", [48, 48, 48, 96], "feed_forward_length is not one width, doubled in layers"),
        ("attention.head_count_kv", [2, 2], "head_count_kv has 2 entries for 4 layers"),
        ("attention.value_length_swa", 8, "value_length_swa is not key_length_swa, which is 16"),
        ("rope.dimension_count", 8, "rope.dimension_count is 8 of the 32 values of a head"),
        ("attention.scale", 0.5, "gemma4.attention.scale is 0.5, which FlowEdge's layers"),
    ],
)
def test_a_gemma4_of_other_layers_is_refused(tmp_path: Path, key: str, value: Any, message: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", make_tiny(tmp_path / "hf", "gemma4-small"), tokenizer=None)
    found = GGUFModel([path])
    values = {**found.metadata.values, f"gemma4.{key}": value}
    shapes = {name: tensor.shape for name, tensor in found.tensors.items()}
    with pytest.raises(CheckpointError, match=message):
        make_config(ModelFacts(Metadata(values, "gemma4"), shapes, lambda _: [1.0] * 4 + [1e30] * 12))
    other = ModelFacts(found.metadata, shapes, lambda _: [1.0, 2.0] * 8)
    with pytest.raises(CheckpointError, match="is not 16 factors, first 1 and then 1e30"):
        make_config(other)


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_5",
        "qwen3_5_moe",
        "lfm2",
        "granitehybrid-experts",
        "nemotron_h",
        "gemma4-small",
        "gemma4-moe",
        "glm4_moe_lite",
    ],
)
def test_packed_weights_are_checked_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Integers stay in the order of the file, which is not transformers' order in recurrent layers."""
    path = write_gguf(tmp_path / "m.gguf", tiny(tmp_path / "hf", name, monkeypatch), "Q8_0", tokenizer=None)
    checkpoint = Checkpoint.open(str(path))
    with torch.inference_mode():
        expected = ReferenceModel.load(checkpoint).model(torch.tensor([TOKENS])).logits[0]
    found = Pipeline(checkpoint, 2).commit(TOKENS)
    assert float((found - expected).norm() / expected.norm()) < 1e-2
