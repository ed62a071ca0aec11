"""Blocks of every family on a GPU, against transformers' models on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from tests.models.pipeline import History, Pipeline
from tests.models.tiny_families import TINY, make_tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICE = "cuda:0"


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", TINY)
@torch.inference_mode()
def test_draft_trees_on_a_gpu(name: str, exact: bool, tmp_path: Path) -> None:
    """The rows of random trees have the logits of their paths, and, where the block is exact, their bits."""
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, name)))
    pipeline, alone = (Pipeline(checkpoint, 2, device=DEVICE, exact=exact) for _ in range(2))
    reference, history = ReferenceModel.load(checkpoint).model, History(pipeline, 5, 30)
    for _ in range(3):
        texts, logits = history.draft(6)
        for text, row in zip(texts, logits, strict=True):
            expected = reference(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(row.cpu(), expected, atol=2e-4, rtol=2e-4)
            if exact and not pipeline.blocks[0].inexact_reason:
                alone.restart()
                assert torch.equal(alone.commit(text)[-1], row)
        history.prune()
