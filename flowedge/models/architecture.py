"""What a model computes, read from its config.json. A model family is a row of the table FAMILIES.

No module of torch is imported here: commands look families up before they load anything.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from flowedge.core.errors import CheckpointError

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]

# Names of tensors. A decoder layer's tensors have the names of the layer's modules behind `layer_prefix`.
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
LM_HEAD_BIAS = "lm_head.bias"
MTP_PREFIX = "mtp."  # of the layers that predict further tokens, which may come with a model
# Of the rows that layers are given of each token.
LAYER_EMBEDDING = "model.embed_tokens_per_layer.weight"
LAYER_PROJECTION = "model.per_layer_model_projection.weight"
LAYER_INPUT_NORM = "model.per_layer_projection_norm.weight"
LAYER_INPUTS = (LAYER_EMBEDDING, LAYER_PROJECTION, LAYER_INPUT_NORM)

SLIDING = "sliding_attention"  # a layer type: rows see a window of positions
TILED = "linear_value_heads_tiled"  # of a config.json that is made of a GGUF file; see DeltaNet
# Layer types whose rows read a state that their ancestors have updated.
RECURRENT = frozenset({"linear_attention", "conv"})
MLP_KINDS = frozenset({"mlp", "moe"})  # layer types: rows are mixed with no other row
# What a layer has of attention, or a state in its place, and an MLP.
Half = Literal["both", "mixing", "mlp"]
_VECTOR = 16  # the most numbers of a vector of the kernels
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


def _recurrent_layers(config: Any) -> tuple[bool, ...]:
    return tuple(kind in RECURRENT for kind in config.layer_types)


def _short_convolution(config: Any) -> ShortConvolution:
    return ShortConvolution(int(config.hidden_size), int(config.conv_L_cache), _recurrent_layers(config))


def _delta_net(config: Any) -> DeltaNet:
    return DeltaNet(
        int(config.linear_num_key_heads),
        int(config.linear_num_value_heads),
        int(config.linear_key_head_dim),
        int(config.linear_value_head_dim),
        int(config.linear_conv_kernel_dim),
        _recurrent_layers(config),
        tiled=bool(getattr(config, TILED, False)),
    )


def _granite_mamba2(config: Any) -> Mamba2 | None:
    """The state spaces of Granite 4; none in a model with attention in all layers."""
    layers = _recurrent_layers(config)
    net = Mamba2(
        key_heads=int(config.mamba_n_groups),
        value_heads=int(config.mamba_n_heads),
        key_size=int(config.mamba_d_state),
        value_size=int(config.mamba_d_head),
        inputs=int(config.mamba_d_conv),
        layers=layers,
        convolution_bias=bool(config.mamba_conv_bias),
    )
    return net if any(layers) else None


def _mixtral_experts(config: Any) -> Experts:
    return Experts(
        int(config.num_local_experts),
        int(config.num_experts_per_tok),
        int(config.intermediate_size),
        normalised=True,
        rounded=False,
        layers=(True,) * int(config.num_hidden_layers),
    )


def _qwen3_experts(config: Any) -> Experts:
    def has_experts(layer: int) -> bool:
        is_sparse = config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0
        return layer not in config.mlp_only_layers and is_sparse

    return Experts(
        int(config.num_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=True,
        layers=tuple(has_experts(layer) for layer in range(config.num_hidden_layers)),
    )


def _qwen3_5_experts(config: Any) -> Experts:
    return Experts(
        int(config.num_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=True,
        rounded=True,
        layers=(True,) * int(config.num_hidden_layers),
        shared=int(config.shared_expert_intermediate_size),
    )


def _qwen3_next_experts(config: Any) -> Experts:
    return replace(_qwen3_experts(config), shared=int(config.shared_expert_intermediate_size))


def _lfm2_experts(config: Any) -> Experts:
    return Experts(
        int(config.num_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=True,
        layers=tuple(layer >= config.num_dense_layers for layer in range(config.num_hidden_layers)),
        scores="sigmoid",
        choice_bias=bool(config.use_expert_bias),
        least_sum=1e-6,
        scale=float(config.routed_scaling_factor),
    )


def _gpt_oss_experts(config: Any) -> Experts:
    clamp = Clamp(float(config.swiglu_limit), float(config.swiglu_alpha))
    return replace(_mixtral_experts(config), rounded=True, biases=True, clamp=clamp)


def _granite_experts(config: Any) -> Experts | None:
    if not config.num_local_experts:
        return None
    return replace(
        _mixtral_experts(config), rounded=True, shared=int(config.shared_intermediate_size), shared_gate=False
    )


def _gemma4_experts(config: Any) -> Experts | None:
    if not getattr(config, "enable_moe_block", False):
        return None
    return Experts(
        int(config.num_experts),
        int(config.top_k_experts),
        int(config.moe_intermediate_size),
        normalised=True,
        rounded=False,
        layers=(True,) * int(config.num_hidden_layers),
        beside_mlp=True,
    )


def _lfm2_intermediate(config: Any) -> int:
    width = int(config.intermediate_size)
    if not config.block_auto_adjust_ff_dim:
        return width
    width = int(2 * width / 3)
    if config.block_ffn_dim_multiplier is None:
        return width
    width, unit = int(config.block_ffn_dim_multiplier * width), int(config.block_multiple_of)
    return -(-width // unit) * unit


def _nemotron_mamba2(config: Any) -> Mamba2 | None:
    layers = _recurrent_layers(config)
    net = Mamba2(
        key_heads=int(config.n_groups),
        value_heads=int(config.mamba_num_heads),
        key_size=int(config.ssm_state_size),
        value_size=int(config.mamba_head_dim),
        inputs=int(config.conv_kernel),
        layers=layers,
        convolution_bias=bool(config.use_conv_bias),
    )
    return net if any(layers) else None


def _nemotron_experts(config: Any) -> Experts | None:
    layers = tuple(kind == "moe" for kind in config.layer_types)
    experts = Experts(
        int(config.n_routed_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=False,
        layers=layers,
        scores="sigmoid",
        choice_bias=True,
        least_sum=1e-20,
        scale=float(config.routed_scaling_factor),
        shared=int(config.moe_shared_expert_intermediate_size),
        shared_gate=False,
        unrounded=True,
    )
    return experts if any(layers) else None


def _glm_experts(config: Any) -> Experts:
    return Experts(
        int(config.n_routed_experts),
        int(config.num_experts_per_tok),
        int(config.moe_intermediate_size),
        normalised=bool(config.norm_topk_prob),
        rounded=False,
        layers=tuple(kind == "sparse" for kind in config.mlp_layer_types),
        scores="sigmoid",
        choice_bias=True,
        least_sum=1e-20,
        scale=float(config.routed_scaling_factor),
        shared=int(config.moe_intermediate_size) * int(config.n_shared_experts),
        shared_gate=False,
        unrounded=True,
    )


def _glm_latent(config: Any) -> Latent:
    return Latent(
        rank=int(config.kv_lora_rank),
        rotated=int(config.qk_rope_head_dim),
        plain=int(config.qk_nope_head_dim),
        value=int(config.v_head_dim),
        query_rank=None if config.q_lora_rank is None else int(config.q_lora_rank),
        paired=bool(config.rope_interleave),
    )


def _glm_scaling(config: Any) -> float:
    """The scale of scores; YaRN multiplies it where its parameters say so."""
    scaling, rope = float(_glm_latent(config).query ** -0.5), config.rope_parameters
    if rope["rope_type"] != "default" and (part := rope.get("mscale_all_dim", 0)) and rope["factor"] > 1:
        scaling *= (0.1 * part * math.log(rope["factor"]) + 1) ** 2
    return scaling


def _nemotron_halves(config: Any) -> tuple[Half, ...]:
    def half(kind: str) -> Half:
        return "mlp" if kind in MLP_KINDS else "mixing"

    return tuple(half(kind) for kind in config.layer_types)


def _both_halves(config: Any) -> tuple[Half, ...]:
    both: Half = "both"
    return (both,) * int(config.num_hidden_layers)


def _all_rotated(config: Any) -> tuple[bool, ...]:
    return (True,) * int(config.num_hidden_layers)


def _key_layers(config: Any) -> tuple[int, ...]:
    """The layer whose keys each layer reads: its own, or the last of its type that has some."""
    layers, kinds = int(config.num_hidden_layers), config.layer_types
    own = layers - int(config.num_kv_shared_layers)
    last = {kind: layer for layer, kind in enumerate(kinds[:own])}
    return tuple(layer if layer < own else last[kinds[layer]] for layer in range(layers))


def _query_scale(config: Any) -> float:
    return float(config.query_pre_attn_scalar**-0.5)


@dataclass(frozen=True)
class Family:
    """A model family: where transformers has it, and how its computations differ from Llama's.

    Attributes:
        module: the module in transformers.models; prefix: the prefix of its class names.
        text_prefix: the prefix of the config class, where that is another one.
        own_config: whether decoder_configs.py has the family's config, so that transformers' files of the
            family are imported for the reference alone.
        multimodal: whether a checkpoint holds other models beside the decoder; they are never read.
        renames: (pattern, replacement) pairs that turn stored tensor names into names of the modules.
        renames_without_experts: further pairs, for a model of the family without experts.
        windows: the layers that the config's `sliding_window` applies to.
        biases: the linear layers with biases: those of attention or MLP where the config says so, or always
            those of queries, keys and values.
        norm_plus_one, norm_in_float, norms_after, query_key_norms, value_norm, sinks, fused, partial_rotary,
            layer_factor: as of Architecture.
        rotated, halves: (config) -> as of Architecture.
        gated: as of Architecture.
        activation_field: the field of the config that names the activation.
        epsilon_field: the field of the config that has the epsilon of norms.
        intermediate: (config) -> the width of an MLP's hidden values.
        scaling: (config) -> the factor on products of queries and keys.
        attention_softcap: whether attention keeps scores within `attn_logit_softcapping`.
        experts: (config) -> the experts of a mixture, None for none; None for a family without experts.
        key_layers: (config) -> as of Architecture; None for a family whose layers all have keys of their own.
        recurrence: (config) -> its layers with a state, None for none; None for a family without such layers.
        latent: (config) -> as of Architecture; None for a family without latent attention.
        experts_in_turns: as `in_turns` of experts_of.
        delta_by_key_head: whether checkpoints store the projections of a gated delta net as two, whose rows
            are those of one key head after the other.
        output_gate: as of Architecture.
        predicts_ahead: whether checkpoints may have a layer that predicts further tokens, behind MTP_PREFIX.
        embedding: the factor on embedded tokens: 1, the root of the width, or what the config says.
        residual_multiplier, logits_divisor: (config) -> as of Architecture.
        logits_softcap: (config) -> the bound that tanh keeps the logits within; None for no bound.
    """

    module: str
    prefix: str
    text_prefix: str = ""
    own_config: bool = False
    multimodal: bool = False
    renames: tuple[tuple[str, str], ...] = ()
    renames_without_experts: tuple[tuple[str, str], ...] = ()
    windows: Literal["none", "every layer", "by layer type"] = "none"
    biases: frozenset[Literal["attention", "mlp", "always qkv"]] = frozenset()
    norm_plus_one: bool = False
    norm_in_float: bool = False
    norms_after: bool = False
    query_key_norms: bool = False
    sinks: bool = False
    value_norm: bool = False
    fused: bool = False
    partial_rotary: bool = False
    layer_factor: bool = False
    rotated: Callable[[Any], Sequence[bool]] = _all_rotated
    halves: Callable[[Any], tuple[Half, ...]] = _both_halves
    gated: bool = True
    activation_field: str = "hidden_act"
    epsilon_field: str = "rms_norm_eps"
    intermediate: Callable[[Any], int] = lambda config: int(config.intermediate_size)
    scaling: Callable[[Any], float] = lambda config: head_size(config) ** -0.5
    attention_softcap: bool = False
    experts: Callable[[Any], Experts | None] | None = None
    key_layers: Callable[[Any], tuple[int, ...]] | None = None
    recurrence: Callable[[Any], Recurrence | None] | None = None
    latent: Callable[[Any], Latent] | None = None
    experts_in_turns: bool = False
    delta_by_key_head: bool = False
    output_gate: bool = False
    predicts_ahead: bool = False
    embedding: Literal["1", "root of width", "config"] = "1"
    residual_multiplier: Callable[[Any], float] = lambda _config: 1.0
    logits_divisor: Callable[[Any], float] = lambda _config: 1.0
    logits_softcap: Callable[[Any], float | None] = lambda _config: None

    @property
    def config(self) -> Any:
        """The class of the config: transformers' own, or a class of ours with the same fields."""
        if self.own_config:
            return _class("flowedge.models.files.decoder_configs", f"{self.prefix}DecoderConfig")
        name = f"{self.text_prefix or self.prefix}Config"
        return _class(f"transformers.models.{self.module}.configuration_{self.module}", name)

    @property
    def causal_lm(self) -> Any:
        """transformers' class of the whole model, which the reference runs."""
        path = f"transformers.models.{self.module}.modeling_{self.module}"
        return _class(path, f"{self.prefix}ForCausalLM")

    @property
    def in_transformers(self) -> Family:
        """The family with transformers' own config."""
        return replace(self, own_config=False)

    def of(self, config: Any) -> Family:
        """The family as it names the tensors of a model with this config."""
        if self.experts is None or self.experts(config) is not None:
            return self
        return replace(self, renames=self.renames + self.renames_without_experts)

    def module_name(self, stored: str) -> str:
        """The name that the family's modules have for the stored tensor `stored`."""
        for pattern, replacement in self.renames:
            stored = re.sub(pattern, replacement, stored)
        return stored


@functools.cache
def _class(module: str, name: str) -> Any:
    # Imported when a checkpoint needs it: importing all families' modules would take seconds.
    return getattr(importlib.import_module(module), name)


_GEMMA2 = Family(
    "gemma2",
    "Gemma2",
    windows="by layer type",
    biases=frozenset({"attention"}),
    norm_plus_one=True,
    norms_after=True,
    activation_field="hidden_activation",
    scaling=_query_scale,
    attention_softcap=True,
    embedding="root of width",
    logits_softcap=lambda config: config.final_logit_softcapping,
)
_GEMMA3 = replace(
    _GEMMA2,
    module="gemma3",
    prefix="Gemma3",
    text_prefix="Gemma3Text",
    query_key_norms=True,
    attention_softcap=False,
)
_GEMMA4 = Family(
    "gemma4",
    "Gemma4",
    text_prefix="Gemma4Text",
    windows="by layer type",
    biases=frozenset({"attention"}),
    norm_in_float=True,
    norms_after=True,
    query_key_norms=True,
    value_norm=True,
    layer_factor=True,
    activation_field="hidden_activation",
    scaling=lambda _config: 1.0,
    experts=_gemma4_experts,
    key_layers=_key_layers,
    embedding="root of width",
    logits_softcap=lambda config: config.final_logit_softcapping,
)
_GEMMA4_UNIFIED = replace(
    _GEMMA4, module="gemma4_unified", prefix="Gemma4Unified", text_prefix="Gemma4UnifiedText"
)
_LLAMA = Family("llama", "Llama", own_config=True, biases=frozenset({"attention", "mlp"}))
_GRANITE = Family(
    "granite",
    "Granite",
    biases=_LLAMA.biases,
    scaling=lambda config: float(config.attention_multiplier),
    embedding="config",
    residual_multiplier=lambda config: float(config.residual_multiplier),
    logits_divisor=lambda config: float(config.logits_scaling),
)
_QWEN3 = Family(
    "qwen3",
    "Qwen3",
    own_config=True,
    windows="by layer type",
    biases=frozenset({"attention"}),
    query_key_norms=True,
)

_MINISTRAL3 = Family("ministral3", "Ministral3", windows="every layer")
# Names of the decoder's tensors in multimodal checkpoints.
_OF_LANGUAGE_MODEL = (
    (r"^language_model\.model\.", "model."),
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
)

_QWEN3_5 = Family(
    "qwen3_5",
    "Qwen3_5",
    text_prefix="Qwen3_5Text",
    biases=frozenset({"attention"}),
    norm_plus_one=True,
    query_key_norms=True,
    partial_rotary=True,
    recurrence=_delta_net,
    output_gate=True,
    predicts_ahead=True,
)

_QWEN3_5_MOE = replace(
    _QWEN3_5,
    module="qwen3_5_moe",
    prefix="Qwen3_5Moe",
    text_prefix="Qwen3_5MoeText",
    intermediate=lambda config: int(getattr(config, "intermediate_size", 0) or config.moe_intermediate_size),
    experts=_qwen3_5_experts,
)

_LFM2 = Family(
    "lfm2",
    "Lfm2",
    renames=(
        (r"^model\.embedding_norm\.", "model.norm."),
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.feed_forward\.expert_bias$", ".mlp.gate.choice_bias"),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.w1\.", ".gate_proj."),
        (r"\.w2\.", ".down_proj."),
        (r"\.w3\.", ".up_proj."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        (r"(\.layers\.\d+)\.conv\.", r"\1.linear_attn."),
    ),
    query_key_norms=True,
    epsilon_field="norm_eps",
    intermediate=_lfm2_intermediate,
    recurrence=_short_convolution,
)

# By the `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA3, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "gemma3_text": _GEMMA3,
    "glm4_moe_lite": Family(
        "glm4_moe_lite",
        "Glm4MoeLite",
        renames=(
            (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.choice_bias"),
            (r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),
        ),
        biases=frozenset({"attention"}),
        scaling=_glm_scaling,
        experts=_glm_experts,
        latent=_glm_latent,
    ),
    "gpt_oss": Family(
        "gpt_oss",
        "GptOss",
        renames=((r"\.mlp\.router\.", ".mlp.gate."),),
        windows="by layer type",
        biases=frozenset({"attention"}),
        sinks=True,
        experts=_gpt_oss_experts,
        experts_in_turns=True,
    ),
    "gemma4": replace(_GEMMA4, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "gemma4_text": _GEMMA4,
    "gemma4_unified": replace(_GEMMA4_UNIFIED, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "gemma4_unified_text": _GEMMA4_UNIFIED,
    "granite": _GRANITE,
    "granitemoehybrid": replace(
        _GRANITE,
        module="granitemoehybrid",
        prefix="GraniteMoeHybrid",
        renames=(
            (r"\.block_sparse_moe\.router(\.layer)?\.", ".mlp.gate."),
            (r"\.block_sparse_moe\.input_linear\.weight", ".mlp.experts.gate_up_proj"),
            (r"\.block_sparse_moe\.output_linear\.weight", ".mlp.experts.down_proj"),
            (r"\.block_sparse_moe\.", ".mlp."),
            (r"\.shared_mlp\.", ".mlp.shared_expert."),
            (r"\.input_linear\.", ".gate_up_proj."),
            (r"\.output_linear\.", ".down_proj."),
            (r"(\.layers\.\d+)\.mamba\.", r"\1.linear_attn."),
        ),
        renames_without_experts=((r"\.mlp\.shared_expert\.", ".mlp."),),
        biases=frozenset({"attention"}),
        rotated=lambda config: [config.position_embedding_type == "rope"] * config.num_hidden_layers,
        intermediate=lambda config: int(config.shared_intermediate_size),
        experts=_granite_experts,
        recurrence=_granite_mamba2,
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        module="lfm2_moe",
        prefix="Lfm2Moe",
        intermediate=lambda config: int(config.intermediate_size),
        experts=_lfm2_experts,
    ),
    "llama": _LLAMA,
    "ministral3": _MINISTRAL3,
    "mistral": Family("mistral", "Mistral", own_config=True, windows="every layer"),
    "mistral3": replace(_MINISTRAL3, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "mixtral": Family(
        "mixtral",
        "Mixtral",
        windows="every layer",
        experts=_mixtral_experts,
        renames=(
            (r"\.block_sparse_moe\.", ".mlp."),
            (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
            (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
            (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
        ),
    ),
    "nemotron_h": Family(
        "nemotron_h",
        "NemotronH",
        renames=(
            (r"^backbone\.", "model."),
            (r"^model\.embeddings\.", "model.embed_tokens."),
            (r"^model\.norm_f\.", "model.norm."),
            (r"(\.layers\.\d+)\.norm\.", r"\1.input_layernorm."),
            (r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1."),
            (r"\.mixer\.(in_proj|out_proj|conv1d|norm|dt_bias|A_log|D)\b", r".linear_attn.\1"),
            (r"\.mixer\.gate\.e_score_correction_bias$", ".mlp.gate.choice_bias"),
            (r"\.mixer\.shared_experts\.", ".mlp.shared_expert."),
            (r"\.mixer\.", ".mlp."),
        ),
        biases=frozenset({"mlp"}),
        activation_field="mlp_hidden_act",
        epsilon_field="layer_norm_epsilon",
        rotated=lambda config: (False,) * len(config.layer_types),
        halves=_nemotron_halves,
        gated=False,
        experts=_nemotron_experts,
        recurrence=_nemotron_mamba2,
    ),
    "phi3": Family("phi3", "Phi3", windows="every layer", fused=True, partial_rotary=True),
    "qwen2": Family(
        "qwen2", "Qwen2", own_config=True, windows="by layer type", biases=frozenset({"always qkv"})
    ),
    "qwen3": _QWEN3,
    "qwen3_5": replace(_QWEN3_5, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "qwen3_5_moe": replace(_QWEN3_5_MOE, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_moe": replace(
        _QWEN3,
        module="qwen3_moe",
        prefix="Qwen3Moe",
        own_config=False,
        windows="every layer",
        experts=_qwen3_experts,
    ),
    "qwen3_next": replace(
        _QWEN3_5_MOE,
        module="qwen3_next",
        prefix="Qwen3Next",
        text_prefix="",
        experts=_qwen3_next_experts,
        delta_by_key_head=True,
    ),
    "smollm3": Family(
        "smollm3",
        "SmolLM3",
        windows="by layer type",
        biases=_LLAMA.biases,
        rotated=lambda config: config.no_rope_layers,
    ),
}


def family_of(model_type: str) -> Family:
    family = FAMILIES.get(model_type)
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model type {model_type!r} is not supported; supported types: {supported}")
    return family


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
