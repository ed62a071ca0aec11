"""Experts that a checkpoint stores in MXFP4, against transformers' own dequantisation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from flowedge.agent.holding.stage_content import block_tensors
from flowedge.core.errors import CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.kernels.linear import KernelLinear
from tests.models.conftest import edit_config, edit_tensors
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import VOCAB, make_tiny
from tests.support.kernels import without_kernels

TEXT = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(2)).tolist()
STACK = "model.layers.1.mlp.experts.gate_up_proj"


def save_mxfp4(directory: Path) -> Path:
    """Save a gpt-oss whose experts are random numbers in MXFP4, as published models have them."""
    make_tiny(directory, "gpt_oss")
    generator, changes = torch.Generator().manual_seed(3), dict[str, torch.Tensor | None]()
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.endswith((".gate_up_proj", ".down_proj")):
            experts, columns, rows = tensor.shape
            shape = (experts, rows, columns // 32)
            changes[name] = None
            changes[f"{name}_blocks"] = torch.randint(256, (*shape, 16), generator=generator).byte()
            changes[f"{name}_scales"] = torch.randint(122, 126, shape, generator=generator).byte()
    edit_tensors(directory, changes)
    edit_config(directory, quantization_config={"quant_method": "mxfp4"})
    return directory


def test_weights_are_those_of_transformers(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(save_mxfp4(tmp_path)))
    stored = load_file(tmp_path / "model.safetensors")
    blocks, scales = stored[f"{STACK}_blocks"], stored[f"{STACK}_scales"]
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [experts, columns, rows]
    for part, turn in (("gate_proj", 0), ("up_proj", 1)):
        name = f"model.layers.1.mlp.experts.4.{part}.weight"
        wanted = expected[4].t()[turn::2]
        assert torch.equal(checkpoint.tensor(name), wanted)
        assert torch.equal(checkpoint.rows(name, 3, 9), wanted[3:9])
        assert checkpoint.shape(name) == tuple(wanted.shape)
        assert checkpoint.block_type(name) == "MXFP4"


@pytest.mark.parametrize("quant", ["none", "int4"])
def test_blocks_equal_the_whole_model(tmp_path: Path, quant: str) -> None:
    checkpoint = Checkpoint.open(str(save_mxfp4(tmp_path)))
    with torch.inference_mode():
        expected = ReferenceModel.load(checkpoint, quant).model(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(Pipeline(checkpoint, 2, quant=quant).commit(TEXT), expected, atol=5e-5, rtol=0)


def test_the_kernels_multiply_with_what_is_stored(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(save_mxfp4(tmp_path)))
    packed = LayerBlock.load(checkpoint, 1, 2)
    expert = packed.layers[0].get_submodule("mlp.experts.0.up_proj")
    assert isinstance(expert, KernelLinear)
    assert LayerBlock.required_bytes(checkpoint, 1, 2) == packed.weight_bytes
    with without_kernels():
        plain = LayerBlock.load(checkpoint, 1, 2)
    assert plain.weight_bytes > packed.weight_bytes + 6 * 3 * 32 * 32 * 3, (
        "bytes of float32, but one a weight"
    )


def test_a_stage_needs_the_exponents_too(tmp_path: Path) -> None:
    names = block_tensors(Checkpoint.open(str(save_mxfp4(tmp_path))), 1, 2)
    assert {f"{STACK}_blocks", f"{STACK}_scales", f"{STACK}_bias"} <= set(names)


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    directory = save_mxfp4(tmp_path)
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    edit_tensors(directory, {f"{STACK}_scales": torch.zeros((6, 63, 1), dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match=f"{STACK}_blocks: blocks of MXFP4 of shape .* have exponents"):
        Checkpoint.open(str(directory)).tensor(name)
    edit_tensors(directory, {f"{STACK}_scales": None})
    with pytest.raises(CheckpointError, match=f"tensor {STACK}_scales is missing"):
        Checkpoint.open(str(directory)).tensor(name)
