"""The names that drafters are given by, and the kind of a drafter by its directory. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.pipeline_config import LOOKUP, NO_DRAFTER, drafter_label, drafter_names
from flowedge.drafting.block.block_settings import is_block_config
from flowedge.models.checkpoint.model_header import predicts_ahead
from flowedge.models.checkpoint.model_source import find_here
from flowedge.text.json_object import read_json_object

if TYPE_CHECKING:
    from flowedge.v1.measure_pb2 import MeasureDeviceRequest

NGRAM = LOOKUP
RECALL = "recall"
MTP = "mtp"  # the layer that comes with the target and predicts further tokens
BUNDLED = "bundled"
BUNDLED_SMALL = "bundled-small"
BUNDLED_EAGLE3 = "bundled-eagle3"
BUNDLED_TARGET = "bundled-target"  # the bundled model itself, as a drafter that it nearly always agrees with
BUNDLED_FOLDERS = {  # of flowedge/bundled
    BUNDLED: "eagle",
    BUNDLED_SMALL: "small",
    BUNDLED_EAGLE3: "eagle3",
    BUNDLED_TARGET: "model",
}
WORDS = (NO_DRAFTER, NGRAM, RECALL, MTP, *BUNDLED_FOLDERS)


def default_drafter(model: str) -> str:
    """Return the drafter of a model for which none is named.

    That is the bundled model's head, what comes with the model where its files on this machine have such a
    layer, or else lookup.
    """
    if model == BUNDLED:
        return BUNDLED
    try:
        found = find_here(model, needed=False)
        return MTP if found is not None and predicts_ahead(found) else NGRAM
    except CheckpointError:  # whoever opens the model says so
        return NGRAM


def unknown_drafter(source: str) -> BadRequestError:
    """Return the error for a name that is neither a word of WORDS, a directory nor a hub id."""
    close = difflib.get_close_matches(source, WORDS, n=1)
    advice = f"did you mean {close[0]}?" if close else "to join drafters, name each by an option of its own"
    words = ", ".join(WORDS)
    return BadRequestError(
        f"drafter {source}: no such directory, and neither a hub id (owner/name) nor {words}; {advice}"
    )


def check_recall(names: Sequence[str], kinds: Sequence[DrafterKind | None]) -> None:
    """Check that "recall" stands beside an EAGLE head.

    Args:
        kinds: of the named drafters but "recall"; None where only the agents know the kind.

    Raises:
        BadRequestError: when there is no head that it could correct.
    """
    if RECALL in names and {"eagle", None}.isdisjoint(kinds):
        raise BadRequestError(
            f"drafter {drafter_label(names)}: {RECALL} corrects an EAGLE head, and there is none beside it"
        )


def drafter_value(names: Sequence[str]) -> str | list[str]:
    """Return the names as a YAML file has them: a text for one name or none, a list for several."""
    return list(names) if len(names) > 1 else drafter_label(names)


def drafters_of(message: MeasureDeviceRequest) -> tuple[str, ...]:
    """Return the names of the drafters to measure, checked as `drafter_names` does.

    A sender that knows no `drafters` has one name at most, in `drafter`, which otherwise is the names' label.
    """
    return drafter_names(message.drafters or message.drafter)


DrafterKind = Literal["eagle", "eagle3", "block", "mtp", "lm", "ngram"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def kind_of_checkpoint(directory: Path) -> DrafterKind:
    """The kind of the model in a directory with a config.json.

    The config of an EAGLE head says "LlamaForCausalLM" like a language model's. But an EAGLE head has one
    layer and no tokenizer, and of heads that are no block heads only an EAGLE-3 head has a draft vocabulary.

    Raises:
        CheckpointError: when the config cannot be read.
    """
    config = read_json_object(directory / "config.json")
    if is_block_config(config):
        return "block"
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
