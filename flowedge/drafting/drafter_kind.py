"""The kind of a drafter, and the target that it was made for, from its directory alone. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from flowedge.core.errors import CheckpointError
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


def check_target(
    drafter: str, made_for: tuple[int | None, int | None], target: str, sizes: tuple[int | None, int | None]
) -> None:
    """Check that a draft head was made for a target of this hidden size and vocabulary.

    Args:
        drafter, target: names in the error.
        made_for, sizes: hidden size and number of tokens, of the head's target and of this one; None for a
            size that is not known.

    Raises:
        CheckpointError: when they differ.
    """
    if any(None not in pair and pair[0] != pair[1] for pair in zip(made_for, sizes, strict=True)):
        raise CheckpointError(
            f"drafter {drafter} is for a model of hidden size {made_for[0]} and {made_for[1]} tokens, "
            f"{target} has {sizes[0]} and {sizes[1]}"
        )
