"""The number of torch's operators that a lean layer calls: most of a small layer's time on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.rotary import Rotary
from tests.models.lean.lean_pairs import CPU, LayerPair, layer_pair

CONTEXT = 128


class CountingMode(TorchDispatchMode):
    """Counts the calls of operators, views among them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_of(pair: LayerPair, layer: torch.nn.Module, rows: int, ordered: bool) -> int:
    sizes = pair.sizes() if ordered else None
    cache = SessionCache(pair.config, len(pair.ours), 2 * CONTEXT, pair.dtype, ordered=sizes)
    positions = np.arange(CONTEXT, CONTEXT + rows)
    hidden, ids = torch.ones(1, rows, pair.config.hidden_size, dtype=pair.dtype), torch.from_numpy(positions)
    cache.begin(CONTEXT, rows)
    mask = cache.prepare(CONTEXT, np.array([-1, *positions[:-1]]), positions)[0]
    rotation = Rotary(pair.family, pair.config, range(1), CPU)(hidden, ids[None], positions)[0]

    def call() -> None:
        layer(
            hidden,
            attention_mask=mask,
            position_ids=ids[None],
            past_key_values=cache,
            position_embeddings=rotation,
        )

    with torch.no_grad():
        call()  # what is prepared once is not counted
        with CountingMode() as counted:
            call()
    return counted.calls


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(
    ("ordered", "dtype", "most"),
    [
        (False, torch.float32, 41),
        (False, torch.bfloat16, 50),
        (True, torch.float32, 87),
        (True, torch.bfloat16, 95),
    ],
    ids=str,
)
def test_a_llama_layer_makes_few_calls(rows: int, ordered: bool, dtype: torch.dtype, most: int) -> None:
    pair = layer_pair("llama", dtype, ordered=ordered, attention_bias=False, mlp_bias=False)
    ours = calls_of(pair, pair.ours[0], rows, ordered)
    assert ours <= most
    assert ours <= calls_of(pair, pair.theirs[0], rows, ordered) - 35
