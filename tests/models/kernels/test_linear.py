"""Products by the kernels: right, and with the same bits for a row beside any other rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flowedge.device.kernel_builds import Build
from flowedge.models.kernels.linear import KernelLinear, float_linear
from flowedge.models.kernels.packing import packed, packed_int4, packed_int8, packed_scales
from flowedge.models.kernels.structures import INT4, INT5, INT6, INT8
from tests.models.conftest import threads_of_torch
from tests.support.kernels import RUNNING, kernels_of

STORED = ("int4 of GGUF", "int5", "int5 with zeros", "int6", "int8 of GGUF")  # with scales in float16
FORMATS = ("float32", "bfloat16", "int8", "int4", *STORED)
ROWS = 70  # more than the rows of a block that a cache holds would be too slow for all combinations


@pytest.fixture(params=RUNNING, ids=lambda build: build.name)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    with kernels_of(request.param, monkeypatch):
        yield request.param


def linear_of(kind: str, out: int, width: int, group: int = 64) -> tuple[KernelLinear, torch.Tensor]:
    """A layer with random weights, and the weights that it has, in float64."""
    generator = torch.Generator().manual_seed(out * width)
    like = nn.Linear(width, out, device="meta")
    like.bias = nn.Parameter(torch.randn(out, generator=generator), requires_grad=False)
    weight = torch.randn((out, width), generator=generator) * 0.1
    if kind in ("float32", "bfloat16"):
        like.weight = nn.Parameter(weight.to(getattr(torch, kind)), requires_grad=False)
        return float_linear(like), like.weight.double()
    if kind in STORED:
        return stored_linear_of(kind, like, 16 if kind == "int6" else 32, generator)
    scale = (torch.rand((out, width // group), generator=generator) + 0.5).bfloat16()
    wide = scale.double().repeat_interleave(group, 1)
    if kind == "int8":
        levels = torch.randint(-127, 128, (out, width), generator=generator).to(torch.int8)
        weights = levels * wide
        packed = packed_int8(levels)  # in the memory of the levels
        return KernelLinear(like, packed, INT8, scales=packed_scales(scale), group=group), weights
    zero = torch.randn((out, width // group), generator=generator).bfloat16()
    nibbles = torch.randint(0, 256, (out, width // 2), generator=generator).to(torch.uint8)
    levels = torch.stack((nibbles >> 4, nibbles & 15), 2).view(out, width).double()
    weights = (levels - 8) * wide + zero.double().repeat_interleave(group, 1)
    scales = packed_scales(scale, zero)
    return KernelLinear(like, packed_int4(nibbles), INT4, scales=scales, group=group), weights


def stored_linear_of(
    kind: str, like: nn.Linear, group: int, generator: torch.Generator
) -> tuple[KernelLinear, torch.Tensor]:
    bits = int(kind[3])
    out, width = like.out_features, like.in_features
    levels = torch.randint(0, 1 << bits, (out, width), generator=generator).to(torch.uint8)
    parts = torch.rand((2 if "zeros" in kind else 1, out, width // group), generator=generator).half() + 0.5
    weights = (levels.double() - (1 << bits - 1)) * parts[0].double().repeat_interleave(group, 1)
    if len(parts) == 2:
        weights += parts[1].double().repeat_interleave(group, 1)
    format_ = {4: INT4, 5: INT5, 6: INT6, 8: INT8}[bits]
    scales = packed_scales(*parts)
    return KernelLinear(like, packed(levels, format_), format_, scales=scales, group=group), weights


@pytest.mark.parametrize("kind", ["int8", "int4", *STORED])
def test_rows_of_packed_weights_are_read(build: Build, kind: str) -> None:
    layer, weights = linear_of(kind, 37, 192)
    outputs = torch.tensor([36, 0, 15, 16, 16])
    assert torch.allclose(layer.unpacked_rows(outputs).double(), weights[outputs], rtol=1e-6)


def inputs(rows: int, width: int) -> torch.Tensor:
    return torch.randn((rows, width), generator=torch.Generator().manual_seed(rows))


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("kind", FORMATS)
def test_a_product_is_right(build: Build, kind: str) -> None:
    allowed = {"float32": 1e-6, "bfloat16": 4e-3}.get(kind, 1e-2)  # rows are rounded to 8 bits
    for out, width in ((64, 64), (37, 192), (1, 128), (130, 2112)):
        layer, weights = linear_of(kind, out, width)
        rows = inputs(19, width)
        right = rows.double() @ weights.T + layer.bias.double()
        assert relative_error(layer(rows), right) < allowed, (out, width)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_rows_of_floats_have_any_length(build: Build, kind: str) -> None:
    for width, count in ((1, 5), (7, 5), (33, 5), (250, 40)):
        layer, weights = linear_of(kind, 21, width)
        rows = inputs(count, width)
        right = rows.double() @ weights.T + layer.bias.double()
        assert relative_error(layer(rows), right) < 4e-3, width


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_groups_have_other_sizes(build: Build, kind: str) -> None:
    for group in (32, 128, 256):
        layer, weights = linear_of(kind, 40, 512, group)
        rows = inputs(14, 512)
        right = rows.double() @ weights.T + layer.bias.double()
        assert relative_error(layer(rows), right) < 1.5e-2, group


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_has_the_same_bits_beside_any_rows_and_with_any_threads(build: Build, kind: str) -> None:
    layer, _ = linear_of(kind, 133, 2112)
    rows = inputs(ROWS, 2112)
    together = layer(rows)
    assert torch.equal(layer(rows.roll(9, 0)).roll(-9, 0), together)
    for count in (1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 30, 33):  # tiles take 13 and more
        parts = torch.cat([layer(part) for part in rows.split(count)])
        assert torch.equal(parts, together), count
    for other in (2, 3, 5):
        with threads_of_torch(other):
            assert torch.equal(layer(rows), together), other


@pytest.mark.parametrize("kind", ["int8", "int4", *STORED])
def test_products_of_integers_have_the_same_bits_in_all_builds(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for each in RUNNING:
        with kernels_of(each, monkeypatch):
            layer, _ = linear_of(kind, 50, 256)
            results.append(layer(inputs(30, 256)))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_that_is_not_finite_stays_so_and_alone(build: Build, kind: str) -> None:
    layer, _ = linear_of(kind, 33, 128)
    rows = inputs(14, 128)
    healthy = layer(rows)
    for value in (float("nan"), float("inf")):
        rows[2, 77] = value
        found = layer(rows)
        assert not found[2].isfinite().any(), value
        others = torch.arange(len(rows)) != 2
        assert torch.equal(found[others], healthy[others]), value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_keep_their_dtype_and_shape(dtype: torch.dtype) -> None:
    layer, _ = linear_of("int8", 20, 64)
    found = layer(inputs(6, 64).to(dtype).view(2, 3, 64))
    assert found.shape == (2, 3, 20)
    assert found.dtype == dtype
    assert layer(torch.zeros((0, 64), dtype=dtype)).shape == (0, 20)


def test_rows_of_zeros_have_the_bias() -> None:
    layer, _ = linear_of("int4", 20, 64)
    assert torch.equal(layer(torch.zeros((1, 64)))[0], layer.bias)
