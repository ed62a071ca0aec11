"""The int4 product against a plain product with the dequantised weight, for every kernel of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.hardware import UNPACKED_WEIGHTS, Hardware
from flowedge.models.quant.int4 import GROUPS, Int4, Int4Linear, padded_shape
from flowedge.models.quant.int4_kernels import CUDA, NEON, UNPACKED, X86, Int4Kernel, kernel_of
from flowedge.models.quant.quantize import module_bytes, quantize_linear
from tests.models.conftest import threads_of_torch
from tests.models.pipeline import Pipeline

# torch's CPU operators take float32 on x86 as well, slowly, so that NEON's dtypes run here.
ON_THIS_CPU = [X86, NEON, UNPACKED]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int4_multiplies_with_the_weights_it_stores(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape in ((96, 128), (128, 96), (33, 50), (5, 64), (200, 320)):
        monkeypatch.setattr("flowedge.models.quant.backend.CHUNK_WEIGHTS", 4000)
        torch.manual_seed(0)
        out_features, in_features = shape
        linear = nn.Linear(in_features, out_features).to(dtype)
        stored = Int4().encode(WeightRows.of(linear.weight))
        low, high = stored["weight"] & 15, stored["weight"] >> 4
        levels = torch.stack((high, low), dim=2).view(len(low), -1).double() - 8
        _, width, group = padded_shape(out_features, in_features)
        scale, zero = (stored[name].double().repeat_interleave(group, 1) for name in ("scale", "zero"))
        weight = (levels * scale + zero)[:out_features, :in_features]
        error = (weight - linear.weight).abs()
        assert width >= in_features and bool(
            (error <= scale[:out_features, :in_features] * 0.51 + 1e-3).all()
        )
        rows = torch.randn(2, 9, in_features).to(dtype)
        with torch.inference_mode():
            got = quantize_linear(linear, "int4")(rows)
            expected = rows.bfloat16().double() @ weight.T + linear.bias.double()
        assert got.dtype == dtype and got.shape == (2, 9, out_features)
        torch.testing.assert_close(got.double(), expected, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("threads", [1, 2])
def test_int4_rows_are_the_same_alone_and_in_a_segment_of_any_size(threads: int) -> None:
    torch.manual_seed(0)
    layer = quantize_linear(nn.Linear(256, 160), "int4")
    rows = torch.randn(64, 256)
    with threads_of_torch(threads), torch.inference_mode():
        alone = torch.cat([layer(row[None]) for row in rows])
        for count in (2, 3, 5, 16, 17, 64):
            assert torch.equal(layer(rows[:count]), alone[:count])


def random_weight(out_features: int, in_features: int, group: int) -> Tensors:
    torch.manual_seed(out_features + in_features + group)
    out, width, _ = padded_shape(out_features, in_features, group)
    return {
        "weight": torch.randint(0, 256, (out, width // 2), dtype=torch.uint8),
        "scale": torch.rand(out, width // group).add(0.1).bfloat16(),
        "zero": torch.randn(out, width // group).bfloat16(),
    }


def dequantised(tensors: Tensors, out_features: int, in_features: int) -> torch.Tensor:
    levels = torch.stack((tensors["weight"] >> 4, tensors["weight"] & 15), dim=2).flatten(1).double() - 8
    group = levels.shape[1] // tensors["scale"].shape[1]
    scale, zero = (tensors[name].double().repeat_interleave(group, 1) for name in ("scale", "zero"))
    return (levels * scale + zero)[:out_features, :in_features]


def build(kernel: Int4Kernel, tensors: Tensors, like: nn.Linear) -> Int4Linear:
    layer = Int4(kernel).build(tensors, like, torch.float32, torch.device("cpu"))
    assert isinstance(layer, Int4Linear)
    return layer


@pytest.mark.parametrize("kernel", ON_THIS_CPU, ids=lambda kernel: kernel.name)
def test_every_kernel_multiplies_with_the_same_weights(
    kernel: Int4Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in GROUPS:
        monkeypatch.setitem(UNPACKED_WEIGHTS, "cpu", 4000)
        monkeypatch.setattr("flowedge.models.quant.int4_kernels._PACK_LEVELS", 30000)
        out_features, in_features = 150, 512
        tensors = random_weight(out_features, in_features, group)
        like = nn.Linear(in_features, out_features)
        layer = build(kernel, tensors, like)
        assert module_bytes(layer) == Int4().weight_bytes(out_features, in_features, group) + like.bias.nbytes
        rows = torch.randn(128, in_features)
        with torch.inference_mode():
            weight = dequantised(tensors, out_features, in_features)
            expected = rows.to(kernel.dtype).double() @ weight.T + like.bias.double()
            rounding = 1e-5 if kernel.dtype == torch.float32 else 2**-8
            for count in (1, 2, 3, 5, 16, 17, 64, 128):
                got = layer(rows[:count]).double()
                error = (got - expected[:count]).abs().max() / expected.abs().max()
                assert error < rounding, f"{count} rows"


@pytest.mark.parametrize("kernel", ON_THIS_CPU, ids=lambda kernel: kernel.name)
def test_no_row_changes_its_neighbours(kernel: Int4Kernel) -> None:
    layer = build(kernel, random_weight(64, 256, 64), nn.Linear(256, 64))
    rows = torch.randn(16, 256)
    other = rows.clone()
    other[3] = torch.inf
    with torch.inference_mode():
        before, after = layer(rows), layer(other)
        alone = torch.cat([layer(row[None]) for row in rows])
    assert torch.equal(before[:3], after[:3]) and torch.equal(before[4:], after[4:])
    atol = 1e-3 if kernel is UNPACKED else 0.0  # a float32 product of many rows adds up in another order
    torch.testing.assert_close(alone, before, atol=atol, rtol=0.0)


KERNELS: list[tuple[Hardware, Int4Kernel]] = [
    (Hardware("x86_64", "AVX512"), X86),
    (Hardware("x86_64", "AVX2"), X86),
    (Hardware("x86_64", "DEFAULT"), UNPACKED),
    (Hardware("aarch64", "DEFAULT"), NEON),
    (Hardware("aarch64", "SVE256"), NEON),
    (Hardware("arm64", "DEFAULT"), NEON),
    (Hardware("ARM64", "DEFAULT"), NEON),
    (Hardware("armv7l", "DEFAULT"), UNPACKED),
    (Hardware("riscv64", "DEFAULT"), UNPACKED),
    (Hardware("aarch64", "DEFAULT", (8, 7)), CUDA),
    (Hardware("x86_64", "AVX512", (9, 0)), CUDA),
    (Hardware("aarch64", "DEFAULT", (7, 2)), UNPACKED),
]


def test_all_hardware_has_a_kernel() -> None:
    for hardware, kernel in KERNELS:
        assert kernel_of(hardware) is kernel


def test_a_cpu_without_vector_instructions_gives_the_same_model(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, text = Checkpoint.open(str(directory)), [1, 2, 3, 5, 8, 13]
    usual = Pipeline(checkpoint, 2, quant="int4").commit(text)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    slow = Pipeline(checkpoint, 2, quant="int4")
    assert slow.blocks[0].weight_bytes == Pipeline(checkpoint, 2, quant="int4").blocks[0].weight_bytes
    torch.testing.assert_close(slow.commit(text), usual, atol=0.1, rtol=1e-3)


UNFIT: list[Tensors] = [
    {"weight": torch.zeros(96, 63, dtype=torch.uint8)},
    {"weight": torch.zeros(80, 64, dtype=torch.uint8)},
    {"weight": torch.zeros(96, 64, dtype=torch.int8)},
    {"scale": torch.zeros(96, 3), "zero": torch.zeros(96, 3)},
    {"scale": torch.zeros(96, 8), "zero": torch.zeros(96, 8)},
    {"scale": torch.zeros(96, 0), "zero": torch.zeros(96, 0)},
    {"zero": torch.zeros(96, 1)},
    {"scale": torch.zeros(96, 2, dtype=torch.int32)},
]


def test_tensors_that_do_not_fit_the_layer_are_refused() -> None:
    for changes in UNFIT:
        tensors = random_weight(96, 128, 64) | changes
        with pytest.raises(CheckpointError, match="an int4 weight"):
            Int4().build(tensors, nn.Linear(128, 96), torch.float32, torch.device("cpu"))
