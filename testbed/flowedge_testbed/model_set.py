"""The real models that supply the tokens of a benchmark, loaded once a process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flowedge.agent.roles.stage_content import WholeModel
from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import PipelineConfig, drafter_label
from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.files.config_support import max_positions
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.planning.in_process import load_blocks
from flowedge.planning.split import even_split, layer_ranges
from flowedge.text.tokenizer import encode_chat
from flowedge_testbed.emulation.draft_share import WHOLE, DraftShare, priced_tokens
from flowedge_testbed.profiles import library


@dataclass
class ModelSet:
    """A target, its drafter and its middle models.

    Attributes:
        model, drafter_names, middle_names: the names that the models were loaded by.
        middles: the middle models of a PipeSpec hierarchy, the smallest first; in fp32, as are blocks.
        dtype: of the head, of the drafter, and of the layers that true paths are computed with.
    """

    checkpoint: Checkpoint
    head: LMHead
    drafter: Drafter
    tokenizer: Any
    eos: frozenset[int]
    model: str
    drafter_names: tuple[str, ...]
    middles: tuple[LanguageModel, ...] = ()
    middle_names: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    _middle_parts: dict[tuple[int, int], list[LanguageModel]] = field(default_factory=dict)
    _blocks: dict[tuple[int, ...], list[LayerBlock]] = field(default_factory=dict)
    _drafters: dict[DraftShare, Drafter] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        model: str,
        drafter: tuple[str, ...],
        middles: Sequence[str] = (),
        dtype: torch.dtype = torch.float32,
    ) -> ModelSet:
        """Load the models that `--model`, `--drafter` and `--middle` name.

        Raises:
            CheckpointError: when a checkpoint cannot be used.
            BadRequestError: when `drafter` is `none`, or a name is wrong.
        """
        checkpoint = Checkpoint.open(model)
        head = LMHead.load(checkpoint, dtype)
        tokenizer = load_tokenizer(checkpoint)
        eos = eos_token_ids(checkpoint, tokenizer)
        loaded = load_drafter(drafter, TargetModel(checkpoint, head, tokenizer, dtype))
        if loaded is None:
            raise BadRequestError(
                f"--drafter is {drafter_label(drafter)}, but a benchmark needs a drafter: name one"
            )
        between = tuple(_load_middle(middle, tokenizer, head.vocab_size) for middle in middles)
        return cls(checkpoint, head, loaded, tokenizer, eos, model, drafter, between, tuple(middles), dtype)

    def fingerprints(self) -> dict[str, Any]:
        """Return digests of the models' weights, by the role of the model."""
        middles = [middle.fingerprint for middle in self.middles]
        return {
            "model": self.checkpoint.fingerprint,
            "drafter": self.drafter_fingerprint,
            **({"middles": middles} if middles else {}),
        }

    @property
    def drafter_fingerprint(self) -> str:
        return self.drafter.fingerprint

    @property
    def parameters(self) -> int | None:
        """The number of the target's parameters; None where they are stored quantised."""
        stored = self.checkpoint
        if stored.quant != "none" or stored.integer_format is not None:
            return None
        return sum(math.prod(stored.shape(name)) for name in stored.names)

    @property
    def max_positions(self) -> int:
        return max_positions(self.checkpoint.config)

    def encode(self, message: str) -> tuple[int, ...]:
        """Return the tokens of a chat with this user message, up to the start of the answer."""
        return tuple(encode_chat(self.tokenizer, message))

    def drafter_for(self, share: DraftShare) -> Drafter:
        """Return the drafter over a part of the target's vocabulary, in a format. Each is loaded once.

        The part has the most frequent tokens, by the target's ranking among the profiles.

        Raises:
            BadRequestError: when no ranking of the target's tokens is shipped.
        """
        if share == WHOLE:
            return self.drafter
        if share not in self._drafters:
            self._drafters[share] = self._loaded(share)
        return self._drafters[share]

    def _loaded(self, share: DraftShare) -> Drafter:
        vocabulary, vocab_size = None, self.head.vocab_size
        if share.share < 1:
            ranking = library.token_ranking(self.checkpoint.fingerprint)
            ids = np.array(ranking.ids[: priced_tokens(share.share, vocab_size)], dtype=np.int64)
            vocabulary = DraftVocabulary(ids, vocab_size)
        target = TargetModel(
            self.checkpoint,
            self.head,
            self.tokenizer,
            torch.float32,
            form=DrafterFormat(share.quant),
            vocabulary=vocabulary,
        )
        drafter = load_drafter(self.drafter_names, target)
        assert drafter is not None  # `load` has loaded it whole
        return drafter

    def middle_parts(self, counts: Sequence[int]) -> list[list[LanguageModel]]:
        """Return each middle model as the parts that so many devices hold. Each division is loaded once.

        Raises:
            BadRequestError: when a middle model has fewer layers than devices.
        """
        return [self._divided(place, count) for place, count in enumerate(counts)]

    def _divided(self, place: int, count: int) -> list[LanguageModel]:
        key = (place, count)
        if key not in self._middle_parts:
            middle = self.middles[place]
            ranges = layer_ranges(even_split(middle.block.stop, count))
            self._middle_parts[key] = middle.parts(ranges)
        return self._middle_parts[key]

    def blocks(self, split: tuple[int, ...]) -> list[LayerBlock]:
        """Return the target's layers in blocks of these sizes. Each split is loaded once."""
        if split not in self._blocks:
            self._blocks[split] = load_blocks(self.checkpoint, split)
        return self._blocks[split]


def _load_middle(middle: str, tokenizer: Any, vocab_size: int) -> LanguageModel:
    _, checkpoint = WholeModel.matching(PipelineConfig(model=middle), tokenizer, vocab_size=vocab_size)
    return LanguageModel.load(checkpoint, vocab_size, torch.float32)
