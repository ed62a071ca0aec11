"""The kind of a drafter, from its directory alone. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from flowedge.text.json_object import read_json_object

DrafterKind = Literal["eagle", "eagle3", "lm", "ngram"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def kind_of_checkpoint(directory: Path) -> DrafterKind:
    """The kind of the model in a directory with a config.json.

    The config of an EAGLE head says "LlamaForCausalLM" like a language model's. But an EAGLE head has one
    layer and no tokenizer, and only an EAGLE-3 head has a draft vocabulary.

    Raises:
        CheckpointError: when the config cannot be read.
    """
    config = read_json_object(directory / "config.json")
    if "draft_vocab_size" in config:
        return "eagle3"
    has_tokenizer = any((directory / name).is_file() for name in TOKENIZER_FILES)
    return "lm" if has_tokenizer or config.get("num_hidden_layers", 1) != 1 else "eagle"
