"""The form in which a draft node holds the models that draft. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.pipeline_config import ALL, AUTO, DraftQuant, PipelineConfig, VocabularySize

LARGE_VOCABULARY = 1 << 16  # tokens; the LM head of a smaller vocabulary is no large part of a draft forward
AUTO_TOKENS = 1 << 15  # of a large vocabulary


@dataclass(frozen=True)
class DrafterFormat:
    """How drafters that are models are held. Drafts decide no token, so no output depends on it.

    Attributes:
        quant: the format of their layers, and of the copy of the LM head that they propose with; auto: the
            fastest on the device, and fewer bits where memory is short.
        vocabulary: the number of tokens that they propose, the most frequent of the target's output; all: the
            whole vocabulary; auto: a part of large
            vocabularies on a CPU.
        saves_memory: whether the LM head is copied only where the copy takes no more than the format saves in
            the layers. An automatic format always saves memory.
    """

    quant: DraftQuant = "auto"
    vocabulary: VocabularySize = "auto"
    saves_memory: bool = False

    @classmethod
    def of(cls, config: PipelineConfig) -> DrafterFormat:
        """Return the form that the settings of a pipeline ask for."""
        return cls(config.draft_quant, config.draft_vocabulary)

    @property
    def limits_copy(self) -> bool:
        """Whether a copy of the LM head may take no more than the format saves in the layers."""
        return self.saves_memory or self.quant == AUTO

    def in_less_memory(self) -> tuple[DrafterFormat, ...]:
        """Return the forms to try where this form does not fit the memory, the largest first."""
        if self.quant != AUTO:
            return ()
        return DrafterFormat("int8", self.vocabulary, True), DrafterFormat("int4", self.vocabulary, True)

    def tokens(self, vocab_size: int, device: str = "cpu") -> int:
        """Return the number of tokens that a drafter is to propose, of a target's `vocab_size`.

        Args:
            device: the type of torch's device that drafts. On a GPU the LM head takes too little time for a
                part of the tokens to pay (docs/drafters.md).
        """
        size = self.vocabulary
        if size == ALL or (size == AUTO and (vocab_size < LARGE_VOCABULARY or device != "cpu")):
            return vocab_size
        return min(AUTO_TOKENS if isinstance(size, str) else size, vocab_size)


DEFAULT_FORMAT = DrafterFormat()
