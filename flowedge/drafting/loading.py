"""Loading the drafter that --drafter names. Imports torch and transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import flowedge
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.choice import (
    BUNDLED,
    BUNDLED_FOLDERS,
    BUNDLED_SMALL,
    NGRAM,
    RECALL,
    WORDS,
    drafter_label,
)
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.eagle import EagleDrafter
from flowedge.drafting.heads.eagle3 import Eagle3Drafter
from flowedge.drafting.heads.eagle3_head import Eagle3Head, load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head
from flowedge.drafting.hybrid import HybridDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.ngram import NGramDrafter
from flowedge.drafting.prediction import Predictor
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.finding import find_model
from flowedge.models.checkpoint.tokenizer import load_tokenizer
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead, load_embedding
from flowedge.models.layers.taps import Taps, eagle3_taps

DrafterKind = Literal["eagle", "eagle3", "lm", "ngram"]
BUNDLED_PATH = Path(flowedge.__file__).parent / "bundled"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class Target:
    """The model that is drafted for; the drafter's weights and caches have `dtype`."""

    checkpoint: Checkpoint
    head: LMHead
    tokenizer: Any
    dtype: torch.dtype

    @property
    def vocab_size(self) -> int:
        return int(self.checkpoint.config.vocab_size)


def load_drafter(names: Sequence[str], target: Target) -> Drafter | None:
    """The drafter that joins these names (see drafter_names); None where there are none.

    BadRequestError for a name that means nothing here, CheckpointError for files that cannot be read, or that
    belong to another model.
    """
    recalls = RECALL in names
    if recalls and "eagle" not in drafter_kinds(names):
        raise BadRequestError(
            f"drafter {drafter_label(names)}: {RECALL} corrects an EAGLE head, and there is none beside it"
        )
    parts = [_load(source, target, recalls) for source in names if source != RECALL]
    if len(parts) < 2:
        return parts[0] if parts else None
    models = [part for part in parts if isinstance(part, Predictor)]
    lookup = next((part for part in parts if isinstance(part, NGramDrafter)), None)
    return HybridDrafter(models, lookup, target.vocab_size)


def drafter_kinds(names: Sequence[str]) -> tuple[DrafterKind, ...]:
    """The kind of each name but "recall", from configs alone. Errors as in load_drafter."""
    return tuple(_kind(source) for source in names if source != RECALL)


def drafter_taps(names: Sequence[str], num_layers: int) -> Taps:
    """The taps of the drafter that load_drafter would give for a model of so many layers. Errors as there."""
    return eagle3_taps(num_layers) if "eagle3" in drafter_kinds(names) else ()


def _kind(source: str) -> DrafterKind:
    return "ngram" if source == NGRAM else kind_of(drafter_directory(source))


def _load(source: str, target: Target, recalls: bool) -> Drafter:
    if source == NGRAM:
        return NGramDrafter()
    directory = drafter_directory(source)
    kind = kind_of(directory)
    if kind == "lm":
        return _load_lm(directory, target)
    return _load_eagle3(directory, target) if kind == "eagle3" else _load_eagle(directory, target, recalls)


def drafter_directory(source: str, *, hub: bool = True) -> Path:
    """Where the files of a source are; BadRequestError where it names none."""
    if source in BUNDLED_FOLDERS:
        return BUNDLED_PATH / BUNDLED_FOLDERS[source]
    if not Path(source).expanduser().is_dir() and ("/" not in source or source.startswith(("/", ".", "~"))):
        raise BadRequestError(
            f"drafter {source}: no such directory, and neither a hub id (owner/name) nor {', '.join(WORDS)}"
        )
    return find_model(source, hub=hub)


def kind_of(directory: Path) -> DrafterKind:
    """What is in a directory, by its config; CheckpointError when that cannot be read.

    An EAGLE head has one layer, and no tokenizer beside it: it is the target's.

    An EAGLE-3 head has a draft vocabulary, which nothing else has. The config of a head says
    "LlamaForCausalLM" like that of a language model.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        layers = config.get("num_hidden_layers", 1)
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"drafter {directory}: {path.name} cannot be read: {error}") from error
    if "draft_vocab_size" in config:
        return "eagle3"
    if layers != 1 or any((directory / name).is_file() for name in TOKENIZER_FILES):
        return "lm"
    return "eagle"


def _load_eagle(directory: Path, target: Target, recalls: bool) -> EagleDrafter:
    head = load_eagle_head(directory, target.dtype)
    check_sizes(
        int(head.config.hidden_size), int(head.config.vocab_size), target.checkpoint.config, directory
    )
    return EagleDrafter(head, target.head, _embedding(head, target), recalls)


def _load_eagle3(directory: Path, target: Target) -> Eagle3Drafter:
    taps = eagle3_taps(int(target.checkpoint.config.num_hidden_layers))
    head = load_eagle3_head(directory, target.dtype)
    hidden = head.fc.in_features // len(taps)
    check_sizes(hidden, int(head.config.vocab_size), target.checkpoint.config, directory)
    if head.embed_tokens is None and head.config.hidden_size != hidden:
        raise CheckpointError(
            f"drafter {directory} is {head.config.hidden_size} wide, the model {hidden}, and it has no "
            "embedding of its own"
        )
    return Eagle3Drafter(head, target.head, _embedding(head, target), taps)


def _embedding(head: EagleHead | Eagle3Head, target: Target) -> nn.Embedding:
    if head.embed_tokens is not None:
        return head.embed_tokens
    return load_embedding(target.checkpoint, dtype=target.dtype, shared_with=target.head)


def check_sizes(hidden: int, vocab: int, config: Any, directory: Path) -> None:
    """CheckpointError for a head made for another hidden size or vocabulary than a model's config says."""
    found = (hidden, vocab)
    wanted = (int(config.hidden_size), int(config.vocab_size))
    if found != wanted:
        raise CheckpointError(
            f"drafter {directory} is for a model of hidden size {found[0]} and {found[1]} tokens, "
            f"this one has {wanted[0]} and {wanted[1]}"
        )


def _load_lm(directory: Path, target: Target) -> LMDrafter:
    checkpoint = Checkpoint(directory)
    check_same_tokenizer(target.tokenizer, tokenizer_of(checkpoint), directory)
    block = LayerBlock.load(checkpoint, 0, checkpoint.config.num_hidden_layers, dtype=target.dtype)
    head = LMHead.load(checkpoint, dtype=target.dtype)
    if checkpoint.head_name == checkpoint.embedding_name and block.embedding_weight is not None:
        head.weight = block.embedding_weight  # the copy is freed
    return LMDrafter(block, head, target.vocab_size, checkpoint.fingerprint)


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """A small model's tokenizer; the bundled one's lies beside the bundled target alone."""
    bundled = checkpoint.directory == BUNDLED_PATH / BUNDLED_FOLDERS[BUNDLED_SMALL]
    return load_tokenizer(Checkpoint.open(BUNDLED) if bundled else checkpoint)


def check_same_tokenizer(target: Any, other: Any, directory: Path, what: str = "drafter") -> None:
    """CheckpointError with the first token that differs; `what` is what the other model is to be.

    The padding of the models' vocabularies is not looked at: no tokenizer has tokens for it.
    """
    ours, theirs = ({id_: token for token, id_ in each.get_vocab().items()} for each in (target, other))
    for id_ in sorted(ours.keys() | theirs.keys()):
        if ours.get(id_) != theirs.get(id_):
            raise CheckpointError(
                f"{what} {directory} has another tokenizer than the model: token {id_} is "
                f"{_shown(theirs, id_)} there and {_shown(ours, id_)} in the model's; "
                "a language model drafts for models with its own tokenizer alone"
            )


def _shown(vocabulary: dict[int, str], id_: int) -> str:
    return repr(vocabulary[id_]) if id_ in vocabulary else "missing"
