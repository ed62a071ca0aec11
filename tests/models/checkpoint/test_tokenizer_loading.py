"""Loading of a checkpoint's tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from tests.text.test_tokenizer import SENTENCES, byte_level


def test_loading_and_end_tokens(directory: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    byte_level().save_pretrained(copy)
    config = json.loads((copy / "config.json").read_text()) | {"eos_token_id": 7}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    checkpoint = Checkpoint.open(str(copy))
    tokenizer = load_tokenizer(checkpoint)
    text = SENTENCES[2]
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    assert eos_token_ids(checkpoint, tokenizer) == {tokenizer.eos_token_id, 7, 8, 9}
    assert eos_token_ids(checkpoint) == {7, 8, 9}


def test_a_checkpoint_without_a_tokenizer(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="no usable tokenizer"):
        load_tokenizer(Checkpoint.open(str(directory)))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_named_pipe_in_place_of_a_file_is_refused(directory: Path, tmp_path: Path, name: str) -> None:
    """Whoever opened the pipe would wait until another program wrote into it."""
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    byte_level().save_pretrained(copy)
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    with pytest.raises(CheckpointError, match=rf"{name}: is a named pipe"):
        load_tokenizer(Checkpoint.open(str(copy)))
