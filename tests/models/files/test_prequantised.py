"""Checkpoints that transformers saved quantised by bitsandbytes load as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    LlamaForCausalLM,
)

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.quantize import quantize_block
from tests.models.conftest import Make, edit_config, edit_tensors
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import make_multimodal, make_tiny

TEXT = torch.randint(0, 97, (24,), generator=torch.Generator().manual_seed(4)).tolist()
SETTINGS: dict[str, dict[str, Any]] = {
    "llm-int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "nf4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
}
# int8 rounds activations, and its bitsandbytes product is not the same for every number of rows.
TOLERANCE = {"llm-int8": 0.3}


@pytest.fixture(scope="module")
def original(make_checkpoint: Make) -> Path:
    return make_checkpoint(num_hidden_layers=2, attention_bias=True)


def quantised(original: Path, directory: Path, **settings: Any) -> Path:
    """The checkpoint as transformers writes it when it was quantised as it was read."""
    model = LlamaForCausalLM.from_pretrained(
        original, quantization_config=BitsAndBytesConfig(**settings), device_map="cpu", dtype=torch.float32
    )
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("quant", SETTINGS)
def test_blocks_equal_the_model_that_was_saved(original: Path, tmp_path: Path, quant: str) -> None:
    checkpoint = Checkpoint.open(str(quantised(original, tmp_path / quant, **SETTINGS[quant])))
    assert checkpoint.quant == quant
    with torch.inference_mode():
        # Of the checkpoint before it was quantised, so that what is stored is not held against itself.
        model = LlamaForCausalLM.from_pretrained(original, dtype=torch.float32).eval()
        quantize_block(model.model.layers, quant)
        expected = model(torch.tensor([TEXT])).logits[0]
        reference = ReferenceModel.load(checkpoint).model(torch.tensor([TEXT])).logits[0]
    for asked in ("none", quant):
        got = Pipeline(checkpoint, 2, quant=asked).commit(TEXT)
        atol = TOLERANCE.get(quant, 1e-4)
        torch.testing.assert_close(got, expected, atol=atol, rtol=1e-3)
        torch.testing.assert_close(got, reference, atol=atol, rtol=1e-3)


@pytest.mark.parametrize("quant", SETTINGS)
def test_bytes_are_those_announced(original: Path, tmp_path: Path, quant: str) -> None:
    checkpoint = Checkpoint.open(str(quantised(original, tmp_path / quant, **SETTINGS[quant])))
    block = LayerBlock.load(checkpoint, 0, 2)
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 2)
    plain = Checkpoint.open(str(original))
    assert block.weight_bytes == LayerBlock.required_bytes(plain, 0, 2, quant=quant)


def test_layers_that_were_left_out_stay_as_they_are(original: Path, tmp_path: Path) -> None:
    directory = quantised(
        original, tmp_path / "partly", **SETTINGS["nf4"], llm_int8_skip_modules=["q_proj", "lm_head"]
    )
    checkpoint = Checkpoint.open(str(directory))
    block = LayerBlock.load(checkpoint, 0, 2)
    attention = block.layers[0].get_submodule("self_attn")
    assert type(attention.q_proj) is torch.nn.Linear
    assert type(attention.k_proj).__name__ == "Linear4bit"
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 2)
    with torch.inference_mode():
        expected = ReferenceModel.load(checkpoint).model(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(Pipeline(checkpoint, 2).commit(TEXT), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("name", "quant"), [("mixtral", "nf4"), ("phi3", "llm-int8"), ("gemma3", "nf4-dq")])
def test_families_that_name_or_stack_their_tensors_otherwise(tmp_path: Path, name: str, quant: str) -> None:
    """Weights that transformers does not quantise, as stacks of experts, stay as they are."""
    auto, plain = AutoModelForCausalLM, tmp_path / "plain"
    if name == "gemma3":
        auto = AutoModelForImageTextToText
        make_multimodal(plain)
    else:
        make_tiny(plain, name)
    settings = BitsAndBytesConfig(**SETTINGS[quant])
    model = auto.from_pretrained(plain, quantization_config=settings, device_map="cpu", dtype=torch.float32)
    model.save_pretrained(tmp_path / "quantised")
    checkpoint = Checkpoint.open(str(tmp_path / "quantised"))
    assert checkpoint.quant == quant
    block = LayerBlock.load(checkpoint, 0, 4)
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 4)
    assert block.weight_bytes < LayerBlock.required_bytes(Checkpoint.open(str(plain)), 0, 4)
    with torch.inference_mode():
        expected = ReferenceModel.load(checkpoint).model(torch.tensor([TEXT])).logits[0]
    got = Pipeline(checkpoint, 2).commit(TEXT)
    torch.testing.assert_close(got, expected, atol=TOLERANCE.get(quant, 1e-4), rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "part"), [("glm4_moe_lite", "kv_b_proj"), ("granitehybrid", "input_linear")]
)
def test_a_quantised_matrix_that_blocks_divide_is_refused_by_name(
    tmp_path: Path, family: str, part: str
) -> None:
    make_tiny(tmp_path / "plain", family)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=BitsAndBytesConfig(**SETTINGS["nf4"]), device_map="cpu"
    )
    model.save_pretrained(tmp_path / "quantised")
    said = (
        rf"{part}\.weight is quantised in nf4 as one matrix, .* give the original checkpoint and .*quant nf4"
    )
    with pytest.raises(CheckpointError, match=said):
        Checkpoint.open(str(tmp_path / "quantised"))


def test_another_quantisation_is_refused(original: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(quantised(original, tmp_path / "nf4", **SETTINGS["nf4"])))
    for asked in ("int8", "fp4", "nf4-dq", "int4"):
        with pytest.raises(BadRequestError, match=f"quantised in nf4 already, so .* in {asked}"):
            LayerBlock.load(checkpoint, 0, 1, quant=asked)
        with pytest.raises(BadRequestError, match="quantised in nf4 already"):
            LayerBlock.required_bytes(checkpoint, 0, 1, quant=asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gptq", "bits": 2}, "quantised by GPTQ with weights of 2 bits, which is not supp"),
        ({"quant_method": "awq"}, "quantised by AWQ, and its setting w_bit is None"),
        ({"quant_method": "hqq"}, "quantised by hqq, which is not supported"),
        ({"quant_method": "fp8"}, "quantised by fp8"),
        ({}, "quantised by an unnamed method"),
        ({"quant_method": "bitsandbytes"}, "neither of 8 bits nor of 4"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int5"}, "'int5' is not one of nf4, fp4"),
        ("nf4", "is not a JSON object"),
    ],
)
def test_other_methods_are_refused_by_name(copy: Path, settings: Any, message: str) -> None:
    edit_config(copy, quantization_config=settings)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(str(copy))


def state(**changes: Any) -> torch.Tensor:
    content = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [128, 64]} | changes
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


UP = "model.layers.0.mlp.up_proj.weight"
STATE = f"{UP}.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (UP, torch.zeros(10, 1, dtype=torch.uint8)),
        (f"{UP}.absmax", torch.zeros(3)),
        (f"{UP}.absmax", torch.zeros(128, dtype=torch.uint8)),
        (f"{UP}.quant_map", torch.zeros(15)),
        (STATE, state(shape=[64, 128])),
        (STATE, state(shape=[128])),
        (STATE, state(blocksize=48)),
        (STATE, state(quant_type="fp4")),
        (STATE, state(nested_blocksize=256)),
        (STATE, torch.zeros(9, dtype=torch.uint8)),
        (STATE, None),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(
    original: Path, tmp_path: Path, name: str, value: torch.Tensor | None
) -> None:
    directory = quantised(original, tmp_path / "nf4", **SETTINGS["nf4"])
    assert name in load_file(directory / "model.safetensors")
    edit_tensors(directory, {name: value})
    with pytest.raises(CheckpointError, match=r"up_proj\.weight"):
        LayerBlock.load(Checkpoint.open(str(directory)), 0, 1)
