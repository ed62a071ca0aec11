"""The part of a vocabulary that an emulated drafter proposes, and the same part of the real one."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.planning.profile.model import PricedQuant
from flowedge.planning.profile.pipeline import PipelineProfile


@dataclass(frozen=True)
class DraftShare:
    """How the real drafter drafts for an emulated one.

    Attributes:
        share: of the target's tokens, the most frequent first; 1 for all.
        quant: the format of the drafter's layers and of its copy of the LM head.
    """

    share: float = 1.0
    quant: PricedQuant = "none"

    @classmethod
    def of(cls, emulation: PipelineProfile) -> DraftShare:
        """Return the share of its tokens and the format that the emulated drafter has."""
        vocab = emulation.model.vocab
        tokens = vocab if emulation.draft_tokens is None else emulation.draft_tokens
        return cls(tokens / vocab, emulation.draft_quant)


WHOLE = DraftShare()


def priced_tokens(part: float, vocab: int) -> int:
    """Return the number of tokens of a vocabulary that a VocabularyPart stands for."""
    return max(1, min(round(part * vocab if part <= 1 else part), vocab))
