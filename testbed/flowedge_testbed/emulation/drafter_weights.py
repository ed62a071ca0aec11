"""What a drafter that is a model consists of, which its price and its memory follow from."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.profiling.documents.model import DrafterSize, Eagle3Size, EagleSize, LayerSize, ModelProfile


@dataclass(frozen=True)
class DrafterWeights:
    """The matrices of a drafter for one model, counted in weights.

    Attributes:
        layer, layers: one decoder layer, and how many there are.
        fc: of the matrix before them, which draft rows pass through if `fc_for_draft_rows`; true rows do.
        lm_head: of the LM head over its vocabulary; owns_lm_head: whether that is not the model's.
        embedding: of its token embedding, which it may share with nobody on the draft node.
    """

    layer: LayerSize
    layers: int
    fc: int
    fc_for_draft_rows: bool
    vocab: int
    lm_head: int
    owns_lm_head: bool
    embedding: int

    @classmethod
    def of(cls, model: ModelProfile, drafter: DrafterSize) -> DrafterWeights:
        """Those of a drafter of this model; an EAGLE head is as wide as the model."""
        layer, table = LayerSize.of(model), model.vocab * model.hidden
        match drafter:
            case EagleSize():
                fc = 2 * model.hidden**2
                return cls(layer, 1, fc, True, model.vocab, table, False, table)
            case Eagle3Size():
                wider = layer.model_copy(update={"attended": 2})
                fc, vocab = 3 * model.hidden**2, drafter.draft_vocab
                return cls(wider, 1, fc, False, vocab, vocab * model.hidden, True, table)
        own = drafter.vocab * drafter.hidden
        sizes = LayerSize.of(drafter, model.stored_bytes)
        return cls(sizes, drafter.layers, 0, False, drafter.vocab, own, True, own)

    @property
    def held(self) -> int:
        """All that the draft node holds beside the model's LM head."""
        own_head = self.lm_head if self.owns_lm_head else 0
        return self.layers * self.layer.weights + self.fc + own_head + self.embedding
