"""What was measured on a device for one model, beside the roofline that serves every model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.profiling.documents.document import YamlDocument
from flowedge.profiling.documents.model import (
    DrafterSize,
    EagleSize,
    LayerSize,
    ModelProfile,
    Quantisation,
    StoredDtype,
)

Table = dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]]  # rows: milliseconds


class MeasuredDraftTimes(YamlDocument):
    """The jobs of a draft node with an EAGLE head, in milliseconds.

    Attributes:
        extend_ms: forward of the head over so many true rows.
        grow_ms: one tree layer of so many frontier nodes, with the LM head and the choice of children.
        root_ms: the root's children, which need no forward of the head.
    """

    extend_ms: Table = Field(min_length=1)
    grow_ms: Table = Field(min_length=1)
    root_ms: float = Field(gt=0)


class MeasuredTimes(YamlDocument):
    """Times on one device, and the sizes, dtype and quantisation that they hold for.

    Attributes:
        cached_rows: rows that were in the cache; each row measured saw them all.
        layer_ms: one decoder layer by rows, with its share of what a stage does once a segment.
        verify_ms: LM head and sampling walk by rows.
        draft: None where no drafter was measured.
    """

    hidden: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    vocab: int = Field(ge=2)
    dtype: StoredDtype
    quant: Quantisation
    cached_rows: int = Field(ge=0)
    layer_ms: Table = Field(min_length=1)
    verify_ms: Table = Field(default_factory=dict)
    draft: MeasuredDraftTimes | None = None

    def holds_for_layers(self, model: ModelProfile, quant: Quantisation) -> bool:
        """Whether a layer of the model is of the sizes, the dtype and the quantisation measured."""
        sizes = (self.hidden, self.intermediate, self.heads, self.kv_heads)
        layer = LayerSize.of(model)
        wanted = (layer.hidden, layer.intermediate, layer.heads, layer.kv_heads)
        return (sizes, self.dtype, self.quant) == (wanted, model.dtype, quant)

    def holds_for_head(self, model: ModelProfile) -> bool:
        """Whether the model's LM head, which is never quantised, is of the sizes and the dtype measured."""
        return (self.hidden, self.vocab, self.dtype) == (model.hidden, model.vocab, model.dtype)

    def holds_for_drafter(self, model: ModelProfile, drafter: DrafterSize) -> bool:
        """Whether the drafter is an EAGLE-1/2 head of the model measured."""
        sizes = self.holds_for_layers(model, self.quant) and self.holds_for_head(model)
        return self.draft is not None and isinstance(drafter, EagleSize) and sizes
