"""Captured pieces, on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.recording import CapturingMaker
from flowedge.models.cuda_graphs.static_decoding import BlockDecoding
from tests.models.cuda_graphs.static_pipeline import decode_statically
from tests.models.pipeline import never

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

DEVICE = torch.device("cuda:0")


def test_graphs_compute_what_their_functions_compute(directory: Path) -> None:
    blocks = [LayerBlock.load(Checkpoint(directory), 0, 4, device=DEVICE) for _ in range(2)]
    captured, called = blocks
    captured.decoding = BlockDecoding(captured, CapturingMaker(DEVICE), uncaptured=0)
    decode_statically(called)
    rng = np.random.default_rng(0)
    for _session in range(2):
        caches = [block.new_cache(400) for block in blocks]
        cached = 0
        for rows in (1, 8, 5, 16, 64, 64, 64, 64, 3, 1):
            inputs = torch.from_numpy(rng.integers(0, 97, rows))
            positions = np.arange(cached, cached + rows)
            parents = np.array([-1, *range(cached, cached + rows - 1)])
            results = [
                block.forward(inputs, positions, cache, cached, cached, parents, never)
                for block, cache in zip(blocks, caches, strict=True)
            ]
            assert results[0] is not None
            assert results[1] is not None
            assert torch.equal(results[0], results[1])
            assert torch.equal(*(cache.kv[:, :, :, : cached + rows] for cache in caches))
            cached += rows
    assert not captured.decoding.failure


def test_an_operation_that_waits_is_not_recorded_and_leaves_torch_as_it_was() -> None:
    tensor = torch.ones(4, device=DEVICE)
    maker, stream = CapturingMaker(DEVICE), torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        maker.make([lambda: tensor.fill_(tensor.sum().item())])
    assert torch.cuda.current_stream() == stream
    torch.cuda.empty_cache()
    (piece,) = maker.make([lambda: tensor.fill_(3.0)])
    piece.run()
    assert tensor.tolist() == [3.0] * 4
