"""The parts of layers in which families differ, by their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]
SLIDING = "sliding_attention"  # a layer type: rows see a window of positions
TILED = "linear_value_heads_tiled"  # of a config.json that is made of a GGUF file; see DeltaNet
# Layer types whose rows read a state that their ancestors have updated.
RECURRENT = frozenset({"linear_attention", "conv"})
MLP_KINDS = frozenset({"mlp", "moe"})  # layer types: rows are mixed with no other row
# What a layer has of attention, or a state in its place, and an MLP.
Half = Literal["both", "mixing", "mlp"]
_VECTOR = 16  # the most numbers of a vector of the kernels


def head_size(config: Any) -> int:
    """The width of one attention head of a transformers config whose layers are alike."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): all heads read one key of each row.

    A key is a latent vector, normed, and a part that rotates. The paper's keys of a head are a matrix times
    the latent vectors. Here that matrix multiplies the head's query instead, so that keys are never made,
    and the head's values are another matrix times the sum of the latent vectors that it attends to. With a
    rank of 512 and 64 rotated numbers, a row is cached as 576 numbers for 20 heads of 256.

    Attributes:
        rank: the width of latent vectors; rotated: of the part of keys and queries that rotates.
        plain: the width of the part of a head's query that does not rotate.
        value: the width of a head's values.
        query_rank: the width of the normed vectors that queries are products of; None where rows are.
        paired: whether the two numbers that an angle turns lie side by side in the projections.
        epsilon: of the norms of latent vectors, and of those of queries.
    """

    rank: int
    rotated: int
    plain: int
    value: int
    query_rank: int | None
    paired: bool
    epsilon: float = 1e-6  # that of transformers' class, which configs do not change

    @property
    def query(self) -> int:
        """The width of a head's query before its product with the matrix."""
        return self.plain + self.rotated


@dataclass(frozen=True)
class Clamp:
    """Bounds of gates and values of gpt-oss's experts: (value + 1) * gate * sigmoid(slope * gate).

    Attributes:
        limit: the most of a gate, and of the magnitude of a value.
        slope: the factor on gates within the sigmoid.
    """

    limit: float
    slope: float


@dataclass(frozen=True)
class KeyHeads:
    """The heads of keys, and of values, that a layer caches: how many, and their width."""

    count: int
    size: int


def key_heads(config: Any) -> tuple[KeyHeads, ...]:
    """The heads of keys of each layer of a transformers config."""
    if rank := getattr(config, "kv_lora_rank", None):  # see Latent
        return (KeyHeads(1, int(rank) + int(config.qk_rope_head_dim)),) * int(config.num_hidden_layers)
    varied = getattr(config, "is_heterogeneous", False)
    layers = config.per_layer_config if varied else [config] * int(config.num_hidden_layers)
    return tuple(
        KeyHeads(int(own.num_key_value_heads or own.num_attention_heads), head_size(own)) for own in layers
    )


@dataclass(frozen=True)
class Experts:
    """The experts of a layer's MLP, and how a router chooses those of a row.

    Attributes:
        count: experts of a layer; chosen: experts that a row is computed by.
        intermediate: the width of an expert's hidden values.
        normalised: whether the weights of a row's experts are divided by their sum and `least_sum`.
        rounded: whether the weights, and scores by a sigmoid, are rounded to the dtype of the rows.
        layers: whether each layer of the model has experts.
        scores: the function of the router's products that weighs experts.
        choice_bias: whether a number of each expert is added to its score where experts are chosen, and not
            where they are weighed.
        scale: the factor on weights.
        biases: whether the router and the linear layers of experts have biases.
        clamp: the bounds of gates and values, in place of the activation; None for no bounds.
        shared: the width of the hidden values of one more expert, which computes every row; 0 for none.
        shared_gate: whether a gate of its own weighs the shared expert; otherwise its weight is 1.
        unrounded: whether the router's products keep float32.
        beside_mlp: whether the experts are computed beside an MLP, with norms of their own, by a router that
            norms its rows and scales the weights of experts.
    """

    count: int
    chosen: int
    intermediate: int
    normalised: bool
    rounded: bool
    layers: tuple[bool, ...]
    scores: Literal["softmax", "sigmoid"] = "softmax"
    choice_bias: bool = False
    least_sum: float = 0.0
    scale: float = 1.0
    biases: bool = False
    clamp: Clamp | None = None
    shared: int = 0
    shared_gate: bool = True
    unrounded: bool = False
    beside_mlp: bool = False


@dataclass(frozen=True)
class LinearRecurrence:
    """Layers whose rows update a matrix for each head by a key and a value, and read it by a query.

    Attributes:
        key_heads: heads of queries and keys, each `key_size` wide.
        value_heads: heads of values, each `value_size` wide; as many of them as another share a key head.
        inputs: rows of a path that the convolution before it reads, the row's own included.
        layers: whether each layer of the model is one of these.
        tiled: whether the heads of values that share a key head lie `key_heads` apart, as in GGUF files of
            delta nets; otherwise they lie side by side.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    inputs: int
    layers: tuple[bool, ...]
    tiled: bool = False

    @property
    def keys(self) -> int:
        """The values of all keys of a row."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """The values of all heads of values of a row."""
        return self.value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """The values of a row that are convolved: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def row_values(self) -> int:
        """The values by which a row updates: those that are convolved, a rate and a decay of each head."""
        return self.convolved + 2 * self.value_heads

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of the state of a layer; zeros follow the values up to whole vectors of the kernels."""
        width = -(-self.value_size // _VECTOR) * _VECTOR
        return self.value_heads, self.key_size, width


@dataclass(frozen=True)
class DeltaNet(LinearRecurrence):
    """The gated delta net (Yang et al., arXiv 2412.06464)."""


@dataclass(frozen=True)
class Mamba2(LinearRecurrence):
    """The state space of Mamba-2 (Dao and Gu, arXiv 2405.21060): C, B and x are queries, keys and values.

    Attributes:
        convolution_bias: whether the convolution has a bias.
    """

    convolution_bias: bool = True


@dataclass(frozen=True)
class ShortConvolution:
    """The gated short convolution of LFM2's layers, which reads the rows of a path and has no other state.

    Attributes:
        row_values: the values of a row that are convolved.
        inputs, layers: as of DeltaNet.
    """

    row_values: int
    inputs: int
    layers: tuple[bool, ...]
    state_shape: tuple[int, ...] = (0,)


Recurrence = DeltaNet | Mamba2 | ShortConvolution
