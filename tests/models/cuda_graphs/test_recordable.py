"""Whether a model is recorded is known before it is loaded, and so is the most that its caches take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowedge.agent.holding.stage_content import LayerSlice
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.loading import TargetModel, drafter_directory, load_drafter
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.cuda_graphs.static_decoding import is_recordable, unsuited
from flowedge.models.cuda_graphs.static_keys import row_bytes_with_scratch, static_slots
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from tests.models.cuda_graphs.static_pipeline import CountingMaker, decode_statically
from tests.models.tiny_families import LAYERS, TINY, make_tiny
from tests.support.breadth import dealt
from tests.support.stage_config import stage_config


@pytest.mark.parametrize(
    "name", dealt(TINY, {"llama", "llama-dynamic", "phi3-longrope", "qwen3_moe"}.__contains__)
)
def test_a_checkpoint_tells_whether_its_layers_are_recorded(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpoint(make_tiny(tmp_path, name))
    for start in range(LAYERS):
        block = LayerBlock.load(checkpoint, start, start + 1)
        assert is_recordable(checkpoint, start, start + 1) == (not unsuited(block))


def test_a_stage_counts_the_same_before_it_is_loaded(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    content = LayerSlice(stage_config(str(directory)), 1, 3)
    block = LayerBlock.load(checkpoint, 1, 3)
    assert content.row_bytes(checkpoint) == block.cache_row_bytes
    decode_statically(block)
    assert content.row_bytes(checkpoint, cuda_graphs=True) == block.cache_row_bytes


def test_a_drafter_counts_the_same_before_it_is_loaded() -> None:
    checkpoint = Checkpoint.open("bundled")
    small = Checkpoint(drafter_directory("bundled-small"))
    model = LanguageModel.load(small, int(checkpoint.config.vocab_size), torch.float32)
    decode_statically(model.block)
    drafter = LMDrafter(model)
    row = drafter_memory(("bundled-small",), checkpoint, torch.float32, cuda_graphs=True).row
    assert 1000 * row == drafter.session_bytes(2000) - drafter.session_bytes(1000)


@pytest.mark.parametrize("names", [("bundled",), ("bundled-eagle3",), ("bundled", "recall")])
def test_a_draft_head_counts_the_same_before_it_is_loaded(names: tuple[str, ...]) -> None:
    checkpoint = Checkpoint.open("bundled")
    head = LMHead.load(checkpoint)
    drafter = load_drafter(names, TargetModel(checkpoint, head, load_tokenizer(checkpoint), torch.float32))
    assert isinstance(drafter, HeadDrafter)
    for cuda_graphs in (False, True):
        if cuda_graphs:
            drafter.decode_statically(CountingMaker())
        row = drafter_memory(names, checkpoint, torch.float32, cuda_graphs=cuda_graphs).row
        assert 1000 * row == drafter.session_bytes(2000) - drafter.session_bytes(1000)


def test_a_cache_takes_no_more_than_is_counted() -> None:
    for capacity in (*range(512, 5000), 8191, 8193, 131_071):
        assert static_slots(capacity) <= row_bytes_with_scratch(capacity)
    for capacity in range(1, 512):
        assert static_slots(capacity) <= max(256, capacity + 127)
