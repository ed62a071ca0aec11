"""The shapes of SmolLM2, the first models from the hub that README runs, against transformers' own model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids
from tests.models.pipeline import Pipeline
from tests.support.smollm2 import make_smollm2


@pytest.mark.parametrize("size", ["135M", "360M"])
def test_the_published_shape_in_two_blocks_equals_the_whole_model(size: str, tmp_path: Path) -> None:
    directory = make_smollm2(tmp_path, size)
    checkpoint, reference = Checkpoint.open(str(directory)), ReferenceModel.load(str(directory))
    tokens = list(range(3, 60))
    with torch.inference_mode():
        whole = reference.model(torch.tensor([tokens])).logits[0]
    pipeline = Pipeline(checkpoint, 2)
    blocks = torch.cat([pipeline.commit(tokens[:40]), pipeline.commit(tokens[40:])])
    torch.testing.assert_close(blocks, whole, atol=3e-5, rtol=1e-4)
    assert eos_token_ids(checkpoint, None) == {2}
