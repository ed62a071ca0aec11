"""Activations whose elements have the same bits anywhere, and norms with the bits of transformers'."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from flowedge.models.row_functions import Activate, RmsNorm, norm_call
from tests.support.kernels import whole_vectors


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("activation", [functional.silu, functional.gelu])
def test_rows_do_not_depend_on_where_they_are(threads: int, activation: Activate) -> None:
    for width in (24, 64, 1000, 11008):
        activate = whole_vectors(activation)
        rows = torch.randn((40, width), generator=torch.Generator().manual_seed(1))
        expected = activate(rows)
        torch.testing.assert_close(expected, activation(rows))
        for first, stop in [(0, 1), (3, 8), (5, 21), (39, 40)]:
            assert torch.equal(activate(rows[first:stop].clone()), expected[first:stop])


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_norm_has_the_bits_of_transformers(dtype: torch.dtype, plus_one: bool) -> None:
    rows = torch.randn((3, 64), generator=torch.Generator().manual_seed(1)).to(dtype) * 5
    ours = RmsNorm(64, 1e-5, plus_one=plus_one).to(dtype)
    theirs = (Gemma3RMSNorm if plus_one else LlamaRMSNorm)(64, eps=1e-5).to(dtype)
    for norm in (ours, theirs):
        norm.weight.data = torch.linspace(0.1, 3, 64, dtype=dtype)
    with torch.inference_mode():
        assert torch.equal(ours(rows), theirs(rows))
        torch.testing.assert_close(norm_call(ours)(rows.clone()), theirs(rows))
