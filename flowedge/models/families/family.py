"""A model family: how its computations differ from Llama's, and where transformers has it."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from flowedge.models.families.parts import Experts, Half, Latent, Recurrence, head_size

MTP_PREFIX = "mtp."  # of the layers that predict further tokens, which may come with a model
# By the name in checkpoints that store such a layer behind the model's layers, as DeepSeek-V3 does: its name
# behind MTP_PREFIX. The last two are copies of the target's.
NAMES_AHEAD = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
    "embed_tokens": "embed_tokens",
    "shared_head.head": "lm_head",
}


def _both_halves(config: Any) -> tuple[Half, ...]:
    both: Half = "both"
    return (both,) * int(config.num_hidden_layers)


def _all_rotated(config: Any) -> tuple[bool, ...]:
    return (True,) * int(config.num_hidden_layers)


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
        predicts_ahead: how checkpoints store the layer that predicts further tokens, if they have it: behind
            MTP_PREFIX, or as the layer behind the model's layers, with copies of the target's embedding and
            LM head; "no" for a family without such a layer.
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
    predicts_ahead: Literal["no", "behind MTP_PREFIX", "behind layers"] = "no"
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
        own = self.of_layers(int(config.num_hidden_layers))
        if self.experts is None or self.experts(config) is not None:
            return own
        return replace(own, renames=own.renames + self.renames_without_experts)

    def of_layers(self, layers: int) -> Family:
        """The family as it names the layer behind the model's `layers` layers."""
        if self.predicts_ahead != "behind layers":
            return self
        behind = rf"^model\.layers\.{layers}\."
        names = {rf"{behind}{re.escape(name)}\.": f"{MTP_PREFIX}{own}." for name, own in NAMES_AHEAD.items()}
        return replace(self, renames=(*self.renames, *names.items(), (behind, f"{MTP_PREFIX}layers.0.")))

    def module_name(self, stored: str) -> str:
        """The name that the family's modules have for the stored tensor `stored`."""
        for pattern, replacement in self.renames:
            stored = re.sub(pattern, replacement, stored)
        return stored


@functools.cache
def _class(module: str, name: str) -> Any:
    # Imported when a checkpoint needs it: importing all families' modules would take seconds.
    return getattr(importlib.import_module(module), name)
