"""Our attention against transformers' own, and against the claim that it copies no keys and values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as attention_with_sinks

from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.masked import attend_masked, attend_packed

HEADS, KV_HEADS, SIZE, ROWS, CONTEXT = 8, 2, 16, 16, 1516


def inputs(heads: int = HEADS, rows: int = ROWS) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    kv = torch.randn(2, 1, KV_HEADS, 2048, SIZE, generator=generator)[:, :, :, :CONTEXT]
    mask = torch.zeros(1, 1, 64, 2048)[:, :, :rows, :CONTEXT]
    mask[..., -rows:] = torch.finfo(torch.float32).min
    mask[..., -rows:].diagonal(dim1=-2, dim2=-1).zero_()
    return {
        "query": torch.randn(1, heads, rows, SIZE, generator=generator),
        "key": kv[0],
        "value": kv[1],
        "attention_mask": mask,
    }


def allocated(call: Any) -> int:
    """Bytes allocated during a call, those freed again included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    events = run.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0)


@pytest.mark.parametrize("heads", [KV_HEADS, HEADS])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_it_equals_transformers_sdpa(heads: int, rows: int) -> None:
    values = inputs(heads, rows)
    module: Any = SimpleNamespace(num_key_value_groups=heads // KV_HEADS, is_causal=True)
    expected = sdpa_attention_forward(module, **values, scaling=SIZE**-0.5)[0]
    got = attend_masked(**values, scoring=Scoring(SIZE**-0.5)).transpose(1, 2)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    packed = attend_packed(**values, scaling=SIZE**-0.5).transpose(1, 2)
    torch.testing.assert_close(packed, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("heads", [KV_HEADS, HEADS])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_soft_capping_equals_transformers_eager(heads: int, rows: int) -> None:
    values = inputs(heads, rows)
    values["query"] *= 5  # scores that the cap bends
    module: Any = SimpleNamespace(num_key_value_groups=heads // KV_HEADS, training=False)
    expected = eager_attention_forward(module, **values, scaling=SIZE**-0.5, softcap=3.0)[0]
    got = attend_masked(**values, scoring=Scoring(SIZE**-0.5, 3.0)).transpose(1, 2)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    assert (got - attend_masked(**values, scoring=Scoring(SIZE**-0.5)).transpose(1, 2)).abs().max() > 1e-2


@pytest.mark.parametrize("heads", [KV_HEADS, HEADS])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_sinks_equal_transformers_eager(heads: int, rows: int) -> None:
    values, sinks = inputs(heads, rows), torch.linspace(-3, 3, heads)
    module: Any = SimpleNamespace(num_key_value_groups=heads // KV_HEADS, training=False, sinks=sinks)
    expected = attention_with_sinks(module, **values, scaling=SIZE**-0.5)[0]
    got = attend_masked(**values, scoring=Scoring(SIZE**-0.5, sinks=sinks)).transpose(1, 2)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_keys_and_values_are_not_copied() -> None:
    values = inputs()
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, is_causal=True)
    with torch.inference_mode():
        ours = allocated(lambda: attend_masked(**values, scoring=Scoring(SIZE**-0.5)))
        capped = allocated(lambda: attend_masked(**values, scoring=Scoring(SIZE**-0.5, 50.0)))
        stock = allocated(lambda: sdpa_attention_forward(module, **values, scaling=SIZE**-0.5))
    expanded = 2 * HEADS * CONTEXT * SIZE * 4
    assert stock > expanded, "the measurement does not see transformers' copy"
    assert ours < values["key"].nbytes / 2, f"{ours} bytes allocated"
    scores = HEADS * ROWS * CONTEXT * 4
    assert capped < 3 * scores, f"{capped} bytes allocated, {scores} of them for the scores"


def test_products_are_of_float32_and_attention_is_not_cudnns() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.cudnn_sdp_enabled()
