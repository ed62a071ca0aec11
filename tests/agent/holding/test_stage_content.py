"""A slice of layers and a whole model behind one interface: memory, files and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flowedge.agent.holding.stage_content import LayerSlice, StageContent, WholeModel, content_of
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.device.memory import MemorySettings
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.v1 import agent_pb2 as pb
from tests.support.stage_config import stage_config
from tests.support.truncated import first_layers

VOCAB = 4096


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_layers(tmp_path_factory.mktemp("cut"), 2)


@pytest.fixture(scope="module")
def contents(cut: Path) -> list[tuple[StageContent, Checkpoint]]:
    target = Checkpoint.open("bundled")
    whole = WholeModel.matching(stage_config(str(cut)), load_tokenizer(target), vocab_size=VOCAB)
    return [(LayerSlice(stage_config(), 0, 3), target), (LayerSlice(stage_config(), 6, 8), target), whole]


def test_choosing_tensors_does_not_admit(contents: list[tuple[StageContent, Checkpoint]]) -> None:
    nothing = MemorySettings(limit_gib=1e-9)
    for content, checkpoint in contents:
        assert content.tensors(checkpoint)
        content.admit("kitchen", checkpoint, MemorySettings())
        with pytest.raises(CapacityError, match=rf"^{content.title.split(' ')[0]} .* device kitchen"):
            content.admit("kitchen", checkpoint, nothing)


def test_what_is_loaded_takes_what_was_said(contents: list[tuple[StageContent, Checkpoint]]) -> None:
    for content, checkpoint in contents:
        executor = content.load(checkpoint, None)
        assert executor.weight_bytes == content.weight_bytes(checkpoint)
        assert executor.cache_row_bytes == content.row_bytes(checkpoint)
        spec = executor.stage_spec()
        assert spec.is_first is (content.start == 0)
        assert spec.returns_tokens is isinstance(content, WholeModel)


def test_the_content_of_a_role() -> None:
    config = stage_config(quant="int8")
    role = pb.StageRole(layer_start=2, layer_stop=5, taps=[3], vocab_size=9)
    assert content_of(role, config) == LayerSlice(config, 2, 5, (3,))
    role = pb.StageRole(layer_stop=2, route=1, vocab_size=VOCAB)
    assert content_of(role, config) == WholeModel(config, 0, 2, vocab_size=VOCAB)


def test_a_last_stage_holds_the_lm_head_as_well(contents: list[tuple[StageContent, Checkpoint]]) -> None:
    target, (last, _) = contents[0][1], contents[1]
    drawing = replace(last, config=stage_config(verification="last-stage"))
    executor = drawing.load(target, None)
    assert executor.stage_spec().draws
    assert executor.weight_bytes == drawing.weight_bytes(target) > last.weight_bytes(target)
    assert set(drawing.tensors(target)) - set(last.tensors(target)) == {
        target.source(target.head_name)[1].name
    }


def test_the_embedding_and_a_tied_head_are_one_tensor(cut: Path) -> None:
    checkpoint = Checkpoint(cut)
    whole = LayerSlice(stage_config(str(cut), verification="last-stage"), 0, 2)
    tied = checkpoint.head_name == checkpoint.embedding_name
    executor = whole.load(checkpoint, None)
    assert executor.head is not None
    assert (executor.head.weight is executor.block.embedding_weight) is tied


def test_a_head_is_no_whole_model() -> None:
    with pytest.raises(BadRequestError, match="middle model bundled is an eagle head; it must be a complete"):
        WholeModel(stage_config(), 0, 1).open(hub=False)
