"""The numbers of a config.json are those that transformers reads from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_header import ModelHeader, header_of_config, read_header
from flowedge.models.checkpoint.model_source import FoundModel
from flowedge.models.files.config_support import max_positions
from tests.models.tiny_families import TINY, make_tiny


@pytest.mark.parametrize("name", list(TINY))
def test_every_family(name: str, tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", name)
    config = Checkpoint(directory).config
    sizes = config.num_hidden_layers, max_positions(config), config.hidden_size, config.vocab_size
    assert read_header(FoundModel(directory), name) == ModelHeader(name, *sizes, predicts_ahead=False)


def test_what_a_config_does_not_say_is_not_known() -> None:
    assert header_of_config(json.loads('{"model_type": "llama"}'), "m") == ModelHeader(
        "m", None, None, None, None
    )
