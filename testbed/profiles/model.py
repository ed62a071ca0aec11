"""The size of an emulated model and of its drafters; the tokens come from the real pair."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from testbed.profiles.document import Document

STORED_BYTES = 2  # of an fp16 weight, a KV element and a hidden state element

Quantisation = Literal["none", "int8", "nf4", "fp4", "int4"]

WEIGHT_BYTES: dict[str, float] = {
    "none": STORED_BYTES,
    "int8": 1.0,  # and one scale a row, which is too little to count
    "nf4": 0.5 + 4 / 64,  # bitsandbytes: 4 bits, and one fp32 scale for 64 weights
    "fp4": 0.5 + 4 / 64,
    "int4": 0.5 + 4 / 64,  # 4 bits, and a scale and a zero in bf16 for 64 weights
}


class EagleSize(Document):
    """An EAGLE-1/2 head: fc over [embedding, hidden] and one decoder layer; it shares the LM head."""

    kind: Literal["eagle"]


class SmallModelSize(Document):
    """A small language model that drafts, with an LM head of its own."""

    kind: Literal["small_lm"]
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    vocab: int = Field(ge=2)


class ModelProfile(Document):
    """A Llama-architecture model by its sizes.

    Attributes:
        drafters: the drafters it is run with, by name; the first is the default.
    """

    title: str
    source: str
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    vocab: int = Field(ge=2)
    tied_embedding: bool = False
    drafters: dict[str, EagleSize | SmallModelSize] = Field(min_length=1)

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelProfile:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden {self.hidden}, heads {self.heads} and kv_heads {self.kv_heads} do not divide"
            )
        return self


class LayerSize(Document):
    """One decoder layer's sizes, with what follows from them."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int

    @classmethod
    def of(cls, sizes: ModelProfile | SmallModelSize) -> LayerSize:
        return cls(
            hidden=sizes.hidden,
            intermediate=sizes.intermediate,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
        )

    @property
    def kv_width(self) -> int:
        return self.hidden // self.heads * self.kv_heads

    @property
    def weights(self) -> int:
        """Weights of q, k, v, o and of the three MLP matrices."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width
        return attention + 3 * self.hidden * self.intermediate

    @property
    def kv_bytes_per_row(self) -> int:
        return 2 * self.kv_width * STORED_BYTES
