"""A draft node fetches the layer that predicts further tokens with the head, if that is to draft."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
import torch

from flowedge.agent.holding.stage_content import head_tensors
from flowedge.core.errors import CheckpointError
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.importing import import_model
from flowedge.weights.model_opener import ModelOpener
from flowedge.weights.model_request import ModelRequest, OpenedModel
from tests.drafting.mtp_files import make_mtp
from tests.support.gguf_files import write_gguf
from tests.weights.servers import QUICK, local_weights_at, serving
from tests.weights.test_gguf_weights import tell
from tests.weights.test_model_opener import run_here


def drafter_of(checkpoint: Checkpoint) -> HeadDrafter:
    drafter = load_drafter(("mtp",), TargetModel(checkpoint, LMHead.load(checkpoint), None, torch.float32))
    assert isinstance(drafter, HeadDrafter)
    return drafter


@pytest.mark.parametrize(
    ("family", "gguf"), [("qwen3_5_moe", False), ("qwen3_5_moe", True), ("glm4_moe_lite", False)]
)
def test_a_draft_node_fetches_what_drafts(family: str, gguf: bool, tmp_path: Path) -> None:
    source = make_mtp(tmp_path / "model", family)
    if gguf:
        source = write_gguf(tmp_path / "model.gguf", source, "Q8_0")
    giver = local_weights_at(tmp_path / "giver")
    model = import_model(giver, str(source), hub=False, on_transfer=lambda *_: None)

    def fetched(*drafters: str) -> OpenedModel:
        taker = local_weights_at(tmp_path / f"taker {len(drafters)}")

        async def run() -> OpenedModel:
            async with serving(giver) as (address, _):
                opener = ModelOpener("taker", taker, QUICK, run_here, tell)
                select = partial(head_tensors, drafters=drafters)
                sources = (SourceAddress(address),)
                return await opener.open(ModelRequest(f"sha256:{model}", "m", model, "", sources, select))

        return asyncio.run(run())

    original = Checkpoint.open(str(source))
    assert drafter_of(fetched("mtp").checkpoint).fingerprint == drafter_of(original).fingerprint
    with pytest.raises(CheckpointError, match=r"(mtp|model\.layers\.4)\.\S+ cannot be read"):
        drafter_of(fetched().checkpoint)
