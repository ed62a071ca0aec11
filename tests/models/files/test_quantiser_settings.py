"""A quantiser's settings are found in config.json, in its part for the decoder, or in a file beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import CheckpointError
from flowedge.models.files.quantiser_settings import QUANTISER_FILES, quantiser_file, quantiser_settings

FOUND = {"quant_method": "gptq", "bits": 4}
OTHER = {"quant_method": "awq"}


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": FOUND},
        {"compression_config": FOUND},
        {"text_config": {"quantization_config": FOUND}},
        {"quantization_config": FOUND, "text_config": {"quantization_config": OTHER}},
        {"quantization_config": FOUND, "compression_config": OTHER},
        {"quantization_config": None, "compression_config": FOUND, "text_config": None},
    ],
)
def test_settings_in_the_config(tmp_path: Path, config: dict[str, Any]) -> None:
    assert quantiser_settings(config, tmp_path) == FOUND


@pytest.mark.parametrize("name", QUANTISER_FILES)
def test_settings_in_a_file(tmp_path: Path, name: str) -> None:
    assert quantiser_settings({}, tmp_path) is None and quantiser_file({}, tmp_path) is None
    (tmp_path / name).write_text(json.dumps(FOUND))
    assert quantiser_settings({}, tmp_path) == FOUND and quantiser_file({}, tmp_path) == tmp_path / name
    assert quantiser_settings({"quantization_config": OTHER}, tmp_path) == OTHER
    assert quantiser_file({"quantization_config": OTHER}, tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", r"quantize_config\.json: not a JSON object"),
        (b"{", r"quantize_config\.json: cannot be read"),
        (b"\xff", r"quantize_config\.json: cannot be read"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "quantize_config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        quantiser_settings({}, tmp_path)


def test_a_config_with_something_else(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"compression_config in config\.json is not a JSON object"):
        quantiser_settings({"compression_config": "4 bits"}, tmp_path)
