"""The product with int8 weights against a plain product with the dequantised weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.hardware import UNPACKED_WEIGHTS, Hardware
from flowedge.models.quant.quantize import module_bytes, quantize_linear
from flowedge.models.quant.w8a16 import NEON, UNPACKED, W8A16, X86, Int8Kernel, W8A16Linear, kernel_of

OUT, IN = 150, 320


def random_weight(groups: int, scale_dtype: torch.dtype = torch.float16) -> Tensors:
    torch.manual_seed(groups)
    weight = torch.randint(-128, 128, (OUT, IN), dtype=torch.int8)
    return {"weight": weight, "scale": torch.rand(OUT, groups).add(0.1).to(scale_dtype)}


def dequantised(tensors: Tensors) -> torch.Tensor:
    scale = tensors["scale"].double()
    return tensors["weight"].double() * scale.repeat_interleave(IN // scale.shape[1], 1)


@pytest.mark.parametrize(
    ("kernel", "groups"), [(X86, 1), (NEON, 1), (UNPACKED, 1), (UNPACKED, 5), (UNPACKED, 10)]
)
def test_every_kernel_multiplies_with_the_stored_weights(
    kernel: Int8Kernel, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(UNPACKED_WEIGHTS, "cpu", 4000)
    tensors, like = random_weight(groups), nn.Linear(IN, OUT)
    layer = W8A16(kernel).build(tensors, like, torch.float32, torch.device("cpu"))
    assert (type(layer) is W8A16Linear) == (groups == 1), "exact rows are tested once for each type"
    announced = W8A16().weight_bytes(OUT, IN, IN // groups, torch.float16)
    assert module_bytes(layer) == announced + like.bias.nbytes
    rows = torch.randn(128, IN)
    with torch.inference_mode():
        expected = rows.to(kernel.dtype).double() @ dequantised(tensors).T + like.bias.double()
        allowed = 2**-8 if kernel.dtype == torch.bfloat16 else 1e-5
        alone = torch.cat([layer(row[None]) for row in rows])
        for count in (1, 2, 3, 5, 16, 17, 64, 128):
            got = layer(rows[:count])
            error = (got.double() - expected[:count]).abs().max() / expected.abs().max()
            assert error < allowed, f"{count} rows"
            if kernel is not UNPACKED:
                assert torch.equal(got, alone[:count]), f"{count} rows"


def test_no_row_changes_its_neighbours() -> None:
    layer = W8A16().build(random_weight(5), nn.Linear(IN, OUT), torch.float32, torch.device("cpu"))
    rows = torch.randn(16, IN)
    other = rows.clone()
    other[3] = torch.inf
    with torch.inference_mode():
        before, after = layer(rows), layer(other)
    assert torch.equal(before[:3], after[:3]) and torch.equal(before[4:], after[4:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_rounded_to_the_nearest_integer(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowedge.models.quant.backend.CHUNK_WEIGHTS", 4000)
    linear = nn.Linear(IN, OUT).to(dtype)
    linear.weight.data[7] = 0
    stored = W8A16().encode(WeightRows.of(linear.weight))
    error = (dequantised(stored) - linear.weight.double()).abs()
    assert bool((error <= stored["scale"].double() * 0.5001).all()) and not bool(stored["weight"][7].any())
    assert int(stored["weight"].abs().amax(1)[0]) == 127
    rows = torch.randn(2, 9, IN).to(dtype)
    with torch.inference_mode():
        got = quantize_linear(linear, "w8a16")(rows)
        expected = rows.bfloat16().double() @ dequantised(stored).T + linear.bias.double()
    assert got.dtype == dtype and got.shape == (2, 9, OUT)
    torch.testing.assert_close(got.double(), expected, atol=0.02, rtol=0.01)


def test_all_hardware_has_a_kernel() -> None:
    assert kernel_of(Hardware("x86_64", "AVX2"), 1) is X86
    assert kernel_of(Hardware("aarch64", "DEFAULT"), 1) is NEON
    for hardware in (Hardware("riscv64", "DEFAULT"), Hardware("aarch64", "DEFAULT", (8, 7))):
        assert kernel_of(hardware, 1) is UNPACKED
    for hardware in (Hardware("x86_64", "AVX2"), Hardware("aarch64", "DEFAULT")):
        assert kernel_of(hardware, 4) is UNPACKED


UNFIT: list[Tensors] = [
    {"weight": torch.zeros(OUT, IN - 1, dtype=torch.int8)},
    {"weight": torch.zeros(OUT, IN, dtype=torch.uint8)},
    {"scale": torch.zeros(OUT)},
    {"scale": torch.zeros(OUT - 1, 1)},
    {"scale": torch.zeros(OUT, 0)},
    {"scale": torch.zeros(OUT, 3)},
    {"scale": torch.zeros(OUT, 1, dtype=torch.int32)},
]


def test_tensors_that_do_not_fit_the_layer_are_refused() -> None:
    for changes in UNFIT:
        with pytest.raises(CheckpointError, match="a w8a16 weight"):
            W8A16().build(random_weight(1) | changes, nn.Linear(IN, OUT), torch.float32, torch.device("cpu"))
