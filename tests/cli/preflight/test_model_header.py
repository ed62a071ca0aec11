"""The numbers of a config.json are those that transformers reads from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowedge.cli.preflight.demands import check_layers, check_recall, check_room
from flowedge.cli.preflight.model_header import ModelHeader, header_of_config, read_header
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import FoundModel
from flowedge.models.files.config_support import max_positions
from tests.models.tiny_families import TINY, make_tiny

HEADER = ModelHeader("m", 8, 100, 4, 16)


@pytest.mark.parametrize("name", list(TINY))
def test_every_family(name: str, tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", name)
    config = Checkpoint(directory).config
    assert read_header(FoundModel(directory), name) == ModelHeader(
        name, config.num_hidden_layers, max_positions(config), config.hidden_size, config.vocab_size
    )


def test_what_a_config_does_not_say_is_not_known() -> None:
    assert header_of_config(json.loads('{"model_type": "llama"}'), "m") == ModelHeader(
        "m", None, None, None, None
    )


def test_room() -> None:
    check_room(HEADER, 40, 60)
    with pytest.raises(
        CapacityError, match=r"41 tokens of the prompt and 60 new ones .* lower --max-new-tokens"
    ):
        check_room(HEADER, 41, 60)
    with pytest.raises(CapacityError, match=r"prompt 3: .* shorten the prompt"):
        check_room(HEADER, 101, 60, "prompt 3")
    check_room(ModelHeader("m", 8, None, None, None), 1000, 1000)


def test_layers() -> None:
    check_layers([5, 3], 2, 8)
    check_layers([5, 3], None, None)
    check_layers([], 8, 8)
    for counts, stages, layers in ([5, 4], 2, 8), ([8, 0], None, None), ([], 9, 8):
        with pytest.raises(BadRequestError):
            check_layers(counts, stages, layers)


def test_recall_stands_beside_a_head() -> None:
    check_recall(["recall", "bundled"], ["ngram", "eagle"])
    check_recall(["recall", "owner/head"], ["ngram", None])
    check_recall(["ngram"], ["ngram"])
    with pytest.raises(BadRequestError, match="recall corrects an EAGLE head"):
        check_recall(["recall", "x"], ["ngram", "lm"])
