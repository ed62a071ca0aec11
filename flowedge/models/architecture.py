"""What a model computes, read from its config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flowedge.core.errors import CheckpointError
from flowedge.models.families.parts import (
    SLIDING,
    Activation,
    Experts,
    Half,
    KeyHeads,
    Latent,
    Recurrence,
    key_heads,
)

if TYPE_CHECKING:
    from flowedge.models.families.family import Family


# Names of tensors. A decoder layer's tensors have the names of the layer's modules behind `layer_prefix`.
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
LM_HEAD_BIAS = "lm_head.bias"
# Of the rows that layers are given of each token.
LAYER_EMBEDDING = "model.embed_tokens_per_layer.weight"
LAYER_PROJECTION = "model.per_layer_model_projection.weight"
LAYER_INPUT_NORM = "model.per_layer_projection_norm.weight"
LAYER_INPUTS = (LAYER_EMBEDDING, LAYER_PROJECTION, LAYER_INPUT_NORM)
# By the name in config.json.
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}


def layer_prefix(index: int) -> str:
    """The prefix of the tensor names of decoder layer `index`, with its trailing dot."""
    return f"model.layers.{index}."


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder and what its layers compute.

    Attributes:
        hidden: the width of hidden rows; intermediate: that of an MLP's hidden values.
        heads, kv_heads: query heads and key heads of attention, each `head_size` wide.
        full_heads: the key heads of layers that see all positions, where those differ; None where all layers
            are alike.
        windows: by layer, the positions that a row sees, its own included; None for all positions.
        rotated: by layer, whether queries and keys are rotated by their position.
        halves: by layer, whether it mixes rows, by attention or by a state, or has an MLP, or both.
        partial_rotary: whether the rotary parameters may say that a part of each head is rotated.
        scaling: the factor on the products of queries and keys.
        softcap: the bound that tanh keeps the scores within; None for no bound.
        norm_eps: the epsilon of all norms.
        norm_plus_one: whether norms multiply by 1 + weight, in float32 before the result is rounded. Other
            norms round to the dtype of the rows first and multiply then.
        norm_in_float: whether norms that multiply by the weight alone do so in float32, too.
        norms_after: whether a norm follows the attention and the MLP too. The four norms of a layer then are
            input, post_attention, pre_feedforward and post_feedforward.
        query_key_norms: whether queries and keys have a norm of each head's width.
        sinks: whether each head has a score of one more key, whose value is zero.
        value_norm: whether values are normed without a weight.
        keys_as_values: whether layers that see all positions have no values of their own: their values are
            what their keys are made of.
        key_layers: by layer, the layer whose keys and values its queries read: itself, or an earlier layer.
        sharing_intermediate: the width of an MLP's hidden values in layers that read an earlier layer's keys.
        layer_factor: whether the rows that leave a layer are multiplied by a number of the layer.
        layer_input: the width of the row that each layer is given of each token (Gemma 4's per-layer
            embeddings), 0 for none.
        layer_vocab: the tokens that have such a row.
        qkv_bias, output_bias, mlp_bias: whether these linear layers have biases.
        fused: whether checkpoints store the projections that read the same rows as one.
        activation: the activation of the MLP's gate; where it is not `gated`, of its hidden values.
        experts: the experts of layers whose MLP is a mixture; None where no layer's is.
        recurrence: the layers that have a state in place of attention; None where no layer has.
        latent: what latent attention computes around its one key head, which has `kv_heads` and `head_size`;
            None for grouped-query attention.
        output_gate: whether queries come with gates, which the attention's output is multiplied by.
        residual_multiplier: the factor on the results of attention and MLP before they are added.
        embedding_multiplier: the factor on embedded tokens, rounded to their dtype if `embedding_rounded`.
        logits_divisor: the divisor of the LM head's product.
        logits_softcap: the bound that tanh keeps the logits within; None for no bound.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    full_heads: KeyHeads | None
    windows: tuple[int | None, ...]
    rotated: tuple[bool, ...]
    halves: tuple[Half, ...]
    partial_rotary: bool
    scaling: float
    softcap: float | None
    norm_eps: float
    norm_plus_one: bool
    norm_in_float: bool
    norms_after: bool
    query_key_norms: bool
    sinks: bool
    value_norm: bool
    keys_as_values: bool
    key_layers: tuple[int, ...]
    sharing_intermediate: int
    layer_factor: bool
    layer_input: int
    layer_vocab: int
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    fused: bool
    activation: Activation
    gated: bool
    experts: Experts | None
    recurrence: Recurrence | None
    latent: Latent | None
    output_gate: bool
    residual_multiplier: float
    embedding_multiplier: float
    embedding_rounded: bool
    logits_divisor: float
    logits_softcap: float | None

    @classmethod
    def of(cls, family: Family, config: Any) -> Architecture:
        """Read a family's config, which check_config has accepted.

        Raises:
            CheckpointError: when the config names an activation that is not supported.
        """
        attention_bias = "attention" in family.biases and bool(config.attention_bias)
        multiplier = {
            "1": 1.0,
            "root of width": config.hidden_size**0.5,
            "config": getattr(config, "embedding_multiplier", 1.0),
        }[family.embedding]
        windows, by_layer = _windows(family, config), key_heads(config)
        usual, full = _usual_and_full(windows, by_layer)
        intermediate = family.intermediate(config)
        layer_input = int(getattr(config, "hidden_size_per_layer_input", None) or 0)
        return cls(
            hidden=int(config.hidden_size),
            intermediate=intermediate,
            heads=int(config.num_attention_heads),
            kv_heads=usual.count,
            head_size=usual.size,
            full_heads=full,
            windows=windows,
            rotated=tuple(map(bool, family.rotated(config))),
            halves=family.halves(config),
            partial_rotary=family.partial_rotary,
            scaling=family.scaling(config),
            softcap=_optional(config.attn_logit_softcapping) if family.attention_softcap else None,
            norm_eps=float(getattr(config, family.epsilon_field)),
            norm_plus_one=family.norm_plus_one,
            norm_in_float=family.norm_in_float,
            norms_after=family.norms_after,
            query_key_norms=family.query_key_norms,
            sinks=family.sinks,
            value_norm=family.value_norm,
            keys_as_values=bool(getattr(config, "attention_k_eq_v", False)),
            key_layers=tuple(range(len(windows))) if family.key_layers is None else family.key_layers(config),
            sharing_intermediate=intermediate * (2 if getattr(config, "use_double_wide_mlp", False) else 1),
            layer_factor=family.layer_factor,
            layer_input=layer_input,
            layer_vocab=int(config.vocab_size_per_layer_input) if layer_input else 0,
            qkv_bias=attention_bias or "always qkv" in family.biases,
            output_bias=attention_bias,
            mlp_bias="mlp" in family.biases and bool(config.mlp_bias),
            fused=family.fused,
            activation=_activation(getattr(config, family.activation_field, "silu")),
            gated=family.gated,
            experts=None if family.experts is None else family.experts(config),
            recurrence=None if family.recurrence is None else family.recurrence(config),
            latent=None if family.latent is None else family.latent(config),
            output_gate=family.output_gate,
            residual_multiplier=family.residual_multiplier(config),
            embedding_multiplier=float(multiplier),
            embedding_rounded=family.embedding == "root of width",
            logits_divisor=family.logits_divisor(config),
            logits_softcap=_optional(family.logits_softcap(config)),
        )

    @property
    def ahead(self) -> Architecture:
        """That of a layer which predicts further tokens, with full attention and any experts of the model."""
        experts = self.experts if self.experts and any(self.experts.layers) else None
        return replace(
            self,
            windows=(None,),
            rotated=(True,),
            recurrence=None,
            experts=None if experts is None else replace(experts, layers=(True,)),
        )

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer has a state in place of attention."""
        return self.recurrence is not None and self.recurrence.layers[layer]

    def attends(self, layer: int) -> bool:
        """Whether a layer has attention, and so keys and values of each row."""
        return self.halves[layer] != "mlp" and not self.is_recurrent(layer)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has a mixture of experts."""
        return self.experts is not None and self.experts.layers[layer]

    def key_heads(self, layer: int) -> KeyHeads:
        """The heads of the keys that a layer reads."""
        if self.full_heads is None or self.windows[layer] is not None:
            return self.usual_heads
        return self.full_heads

    @property
    def usual_heads(self) -> KeyHeads:
        """The heads of the keys of all layers, but for layers with `full_heads`."""
        return KeyHeads(self.kv_heads, self.head_size)

    def shares_keys(self, layer: int) -> bool:
        """Whether a layer reads the keys and values of an earlier one."""
        return self.key_layers[layer] != layer

    @property
    def has_shared_keys(self) -> bool:
        """Whether any layer reads the keys and values of an earlier one."""
        return any(map(self.shares_keys, range(len(self.key_layers))))

    def mlp_width(self, layer: int) -> int:
        """The width of the hidden values of a layer's MLP."""
        return self.sharing_intermediate if self.shares_keys(layer) else self.intermediate

    def cached_layers(self, start: int, stop: int) -> list[int]:
        """The layers whose keys and values layers [start, stop) read, ascending."""
        read = {self.key_layers[layer] for layer in range(start, stop) if self.attends(layer)}
        return sorted(read)

    def cached_heads(self, start: int, stop: int) -> list[KeyHeads]:
        """The heads of the keys of each of `cached_layers`."""
        return [self.key_heads(layer) for layer in self.cached_layers(start, stop)]

    def carried_keys(self, layer: int) -> list[int]:
        """The layers before `layer` whose keys and values it or a later layer reads, ascending."""
        return [read for read in self.cached_layers(layer, len(self.key_layers)) if read < layer]

    def carried_width(self, layer: int) -> int:
        """The values that follow the hidden state in rows that enter `layer`, from a layer before it.

        These are the rows of each token that `layer` and later layers are given, and the keys and values of
        `carried_keys`.
        """
        if not 0 < layer < len(self.key_layers):
            return 0
        heads = [self.key_heads(read) for read in self.carried_keys(layer)]
        return self.layer_input * (len(self.key_layers) - layer) + sum(2 * h.count * h.size for h in heads)

    def row_width(self, layer: int) -> int:
        """The width of rows that enter `layer`, or leave the last one, without what drafters tap."""
        return self.hidden + self.carried_width(layer)


def _usual_and_full(
    windows: Sequence[int | None], by_layer: Sequence[KeyHeads]
) -> tuple[KeyHeads, KeyHeads | None]:
    """The key heads of most layers, and those of layers without a window where these differ.

    Raises:
        CheckpointError: when layers with windows, or layers without, are not alike.
    """
    near = {heads for window, heads in zip(windows, by_layer, strict=True) if window is not None}
    full = {heads for window, heads in zip(windows, by_layer, strict=True) if window is None}
    if len(near) > 1 or len(full) > 1:
        raise CheckpointError("heads of keys differ between layers of one type, which is not supported")
    usual = (near or full).pop()
    return usual, None if not full or full == {usual} else full.pop()


def _windows(family: Family, config: Any) -> tuple[int | None, ...]:
    window: int | None = getattr(config, "sliding_window", None)
    if family.windows == "every layer":
        return (window,) * int(config.num_hidden_layers)
    if family.windows == "by layer type":
        return tuple(window if kind == SLIDING else None for kind in config.layer_types)
    return (None,) * int(config.num_hidden_layers)


def _activation(name: str) -> Activation:
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"the activation {name!r} is not supported; supported: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def _optional(value: float | None) -> float | None:
    return None if value is None else float(value)
