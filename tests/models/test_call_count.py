"""The number of torch's operators that a decoder layer calls: most of a small layer's time on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.rotary import Rotary
from flowedge.models.session_rows import SessionRows, SessionsAttention
from tests.models.layer_pairs import CPU, LayerPair, layer_pair

CONTEXT = 128


class CountingMode(TorchDispatchMode):
    """Counts the calls of operators, views among them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_of(pair: LayerPair, rows: int) -> int:
    cache = KVCache(pair.architecture.cached_heads(0, len(pair.ours)), 2 * CONTEXT, pair.dtype)
    positions = np.arange(CONTEXT, CONTEXT + rows)
    hidden = torch.ones(rows, pair.config.hidden_size, dtype=pair.dtype)
    parents = np.array([-1, *positions[:-1]])
    attention = SessionsAttention([SessionRows(hidden, positions, cache, CONTEXT, CONTEXT, parents)], rows)
    (rotation,) = Rotary(pair.config, range(1), CPU)(torch.from_numpy(positions), positions, pair.dtype)
    with torch.no_grad():
        pair.ours[0](hidden, attention, rotation)  # what is prepared once is not counted
        with CountingMode() as counted:
            pair.ours[0](hidden, attention, rotation)
    return counted.calls


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.float32, 41),
        (torch.bfloat16, 50),
    ],
    ids=str,
)
def test_a_llama_layer_makes_few_calls(rows: int, dtype: torch.dtype, most: int) -> None:
    pair = layer_pair("llama", dtype, attention_bias=False, mlp_bias=False)
    assert calls_of(pair, rows) <= most
