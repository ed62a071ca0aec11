"""The kinds of heads: what each is given of the target, and with what weights it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flowedge.drafting.heads.eagle3_head import Eagle3Head, load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head
from flowedge.drafting.loading import check_sizes, check_width, drafter_directory
from flowedge.models.layers.taps import Taps, eagle3_taps
from flowedge.models.layers.tensors import torch_dtype
from flowedge.training.data.documents import TrainingText
from flowedge.training.heads.eagle3_training import Eagle3Training, draft_vocabulary
from flowedge.training.heads.eagle_training import EagleTraining
from flowedge.training.heads.head_training import HeadTraining
from flowedge.training.heads.new_head import new_eagle3_head, new_head
from flowedge.training.settings import HeadKind, TrainingSettings
from flowedge.training.targets.target import TrainingTarget


def head_taps(kind: HeadKind, config: Any) -> Taps:
    """What is tapped of a target of that config to train a head on. Errors as in eagle3_taps."""
    return () if kind == "eagle" else eagle3_taps(int(config.num_hidden_layers))


def head_training(
    target: TrainingTarget, documents: Sequence[TrainingText], settings: TrainingSettings
) -> HeadTraining:
    """A head at its beginning: random, or the one of settings.init.

    documents: what it will be trained on. CheckpointError for an initial head that is not of this kind or
    not for this target.
    """
    compute = torch_dtype(settings.dtype)
    if settings.kind == "eagle3":
        return Eagle3Training(_eagle3_head(target, documents, settings), target, settings.unroll, compute)
    return EagleTraining(_eagle_head(target, settings), target, settings.cross_entropy_weight, compute)


def _eagle_head(target: TrainingTarget, settings: TrainingSettings) -> EagleHead:
    if not settings.init:
        return new_head(target.checkpoint.config, torch.Generator().manual_seed(settings.seed))
    directory = drafter_directory(settings.init)
    head = load_eagle_head(directory, torch.float32)
    check_sizes(head, target.checkpoint.config, directory)
    head.embed_tokens = None  # from here on the target's
    return head


def _eagle3_head(
    target: TrainingTarget, documents: Sequence[TrainingText], settings: TrainingSettings
) -> Eagle3Head:
    config = target.checkpoint.config
    if not settings.init:
        size = min(settings.draft_vocab, int(config.vocab_size))
        ids = draft_vocabulary(documents, int(config.vocab_size), size)
        generator = torch.Generator().manual_seed(settings.seed)
        return new_eagle3_head(config, ids, target.lm_head.weight.float().cpu(), generator)
    directory = drafter_directory(settings.init)
    head = load_eagle3_head(directory, torch.float32)
    check_sizes(head, config, directory)
    check_width(head, config, directory)
    head.embed_tokens = None  # from here on the target's
    return head
