"""Tensors that do not fit a layout are refused by name: a checkpoint is untrusted data."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flowedge.core.errors import CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from tests.models.conftest import Make, edit_tensors
from tests.support.integer_checkpoints import LAYOUTS, write_integer_checkpoint

UP = "model.layers.0.mlp.up_proj."  # 256 x 128


@pytest.fixture(scope="module")
def plain(make_checkpoint: Make) -> Path:
    return make_checkpoint(hidden_size=128, intermediate_size=256, num_hidden_layers=1)


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


CASES: list[tuple[str, str, torch.Tensor | None, str]] = [
    ("gptq", "qweight", ints(32, 256), r"scales a row for 256 weights, and the config says groups of 128"),
    ("gptq", "qweight", ints(16, 128), r"tensor .*scales is \[1, 256\]"),
    ("gptq", "qweight", torch.zeros(16, 256), r"tensor .*qweight is .* of torch.float32"),
    ("gptq", "qweight", ints(16, 256, 1), r"tensor .*qweight is \[16, 256, 1\]"),
    ("gptq", "qzeros", ints(1, 31), r"tensor .*qzeros is \[1, 31\]"),
    ("gptq", "qzeros", None, r"tensor .*qzeros is missing"),
    ("gptq", "scales", torch.zeros(2, 256).half(), r"tensor .*qzeros is \[1, 32\]"),
    ("gptq", "scales", ints(1, 256), r"tensor .*scales is .* of torch.int32"),
    (
        "gptq-asymmetric",
        "g_idx",
        torch.arange(128).int() % 4,
        r"order of columns \(desc_act\) that the config",
    ),
    ("gptq-asymmetric", "g_idx", ints(127), r"tensor .*g_idx is \[127\]"),
    ("gptq-desc_act", "g_idx", None, r"tensor .*g_idx is missing"),
    ("w4a16-actorder", "weight_g_idx", None, r"tensor .*weight_g_idx is missing"),
    ("gptq-desc_act", "g_idx", ints(128), r"does not give 32 input features to every group"),
    ("gptq-desc_act", "g_idx", torch.arange(128).int() % 5, r"does not give 32 input features"),
    ("gptq-desc_act", "g_idx", torch.arange(128).int() % 4 - 1, r"does not give 32 input features"),
    ("awq", "qweight", ints(128, 31), r"tensor .*scales is \[2, 256\]"),
    ("awq", "qweight", ints(127, 32), r"scales a row for 127 weights"),
    ("awq", "qzeros", ints(2, 31), r"tensor .*qzeros is \[2, 31\]"),
    ("w4a16", "weight_packed", ints(256, 17), r"holds 136 weights a row, and there are scales for 128"),
    ("w4a16", "weight_shape", torch.tensor([256, 127]), r"says \[256, 127\], and the packed weight"),
    ("w4a16", "weight_shape", torch.tensor([256]), r"tensor .*weight_shape is \[1\]"),
    ("w4a16", "weight_scale", torch.zeros(255, 4), r"tensor .*weight_scale is \[255, 4\]"),
    ("w4a16-asymmetric", "weight_zero_point", ints(31, 4), r"tensor .*weight_zero_point is \[31, 4\]"),
    ("w4a16-asymmetric", "weight_zero_point", None, r"weight_zero_point is missing"),
    (
        "w4a16-asymmetric",
        "weight_zero_point",
        torch.full((256, 4), 8, dtype=torch.int8),
        r"weight_zero_point has a value that 4 bits cannot hold",
    ),
    ("w8a16-int", "weight", torch.zeros(256, 127, dtype=torch.int8), r"stored as \[256, 127\]"),
    ("w8a16-int", "weight", torch.zeros(256, 128), r"tensor .*weight is .* of torch.float32"),
    ("gptq-8", "qzeros", ints(2, 64), r"zero points other than the middle level"),
]


@pytest.mark.parametrize(("layout", "part", "value", "message"), CASES)
def test_tensors_that_do_not_fit_are_refused(
    plain: Path, tmp_path: Path, layout: str, part: str, value: torch.Tensor | None, message: str
) -> None:
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS[layout])
    stored = load_file(tmp_path / "stored" / "model.safetensors")
    assert UP + part in stored or layout == "w4a16-asymmetric"
    edit_tensors(tmp_path / "stored", {UP + part: value})
    with pytest.raises(CheckpointError, match=message) as raised:
        LayerBlock.load(Checkpoint.open(str(tmp_path / "stored")), 0, 1)
    assert str(tmp_path) in str(raised.value) and "up_proj" in str(raised.value)


def test_zero_points_that_are_not_packed(plain: Path, tmp_path: Path) -> None:
    """Early versions of compressed-tensors stored zero points as int8."""
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["w4a16-asymmetric"])
    file = tmp_path / "stored" / "model.safetensors"
    expected = LayerBlock.load(Checkpoint.open(str(file.parent)), 0, 1).layers[0].get_submodule("mlp")
    words = load_file(file)[f"{UP}weight_zero_point"]
    places = torch.arange(8, dtype=torch.int32)[None, :, None] * 4
    plain_zeros = ((words[:, None] >> places) & 15).flatten(0, 1) - 8
    edit_tensors(file.parent, {f"{UP}weight_zero_point": plain_zeros.to(torch.int8).contiguous()})
    got = LayerBlock.load(Checkpoint.open(str(file.parent)), 0, 1).layers[0].get_submodule("mlp")
    for name, parameter in expected.named_parameters():
        assert torch.equal(parameter, got.get_parameter(name)), name


def test_damaged_headers_end_in_an_error_of_ours(plain: Path, tmp_path: Path) -> None:
    """Sizes, types and offsets of the file's header, changed at random."""
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["gptq-desc_act"])
    file = tmp_path / "stored" / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    generator = random.Random(0)
    refused = 0
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(8, 8 + length)] = generator.choice(b'0123456789[]{}",:IFU')
        file.write_bytes(changed)
        try:
            LayerBlock.load(Checkpoint.open(str(file.parent)), 0, 1)
        except CheckpointError:
            refused += 1
    assert refused > 75
