"""Profile of a model: its sizes, and those of its drafters."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import Quantisation
from flowedge.models.families.family import Family
from flowedge.models.families.parts import DeltaNet, Latent, Recurrence, ShortConvolution
from flowedge.models.families.table import FAMILIES
from flowedge.planning.profile.unlike_layers import UnlikeLayers

Size = Annotated[int, Field(ge=1, le=1 << 20)]
Count = Annotated[int, Field(ge=0, le=1 << 12)]

STORED_BYTES = 2  # of an fp16 weight, an element of the KV cache and an element of a hidden state

StoredDtype = Literal["float16", "bfloat16", "float32"]
DTYPE_BYTES: dict[str, int] = {"float16": STORED_BYTES, "bfloat16": STORED_BYTES, "float32": 4}

_NOT_PRICED = ("n_routed_experts", "kv_lora_rank")  # keys of configs of families that are not known

PricedQuant = Literal["none", "int8", "int4"]  # of a drafter

WEIGHT_BYTES: dict[str, float] = {
    "none": STORED_BYTES,
    "int8": 1.016,  # and a scale for each group
    "llm-int8": 1.0,  # and one scale for each row, too little to count
    "nf4": 0.5 + 4 / 64,  # bitsandbytes: 4 bits, and one fp32 scale for 64 weights
    "fp4": 0.5 + 4 / 64,
    "nf4-dq": 0.5 + 1 / 64 + 4 / 64 / 256,  # the scales in 8 bits, with one fp32 scale for 256 of them
    "fp4-dq": 0.5 + 1 / 64 + 4 / 64 / 256,
    "int4": 0.5 + 4 / 64,  # 4 bits, and a scale and a zero in bf16 for 64 weights
    "w8a16": 1.0,  # and one scale for each row, too little to count
}

# Products read these weights as they are stored; others are unpacked or rounded first.
READ_AS_STORED: frozenset[str] = frozenset({"none", "int4", "w8a16"})


def weight_bytes(quant: Quantisation, stored_bytes: int = STORED_BYTES) -> float:
    """Return the bytes of one weight of a layer; an unquantised weight takes `stored_bytes`."""
    return stored_bytes if quant == "none" else WEIGHT_BYTES[quant]


def like_quant(bytes_per_weight: float) -> Literal["none", "int8", "int4"]:
    """Return the quantisation that is the most like weights of so many bytes, as a GGUF file holds them."""
    return "int4" if bytes_per_weight < 0.8 else "int8" if bytes_per_weight < 1.4 else "none"


class YamlDocument(BaseModel):
    """Base of documents that are read from YAML: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class SourcedDocument(YamlDocument):
    """Base of profiles, which have a title and the source of their values."""

    title: str
    source: str


class ExpertSizes(YamlDocument):
    """The experts of an MLP: how many there are, and how many of them compute a row."""

    count: Size
    chosen: Size

    def touched(self, rows: int) -> float:
        """Return how many experts are expected to compute at least one of so many rows.

        Each row is taken to choose without regard to the others, so that this is rather too many.
        """
        return self.count * (1 - (1 - self.chosen / self.count) ** rows)


class NoExpertsSizes(YamlDocument):
    """The layers without experts of a model whose other layers have experts.

    Attributes:
        layers: their indices.
        intermediate: width of their MLPs.
    """

    layers: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1 << 12)]
    intermediate: Size


class LatentSizes(YamlDocument):
    """Latent attention; attributes as of Latent in families/parts.py, but `query_rank` is 0 for None."""

    rank: Size
    rotated: Size
    plain: Size
    value: Size
    query_rank: Count = 0

    @classmethod
    def of(cls, latent: Latent) -> LatentSizes:
        sizes = {name: getattr(latent, name) for name in ("rank", "rotated", "plain", "value")}
        return cls(**sizes, query_rank=latent.query_rank or 0)

    def weights(self, hidden: int, heads: int) -> int:
        """Return the number of weights of a layer's attention."""
        queries, width = heads * (self.plain + self.rotated), self.query_rank
        of_queries = width * (hidden + queries) if width else hidden * queries
        of_keys = hidden * (self.rank + self.rotated) + heads * (self.plain + self.value) * self.rank
        return of_queries + of_keys + heads * self.value * hidden


class StateSizes(YamlDocument):
    """The layers of a model that have a state in place of keys and values.

    Attributes:
        layers: their indices.
        inputs: rows of a path that the convolution of such a layer reads.
        key_heads, value_heads, key_size, value_size: of a gated delta net; 0 for a gated short convolution.
    """

    layers: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1 << 12)]
    inputs: Size
    key_heads: Count = 0
    value_heads: Count = 0
    key_size: Count = 0
    value_size: Count = 0

    @classmethod
    def of(cls, net: Recurrence) -> StateSizes | None:
        """Return the sizes of a model's recurrent layers; None where it has none.

        Raises:
            BadRequestError: when they are of a kind that has no prices yet.
        """
        layers = tuple(index for index, recurs in enumerate(net.layers) if recurs)
        if not layers:
            return None
        if len(layers) == len(net.layers):
            raise BadRequestError("models without attention cannot be planned yet")
        if isinstance(net, ShortConvolution):
            return cls(layers=layers, inputs=net.inputs)
        if type(net) is not DeltaNet:
            raise BadRequestError(f"models with layers of {type(net).__name__} cannot be planned yet")
        sizes = {name: getattr(net, name) for name in ("key_heads", "value_heads", "key_size", "value_size")}
        return cls(layers=layers, inputs=net.inputs, **sizes)

    def net(self, hidden: int) -> DeltaNet | ShortConvolution:
        """Return the computation of such a layer in a model of this width."""
        if not self.key_heads:
            return ShortConvolution(hidden, self.inputs, ())
        return DeltaNet(self.key_heads, self.value_heads, self.key_size, self.value_size, self.inputs, ())

    def weights(self, hidden: int) -> int:
        """Return the number of weights of the projections that such a layer has in place of attention's."""
        net = self.net(hidden)
        if isinstance(net, ShortConvolution):
            return 4 * hidden * hidden
        values = self.value_heads * self.value_size
        return hidden * (net.row_values + 2 * values)

    @property
    def step_operations(self) -> int:
        """Operations of one update of a state: it fades, is corrected by the key and value, and is read."""
        return 7 * self.value_heads * self.key_size * self.value_size

    @property
    def kind(self) -> dict[str, int]:
        """What two models with such layers have in common whose layers are alike."""
        return self.model_dump(exclude={"layers"})


class LayerSizes(YamlDocument):
    """The sizes of a Llama decoder layer, or of one whose MLP is a mixture of experts.

    Attributes:
        intermediate: width of the MLP, or of one expert.
        head_dim: size of an attention head; None for an equal share of the hidden size. Gemma 3 270M has 4
            heads of 256 at a hidden size of 640.
        output_gate: whether queries come with as many gates, as in Qwen 3.5.
        states: the layers without attention; None where all have it.
        dense: the layers without experts; None where all layers are alike in this.
        latent: the sizes of latent attention, whose one key head has the width `head_dim`; None for others.
        kv_values: values of the keys and values of a row in a layer, on average over layers that differ;
            None for those of its heads.
    """

    hidden: Size
    intermediate: Size
    heads: Size
    kv_heads: Size
    head_dim: Size | None = None
    experts: ExpertSizes | None = None
    output_gate: bool = False
    states: StateSizes | None = None
    dense: NoExpertsSizes | None = None
    latent: LatentSizes | None = None
    kv_values: Size | None = None

    @classmethod
    def sizes_in(cls, config: Any) -> dict[str, Any]:
        """Return the values of these fields in a config of transformers.

        Raises:
            BadRequestError: when its layers are of another kind, or not all alike.
        """
        family = FAMILIES.get(str(getattr(config, "model_type", "")))
        special = [key for key in _NOT_PRICED if getattr(config, key, None)]
        if special and (family is None or family.latent is None):
            raise BadRequestError(f"models with {special[0]} in their config cannot be planned yet")
        if (unlike := UnlikeLayers.of(config)) is not None:
            mixture = unlike.experts
            return {
                "hidden": config.hidden_size,
                "intermediate": unlike.intermediate,
                "heads": config.num_attention_heads,
                "kv_heads": unlike.kv_heads,
                "head_dim": unlike.head_dim,
                "experts": None if mixture is None else {"count": mixture[0], "chosen": mixture[1]},
                "kv_values": unlike.kv_values,
            }
        own: dict[str, Any] = {
            "hidden": config.hidden_size,
            "intermediate": getattr(config, "intermediate_size", None),
            "heads": config.num_attention_heads,
            "kv_heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            "head_dim": getattr(config, "head_dim", None),
        }
        return own if family is None else own | _of_family(family, config)

    @model_validator(mode="after")
    def _heads_divide(self) -> LayerSizes:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} and heads {self.heads} do not divide; give head_dim")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} and kv_heads {self.kv_heads} do not divide")
        if self.experts is not None and self.experts.chosen > self.experts.count:
            raise ValueError(f"{self.experts.chosen} of {self.experts.count} experts cannot be chosen")
        return self

    @property
    def head_size(self) -> int:
        """Size of an attention head, as its keys and values are cached."""
        return self.head_dim or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of the queries of a row, and of what attention gives for it."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Width of the keys of a row, and of its values."""
        return self.kv_heads * self.head_size


def _of_family(family: Family, config: Any) -> dict[str, Any]:
    """The values of the fields of LayerSizes in which a family differs from Llama.

    Raises:
        BadRequestError: when its layers are of a kind that has no prices yet.
    """
    mixture = None if family.experts is None else family.experts(config)
    net = None if family.recurrence is None else family.recurrence(config)
    found: dict[str, Any] = {
        "output_gate": family.output_gate,
        "states": None if net is None else StateSizes.of(net),
    }
    if family.latent is not None:
        latent = family.latent(config)
        heads = {"kv_heads": 1, "head_dim": latent.rank + latent.rotated}
        found |= {"latent": LatentSizes.of(latent), **heads}
    if mixture is None or not any(mixture.layers):
        return found | {"intermediate": family.intermediate(config)}
    # Those that compute every row.
    shared = max(1, round(mixture.shared / mixture.intermediate)) if mixture.shared else 0
    dense = tuple(index for index, has_experts in enumerate(mixture.layers) if not has_experts)
    return found | {
        "intermediate": mixture.intermediate,
        "experts": ExpertSizes(count=mixture.count + shared, chosen=mixture.chosen + shared),
        "dense": NoExpertsSizes(layers=dense, intermediate=family.intermediate(config)) if dense else None,
    }


class EagleSize(YamlDocument):
    """An EAGLE-1/2 head: fc over [embedding, hidden] and one decoder layer, with the target's LM head."""

    kind: Literal["eagle"]


class Eagle3Size(YamlDocument):
    """An EAGLE-3 head: fc over three hidden states, one decoder layer, and an LM head of its own.

    Attributes:
        draft_vocab: number of tokens that it can propose.
    """

    kind: Literal["eagle3"]
    draft_vocab: int = Field(ge=1)


class BlockSize(YamlDocument):
    """A block head: fc over some hidden states, and decoder layers over blocks, with the target's LM head.

    Attributes:
        size: rows of a block; depths: of the tokens that a block predicts.
        layers: decoder layers; taps: hidden states that fc reads.
        markov_rank: of the bias that a token adds to the logits of the next; 0 for none.
    """

    kind: Literal["block"]
    size: int = Field(ge=2)
    depths: int = Field(ge=1)
    layers: int = Field(ge=1)
    taps: int = Field(ge=1)
    markov_rank: int = Field(ge=0, default=0)


class SmallModelSize(LayerSizes):
    """A small language model that drafts, with an LM head of its own."""

    kind: Literal["small_lm"]
    layers: int = Field(ge=1)
    vocab: int = Field(ge=2)


DrafterSize = EagleSize | Eagle3Size | BlockSize | SmallModelSize


class NGramSize(YamlDocument):
    """Lookup in the session's own tokens: no weights, and the same small time with every model."""

    kind: Literal["ngram"]


class RecallSize(YamlDocument):
    """An EAGLE head's errors in a session, which are read for each forward of the head."""

    kind: Literal["recall"]


DraftingSize = DrafterSize | NGramSize | RecallSize


class ModelProfile(LayerSizes, SourcedDocument):
    """A model of Llama's architecture or one that differs as LayerSizes can say, by its sizes.

    Attributes:
        dtype: of weights that are not quantised, of the KV cache and of hidden states on the wire.
        carried: by layer, values that rows carry into it beside the hidden state; empty for none.
        token_values: weights of a table beside the embedding, of which each token reads a row.
        drafters: drafters of the model, by name; the first is the default.
    """

    layers: int = Field(ge=1)
    vocab: int = Field(ge=2)
    tied_embedding: bool = False
    dtype: StoredDtype = "float16"
    carried: tuple[int, ...] = ()
    token_values: int = Field(default=0, ge=0)
    drafters: dict[str, DrafterSize] = Field(min_length=1)

    @model_validator(mode="after")
    def _unlike_layers_are_layers(self) -> ModelProfile:
        for what, some in (("a state", self.states), ("no experts", self.dense)):
            if some is not None and max(some.layers) >= self.layers:
                raise ValueError(f"layer {max(some.layers)} has {what}, and there are {self.layers} layers")
        return self

    @property
    def stored_bytes(self) -> int:
        """Bytes of an unquantised weight, and of an element of the KV cache or of a hidden state."""
        return DTYPE_BYTES[self.dtype]

    def kinds(self, start: int = 0, stop: int | None = None) -> list[tuple[LayerSize, int]]:
        """Return each kind of layer in [start, stop), all layers if not given, with how many there are."""
        recurrent = set() if self.states is None else {*self.states.layers}
        dense = set() if self.dense is None else {*self.dense.layers}
        found = Counter((index in dense, index in recurrent) for index in range(self.layers)[start:stop])
        layer = LayerSize.of(self)
        return [(layer.kind_of(*kind), count) for kind, count in sorted(found.items())]

    def carried_into(self, layer: int) -> int:
        """Return the values that rows carry beside the hidden state into a layer, or behind the last."""
        return self.carried[layer] if layer < len(self.carried) else 0

    def embedding_bytes(self, quant: Quantisation) -> float:
        """Return the bytes of the embedding, and of the table beside it, as a first stage holds them."""
        stored = self.stored_bytes
        beside = WEIGHT_BYTES["int8"] if quant in ("int8", "int4") else stored
        return float(self.vocab * self.hidden * stored) + self.token_values * beside


class LayerSize(LayerSizes):
    """Sizes of one decoder layer; `stored_bytes` as in ModelProfile.

    Attributes:
        attended: vectors of width `hidden` that q, k and v are computed from; 2 in an EAGLE-3 head.
        recurs: whether it is one of the layers that have a state.
        is_dense: whether it is one of the layers without experts.
    """

    stored_bytes: int = STORED_BYTES
    attended: int = 1
    recurs: bool = False
    is_dense: bool = False

    @classmethod
    def of(cls, sizes: ModelProfile | SmallModelSize, stored_bytes: int | None = None) -> LayerSize:
        """Return the sizes of a layer; `stored_bytes` replaces the bytes that a model's dtype takes."""
        own = sizes.stored_bytes if isinstance(sizes, ModelProfile) else STORED_BYTES
        layer = sizes.model_dump(include=set(LayerSizes.model_fields))
        return cls(**layer, stored_bytes=own if stored_bytes is None else stored_bytes)

    @property
    def weights(self) -> int:
        """Number of weights of q, k, v, o and of the three MLP matrices, of all experts with their router."""
        return int(self._weights_of(1 if self.experts is None else self.experts.count))

    @property
    def weights_of_row(self) -> float:
        """Number of weights by which a row is multiplied."""
        return self._weights_of(1 if self.experts is None else self.experts.chosen)

    def weights_read(self, rows: int) -> float:
        """Return how many weights so many rows are multiplied by together; see ExpertSizes.touched."""
        return self._weights_of(1 if self.experts is None else self.experts.touched(rows))

    def kind_of(self, is_dense: bool, recurs: bool) -> LayerSize:
        """Return the layer without experts or with a state in place of attention."""
        changes: dict[str, Any] = {"recurs": recurs and self.states is not None}
        if is_dense and self.dense is not None:
            changes |= {"is_dense": True, "experts": None, "intermediate": self.dense.intermediate}
        return self.model_copy(update=changes)

    @property
    def plain(self) -> LayerSize:
        """A layer with attention and without experts and gates; its MLP is as wide as those of a row."""
        width = self.intermediate * (1 if self.experts is None else self.experts.chosen)
        changes: dict[str, Any] = {"intermediate": width, "experts": None, "output_gate": False}
        changes |= {"states": None, "dense": None, "latent": None}
        if self.latent is not None:
            changes |= {"kv_heads": self.heads, "head_dim": self.latent.value}
        return self.model_copy(update=changes)

    def _weights_of(self, experts: float) -> float:
        router = 0 if self.experts is None else self.experts.count * self.hidden
        return self._mixer_weights + router + experts * 3 * self.hidden * self.intermediate

    @property
    def _mixer_weights(self) -> int:
        """Number of weights of what mixes a row with others: attention, or what there is in its place."""
        if self.recurs and self.states is not None:
            return self.states.weights(self.hidden)
        if self.latent is not None:
            return self.latent.weights(self.hidden, self.heads)
        queries = self.query_width * (2 if self.output_gate else 1)
        inputs = self.attended * self.hidden * (queries + 2 * self.kv_width)
        return inputs + self.query_width * self.hidden

    @property
    def kv_bytes_per_row(self) -> int:
        return 0 if self.recurs else (self.kv_values or 2 * self.kv_width) * self.stored_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, which is in float32; 0 for a layer with attention."""
        if not self.recurs or self.states is None:
            return 0
        return math.prod(self.states.net(self.hidden).state_shape) * 4
