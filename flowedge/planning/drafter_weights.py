"""The matrices of a drafter that is a model, from which its costs and its memory follow."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.planning.profile.model import (
    BlockSize,
    DrafterSize,
    Eagle3Size,
    EagleSize,
    LayerSize,
    ModelProfile,
    PricedQuant,
    weight_bytes,
)


@dataclass(frozen=True)
class DrafterWeights:
    """The matrices of a drafter for one model, counted in weights.

    Attributes:
        layer, layers: one decoder layer, and the number of layers.
        fc: weights of the matrix before the layers, through which true rows pass.
        fc_for_draft_rows: whether draft rows pass through it too.
        vocab: tokens that it can propose.
        lm_head: weights of the LM head over these tokens.
        owns_lm_head: whether it holds that LM head, which is not the model's.
        tables: weights that the draft node holds for it alone and that no product reads: its token embedding,
            and a language model's whole LM head beside a copy.
        quant: the format of the layers, of `fc` and of the LM head.
        adds_seen: whether it also proposes the tokens of a session's text that its vocabulary lacks.
        bias: weights of a matrix that the nodes of a tree pass through beside the LM head.
    """

    layer: LayerSize
    layers: int
    fc: int
    fc_for_draft_rows: bool
    vocab: int
    lm_head: int
    owns_lm_head: bool
    tables: int
    quant: PricedQuant
    adds_seen: bool = False
    bias: int = 0

    @classmethod
    def of(
        cls,
        model: ModelProfile,
        drafter: DrafterSize,
        tokens: int | None = None,
        quant: PricedQuant = "none",
    ) -> DrafterWeights:
        """Return the matrices of a drafter of this model.

        An EAGLE head is as wide as the model, and has no experts: its MLP is as wide as those of a row.

        Args:
            tokens: that a drafter without a vocabulary of its own proposes; None for all.
            quant: the format of all matrices that products read. A copy of the LM head is held in another
                format than the model's, or over fewer tokens.
        """
        layer, table = LayerSize.of(model).plain, model.vocab * model.hidden
        match drafter:
            case EagleSize():
                fc, vocab = 2 * model.hidden**2, model.vocab if tokens is None else tokens
                part = vocab < model.vocab
                copied = part or quant != "none"
                return cls(layer, 1, fc, True, vocab, vocab * model.hidden, copied, table, quant, part)
            case Eagle3Size():
                wider = layer.model_copy(update={"attended": 2})
                fc, vocab = 3 * model.hidden**2, drafter.draft_vocab
                return cls(wider, 1, fc, False, vocab, vocab * model.hidden, True, table, quant)
            case BlockSize():
                fc, vocab = drafter.taps * model.hidden**2, model.vocab if tokens is None else tokens
                part = vocab < model.vocab
                copied, rank = part or quant != "none", drafter.markov_rank
                return cls(
                    layer,
                    drafter.layers,
                    fc,
                    False,
                    vocab,
                    vocab * model.hidden,
                    copied,
                    table + rank * model.vocab,
                    quant,
                    part,
                    bias=rank * model.vocab,
                )
        own = drafter.vocab * drafter.hidden
        sizes = LayerSize.of(drafter, model.stored_bytes)
        vocab = drafter.vocab if tokens is None else min(tokens, drafter.vocab)
        part = vocab < drafter.vocab
        tables = 2 * own if part or quant != "none" else own
        return cls(sizes, drafter.layers, 0, False, vocab, vocab * drafter.hidden, True, tables, quant, part)

    def held_bytes(self, stored_bytes: int) -> float:
        """Return the bytes that the draft node holds beside the model's LM head."""
        own_head = self.lm_head if self.owns_lm_head else 0
        matrices = self.layers * self.layer.weights + self.fc + own_head + self.bias
        return matrices * weight_bytes(self.quant, stored_bytes) + self.tables * stored_bytes
