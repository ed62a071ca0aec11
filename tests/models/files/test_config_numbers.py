"""Configs with values that would keep a device busy, fill its memory or break a library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import zeros

from flowedge.core.errors import CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.check.inspection import inspect_checkpoint
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids
from tests.models.conftest import edit_config
from tests.models.tiny_families import make_tiny

WRONG: list[tuple[str, Any]] = [
    ("num_hidden_layers", 300_000_000),
    ("num_hidden_layers", "4"),
    ("num_hidden_layers", 4.0),
    ("num_hidden_layers", True),
    ("num_hidden_layers", None),
    ("num_hidden_layers", [4]),
    ("num_hidden_layers", 10**400),
    ("vocab_size", -1),
    ("hidden_size", 0),
    ("num_attention_heads", 0),
    ("num_key_value_heads", 0),
    ("num_key_value_heads", {}),
    ("head_dim", 0),
    ("max_position_embeddings", 1 << 62),
    ("rms_norm_eps", "tiny"),
    ("rms_norm_eps", 1e308),
    ("rope_theta", 0),
    ("rope_scaling", 5),
    ("rope_scaling", {"rope_type": "linear", "factor": 0}),
    ("rope_scaling", {"rope_type": ["linear"], "factor": 2}),
    ("rope_parameters", {"rope_type": "longrope", "short_factor": [0.0], "long_factor": "x"}),
    ("layer_types", "full_attention"),
    ("layer_types", [1, 2, 3, 4]),
    ("tie_word_embeddings", "yes"),
    ("eos_token_id", "2"),
    ("eos_token_id", [[2]]),
    ("eos_token_id", 2.5),
    ("hidden_act", 3),
]


def test_a_wrong_value_is_refused_by_file_and_field(copy: Path) -> None:
    right = (copy / "config.json").read_text()
    for field, value in WRONG:
        (copy / "config.json").write_text(right)
        edit_config(copy, **{field: value})
        with pytest.raises(CheckpointError, match=rf"config\.json: {field}"):
            Checkpoint.open(str(copy))


@pytest.mark.parametrize(
    "text",
    [
        '{"model_type": "llama", "a": ' + "[" * 100_000,
        '{"model_type": "llama", "a": ' + "[" * 60 + "]" * 60 + "}",
        '{"model_type": "llama", "rms_norm_eps": NaN}',
        '{"model_type": "llama", "vocab_size": Infinity}',
        '{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}",
        "\x00",
        '{"model_type": "llama"',
    ],
)
def test_what_is_no_json_of_a_config_is_refused(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.open(str(copy))


def test_rotary_positions_without_a_base_are_refused(copy: Path) -> None:
    edit_config(copy, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": None})
    with pytest.raises(CheckpointError, match=r"rotary positions|not valid"):
        LayerBlock.load(Checkpoint.open(str(copy)), 0, 1)


def test_more_layers_than_the_files_hold_are_not_looped_over(copy: Path) -> None:
    edit_config(copy, num_hidden_layers=4096)
    with pytest.raises(CheckpointError, match=r"asks for 4096 layers.*no tensor of layer 4"):
        inspect_checkpoint(Checkpoint.open(str(copy)), "float32", [])


def test_a_stack_of_experts_without_bytes_is_not_looped_over(tmp_path: Path) -> None:
    """A tensor of 300,000,000 experts of no rows takes no bytes in its file."""
    directory = make_tiny(tmp_path / "moe", "mixtral")
    save_file({"x": zeros(1)}, directory / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    header = {name: {"dtype": "F32", "shape": [300_000_000, 0, 4], "data_offsets": [0, 0]}}
    encoded = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded)
    checkpoint = Checkpoint.open(str(directory))
    assert checkpoint.names == [name]


def test_more_experts_a_token_than_there_are(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "moe", "mixtral")
    edit_config(directory, num_experts_per_tok=7)
    with pytest.raises(CheckpointError, match="num_experts_per_tok is 7, and there are 6 experts"):
        Checkpoint.open(str(directory))


@pytest.mark.parametrize("value", ['"x"', "[[1]]", "1.5", "true", "{}", "-2", "[" + "1," * 2000 + "1]"])
def test_end_tokens_that_are_none(copy: Path, value: str) -> None:
    (copy / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id"):
        eos_token_ids(Checkpoint.open(str(copy)))


def test_an_index_with_impossible_names(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    for value in ([1], None, "x" * 5000, 7, "", "."):
        (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": value}}))
        with pytest.raises(CheckpointError, match="index"):
            Checkpoint.open(str(copy))
