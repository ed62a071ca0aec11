"""Loading of the drafters that a list of names stands for; their memory. Imports torch and transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.files import expand_home
from flowedge.drafting.block.block_drafter import BlockDrafter
from flowedge.drafting.block.block_head import BlockHead, load_block_head
from flowedge.drafting.block.block_settings import BlockWiring
from flowedge.drafting.block.parallel_head import ParallelHead
from flowedge.drafting.choice import (
    BUNDLED,
    BUNDLED_FOLDERS,
    BUNDLED_SMALL,
    MTP,
    NGRAM,
    RECALL,
    DrafterKind,
    check_recall,
    check_target,
    kind_of_checkpoint,
    unknown_drafter,
)
from flowedge.drafting.draft_quant import copy_limit, layer_quant, lm_quant
from flowedge.drafting.draft_vocabulary import DraftVocabulary, VocabularyLearner
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.drafter_format import DEFAULT_FORMAT, DrafterFormat
from flowedge.drafting.heads.draft_head import DraftHead
from flowedge.drafting.heads.eagle3_head import Eagle3Head, load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head
from flowedge.drafting.heads.head_drafter import HeadDrafter, capture_drafting
from flowedge.drafting.heads.head_settings import CONFIG_NAME, Eagle3Wiring, read_settings
from flowedge.drafting.heads.mtp_head import load_mtp_head, mtp_bytes
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.lm import LMDrafter, check_can_draft
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.model_drafter import ModelDrafter
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import BUNDLED_PATH, model_directory
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.cuda_graphs.static_decoding import capture_decoding
from flowedge.models.gguf.model_files import files_in
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.quant.quantize import module_bytes, quantize_block
from flowedge.models.taps import Taps

_TAPPING = ("eagle3", "block")  # kinds of heads that read the inputs of the target's layers
STORED_BYTES = 2  # of a parameter in a .bin file, which is not opened: most are float16


@dataclass(frozen=True)
class TargetModel:
    """The model that a drafter drafts for.

    Attributes:
        checkpoint, head: None where the target's weights are elsewhere; a draft head cannot be loaded then.
        dtype: that of the drafter's weights and caches.
        cuda_graphs: whether a GPU records the forwards of drafters.
        form: how drafters that are models are held.
        vocabulary: the tokens that drafters without a vocabulary of their own propose at first; None for all.
        learner: chooses another vocabulary from the tokens that are drawn.
        table_quant: of the target's layers, which its embedding and LM head follow (see load_table).
        quant_cache: of a drafter that is read from the target's checkpoint, as of LayerLoader.
        stated_name, stated_vocab, stated_device: where there is no checkpoint, the word for the target in
            errors, the number of its tokens, and the device of drafters.
    """

    checkpoint: Checkpoint | None
    head: LMHead | None
    tokenizer: Any
    dtype: torch.dtype
    cuda_graphs: bool = False
    form: DrafterFormat = DEFAULT_FORMAT
    vocabulary: DraftVocabulary | None = None
    learner: VocabularyLearner | None = None
    stated_name: str = "the target"
    stated_vocab: int = 0
    stated_device: str = "cpu"
    table_quant: str | None = None
    quant_cache: QuantCache | None = None

    @property
    def vocab_size(self) -> int:
        checkpoint = self.checkpoint
        return self.stated_vocab if checkpoint is None else int(checkpoint.config.vocab_size)

    @property
    def layers(self) -> int:
        """The number of layers of a target with a checkpoint."""
        assert self.checkpoint is not None
        return int(self.checkpoint.config.num_hidden_layers)

    @property
    def device(self) -> torch.device:
        """The device of the LM head, and so of the drafters."""
        return torch.device(self.stated_device) if self.head is None else self.head.device

    @property
    def title(self) -> str:
        """The word for the target in errors."""
        return self.stated_name if self.checkpoint is None else str(self.checkpoint.place)

    @property
    def quant(self) -> str:
        """The format of the drafters' layers."""
        return layer_quant(self.form, self.dtype, self.device)


def load_drafter(names: Sequence[str], target: TargetModel) -> Drafter | None:
    """Load the drafter that joins the drafters of these names (see drafter_names); None without names.

    Raises:
        BadRequestError: when there is no drafter of a name, or the drafters cannot be joined.
        CheckpointError: when files cannot be read or belong to another target.
    """
    recalls = RECALL in names
    if recalls:
        check_recall(names, drafter_kinds(names))
    taps = () if target.checkpoint is None else drafter_taps(names, target.layers)
    parts = [_load(source, target, recalls, taps) for source in _without_recall(names)]
    learning = next((part for part in parts if isinstance(part, ModelDrafter) and part.can_learn), None)
    if learning is not None and target.learner is not None:
        learning.learn_by(target.learner)
    if len(parts) < 2:
        return parts[0] if parts else None
    models = [part for part in parts if isinstance(part, ModelDrafter)]
    lookup = next((part for part in parts if isinstance(part, NGramDrafter)), None)
    return JoinedDrafter(models, lookup, target.vocab_size)


def drafter_kinds(names: Sequence[str]) -> tuple[DrafterKind, ...]:
    """The kinds of the named drafters but "recall", from configs alone. Errors as in load_drafter."""
    words: dict[str, DrafterKind] = {NGRAM: "ngram", MTP: "mtp"}
    return tuple(words.get(source) or kind_of(drafter_directory(source)) for source in _without_recall(names))


def drafter_taps(names: Sequence[str], num_layers: int) -> Taps:
    """The taps of the named drafters for a target with `num_layers` layers. Errors as in load_drafter."""
    tapped: set[int] = set()
    for source, kind in zip(_without_recall(names), drafter_kinds(names), strict=True):
        if kind in _TAPPING:
            tapped |= {*_taps_of_head(drafter_directory(source), kind, num_layers)}
    return tuple(sorted(tapped))


def _taps_of_head(directory: Path, kind: DrafterKind, num_layers: int) -> Taps:
    """The taps of an EAGLE-3 or block head."""
    path, settings = directory / CONFIG_NAME, read_settings(directory)
    wiring = BlockWiring.of(settings, path) if kind == "block" else Eagle3Wiring.of(settings, path)
    return wiring.tapped(num_layers, path)


def _without_recall(names: Sequence[str]) -> list[str]:
    return [name for name in names if name != RECALL]


def _load(source: str, target: TargetModel, recalls: bool, taps: Taps) -> Drafter:
    if source == NGRAM:
        return NGramDrafter()
    if source == MTP:
        return _load_mtp(target)
    directory = drafter_directory(source)
    kind = kind_of(directory)
    if kind != "lm":
        return _load_head(directory, kind, target, recalls, taps)
    checkpoint = Checkpoint(directory)
    check_same_tokenizer(target.tokenizer, tokenizer_of(checkpoint), checkpoint.place, target=target.title)
    check_can_draft(checkpoint)
    quant = lm_quant(checkpoint, target.quant)
    model = LanguageModel.load(checkpoint, target.vocab_size, target.dtype, target.device, quant)
    if target.cuda_graphs:
        capture_decoding(model.block)
    saved = LanguageModel.required_bytes(checkpoint, target.dtype) - model.weight_bytes
    return LMDrafter(model, _proposals(model.lm_head, target, quant, saved))


def drafter_directory(source: str, *, hub: bool = True) -> Path:
    """The directory of a source's files, which `hub` allows to download."""
    if source in BUNDLED_FOLDERS:
        return BUNDLED_PATH / BUNDLED_FOLDERS[source]
    if not expand_home(source).exists() and ("/" not in source or source.startswith(("/", ".", "~"))):
        raise unknown_drafter(source)
    return model_directory(source, hub=hub)


def kind_of(directory: Path) -> DrafterKind:
    """The kind of the model in a directory, which may have been made for a GGUF model."""
    return "lm" if files_in(directory) is not None else kind_of_checkpoint(directory)


def _load_mtp(target: TargetModel) -> HeadDrafter:
    checkpoint, lm_head = _opened(target, MTP)
    quant = lm_quant(checkpoint, target.quant)
    head = load_mtp_head(checkpoint, target.dtype, target.device, quant, target.quant_cache)
    plain = mtp_bytes(checkpoint, "none", target.dtype, target.device)
    proposals = _proposals(lm_head, target, quant, plain - module_bytes(head))
    drafter = HeadDrafter(head, lm_head, _embedding(checkpoint, target), proposals=proposals)
    if target.cuda_graphs:
        capture_drafting(drafter)
    return drafter


def _opened(target: TargetModel, drafter: object) -> tuple[Checkpoint, LMHead]:
    """The checkpoint and the LM head of a target, which a head needs."""
    if target.checkpoint is None or target.head is None:
        raise BadRequestError(
            f"drafter {drafter} is a draft head, which needs the embedding and the LM head of "
            f"{target.title}; name that model as well, or draft by a language model or by n-gram lookup"
        )
    return target.checkpoint, target.head


def _embedding(checkpoint: Checkpoint, target: TargetModel) -> nn.Embedding:
    return load_embedding(checkpoint, dtype=target.dtype, device=target.device, quant=target.table_quant)


def _load_head(
    directory: Path, kind: DrafterKind, target: TargetModel, recalls: bool, taps: Taps
) -> HeadDrafter | BlockDrafter:
    """taps: those of all drafters that are loaded."""
    checkpoint, lm_head = _opened(target, directory)
    config = checkpoint.config
    load: dict[str, Callable[..., EagleHead | Eagle3Head | BlockHead | ParallelHead]] = {
        "eagle3": load_eagle3_head,
        "block": load_block_head,
    }
    head = load.get(kind, load_eagle_head)(directory, target.dtype, target.device)
    if kind in _TAPPING:
        head.read_of(taps, _taps_of_head(directory, kind, target.layers))
    else:
        taps = ()
    before = module_bytes(head)
    quantize_block(head, target.quant)
    check_sizes(head, config, directory, target.title)
    embedding = head.embed_tokens
    if embedding is None:
        check_width(head, config, directory, target.title)
        embedding = _embedding(checkpoint, target)
    saved = before - module_bytes(head)
    proposals = None if head.has_lm_head else _proposals(lm_head, target, target.quant, saved)
    if isinstance(head, BlockHead | ParallelHead):
        if not head.has_lm_head:
            check_softcap(head, lm_head, directory, target.title)
        return BlockDrafter(head, lm_head, embedding, taps, proposals)
    drafter = HeadDrafter(head, lm_head, embedding, taps, recalls and kind == "eagle", proposals)
    if target.cuda_graphs:
        capture_drafting(drafter)
    return drafter


def _proposals(exact: LMHead, target: TargetModel, quant: str, saved: int) -> ProposalHead:
    """The head that a drafter proposes with, over the rows of `exact`; `saved` as in `copy_limit`."""
    return ProposalHead(exact, target.vocabulary, quant, target.vocab_size, copy_limit(target.form, saved))


def check_sizes(head: DraftHead, config: Any, directory: Path, target: str) -> None:
    """Check that a head was made for the hidden size and vocabulary of a target, which is named `target`."""
    made_for = (head.target_hidden_size, int(head.config.vocab_size))
    check_target(str(directory), made_for, target, (int(config.hidden_size), int(config.vocab_size)))


def check_width(head: DraftHead, config: Any, directory: Path, target: str) -> None:
    """Check that a head is as wide as the embedding, which it is to share, of the target named `target`."""
    if head.config.hidden_size != config.hidden_size:
        raise CheckpointError(
            f"drafter {directory} is {head.config.hidden_size} wide and cannot share the embedding of "
            f"{target}, which is {config.hidden_size} wide; it needs an embedding of its own"
        )


def check_softcap(head: BlockHead | ParallelHead, lm_head: LMHead, directory: Path, target: str) -> None:
    """Check that a head that uses the LM head of the target named `target` bounds logits as it does."""
    wanted = head.blocks.softcap
    if wanted is not None and wanted != lm_head.softcap:
        raise CheckpointError(
            f"drafter {directory} is for a model with final_logit_softcapping {wanted:g}; "
            f"that of {target} is {lm_head.softcap or 'not set'}"
        )


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """A small model's tokenizer; that of the bundled small model lies beside the bundled target."""
    bundled = checkpoint.directory == BUNDLED_PATH / BUNDLED_FOLDERS[BUNDLED_SMALL]
    return load_tokenizer(Checkpoint.open(BUNDLED) if bundled else checkpoint)


def check_same_tokenizer(
    ours: Any, other: Any, directory: Path, what: str = "drafter", *, target: str = "the model"
) -> None:
    """Check that two tokenizers have the same tokens; padding of the models' vocabularies is ignored.

    Args:
        ours, other: the tokenizers of the target and of the model in `directory`.
        what, target: the words for the other model and for the target in errors.

    Raises:
        CheckpointError: when they differ; the message has the first different token.
    """
    known, theirs = ({id_: token for token, id_ in each.get_vocab().items()} for each in (ours, other))
    for id_ in sorted(known.keys() | theirs.keys()):
        if known.get(id_) != theirs.get(id_):
            raise CheckpointError(
                f"{what} {directory} has another tokenizer than {target}: token {id_} is "
                f"{_shown(theirs, id_)} there and {_shown(known, id_)} in the target's; "
                "a language model drafts only for models with its own tokenizer"
            )


def _shown(vocabulary: dict[int, str], id_: int) -> str:
    return repr(vocabulary[id_]) if id_ in vocabulary else "missing"
