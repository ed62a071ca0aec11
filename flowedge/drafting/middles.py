"""Opening the middle models of a hierarchy. Imports torch and transformers."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.drafting.loading import check_same_tokenizer, drafter_directory, kind_of, tokenizer_of
from flowedge.models.checkpoint.checkpoint import Checkpoint


def open_middle(source: str, *, hub: bool = True) -> Checkpoint:
    """The checkpoint of a middle model, named as a drafter is; no weights are read.

    hub: whether the hub may be asked for what is not on the disk.

    BadRequestError for what is no language model, CheckpointError for files that cannot be read.
    """
    directory = drafter_directory(source, hub=hub)
    kind = kind_of(directory)
    if kind != "lm":
        raise BadRequestError(
            f"middle model {source} is an {kind} head; it has to be a whole language model, which predicts "
            "tokens by itself"
        )
    return Checkpoint(directory)


def check_middle(source: str, tokenizer: Any) -> Checkpoint:
    """The same, held against the target's tokenizer; CheckpointError with the first token that differs."""
    checkpoint = open_middle(source)
    check_same_tokenizer(tokenizer, tokenizer_of(checkpoint), checkpoint.directory, "middle model")
    return checkpoint
