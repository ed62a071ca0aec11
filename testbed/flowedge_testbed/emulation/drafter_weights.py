"""The matrices of a drafter that is a model, from which its costs and its memory follow."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.profiling.documents.model import DrafterSize, Eagle3Size, EagleSize, LayerSize, ModelProfile


@dataclass(frozen=True)
class DrafterWeights:
    """The matrices of a drafter for one model, counted in weights.

    Attributes:
        layer, layers: one decoder layer, and the number of layers.
        fc: weights of the matrix before the layers, through which true rows pass.
        fc_for_draft_rows: whether draft rows pass through it too.
        vocab: tokens that it can propose.
        lm_head: weights of the LM head over these tokens.
        owns_lm_head: whether the LM head is its own, and not the model's.
        embedding: weights of its token embedding, which the draft node holds for it alone.
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
        """Return the matrices of a drafter of this model; an EAGLE head is as wide as the model."""
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
        """Weights that the draft node holds beside the model's LM head."""
        own_head = self.lm_head if self.owns_lm_head else 0
        return self.layers * self.layer.weights + self.fc + own_head + self.embedding
