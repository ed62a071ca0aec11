"""The model families that FlowEdge can split: the transformers classes of each, and its peculiarities."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from flowedge.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
LM_HEAD_BIAS = "lm_head.bias"


def layer_prefix(index: int) -> str:
    """The prefix of the tensor names of decoder layer `index`, with its trailing dot."""
    return f"model.layers.{index}."


@functools.cache
def _class(module: str, kind: str, name: str) -> Any:
    # Imported when a checkpoint needs it: importing all families' modules would take seconds.
    return getattr(importlib.import_module(f"transformers.models.{module}.{kind}_{module}"), name)


@functools.cache
def _layer_class(module: str, name: str) -> Any:
    # Imported when a checkpoint needs it: commands look families up before they import torch.
    return getattr(importlib.import_module(f"flowedge.models.dense.{module}"), name)


def _modeling(suffix: str) -> property:
    """A property of a family: its class in transformers whose name ends so."""
    return property(lambda family: _class(family.module, "modeling", f"{family.prefix}{suffix}"))


def _layer_part(suffix: str, module: str, name: str) -> property:
    """A property of a family: our own class for a dense family, transformers' class for other families."""

    def find(family: Family) -> Any:
        if family.dense:
            return _layer_class(module, name)
        return _class(family.module, "modeling", f"{family.prefix}{suffix}")

    return property(find)


@dataclass(frozen=True)
class Family:
    """A model family: the names of its transformers classes, and its computations outside of the layers.

    Attributes:
        module: the module in transformers.models; prefix: the prefix of its class names.
        text_prefix: the prefix of the config class, where that is another one.
        dense: whether the package models/dense has the family's layers, so that transformers' model files are
            imported for the reference alone.
        multimodal: whether a checkpoint holds other models beside the decoder; they are never read.
        windows: the layers that the config's `sliding_window` applies to.
        renames: (pattern, replacement) pairs that turn stored tensor names into names of the modules.
        embedding_multiplier: (config, dtype of the embedding) -> the factor on embedded tokens.
        logits_divisor: (config) -> the divisor of the LM head's product.
        logits_softcap: (config) -> the bound that tanh keeps the logits within; None for no bound.
    """

    module: str
    prefix: str
    text_prefix: str = ""
    dense: bool = False
    multimodal: bool = False
    windows: Literal["none", "every layer", "by layer type"] = "none"
    renames: tuple[tuple[str, str], ...] = ()
    embedding_multiplier: Callable[[Any, torch.dtype], float] = lambda _config, _dtype: 1.0
    logits_divisor: Callable[[Any], float] = lambda _config: 1.0
    logits_softcap: Callable[[Any], float | None] = lambda _config: None

    @property
    def config(self) -> Any:
        """The class of the config; transformers' own, or a class of the same fields for a dense family."""
        if self.dense:
            return _layer_class("config", f"Dense{self.prefix}Config")
        return _class(self.module, "configuration", f"{self.text_prefix or self.prefix}Config")

    decoder_layer = _layer_part("DecoderLayer", "layer", "DenseLayer")  # (config, layer_index) -> module
    norm = _layer_part("RMSNorm", "norm", "DenseNorm")  # (hidden_size, eps) -> module
    rotary = _layer_part("RotaryEmbedding", "rotary", "DenseRotary")  # (config) -> module: (cos, sin)
    causal_lm = _modeling("ForCausalLM")  # the class of the whole model, which the reference runs

    @property
    def in_transformers(self) -> Family:
        """The family with transformers' own classes."""
        return replace(self, dense=False)

    def module_name(self, stored: str) -> str:
        """The name that the family's modules have for the stored tensor `stored`."""
        for pattern, replacement in self.renames:
            stored = re.sub(pattern, replacement, stored)
        return stored


def _root_of_width(config: Any, dtype: torch.dtype) -> float:
    """Gemma's embedding multiplier, rounded to the dtype as in the model's training."""
    import torch  # noqa: PLC0415 (commands look families up before they import torch)

    return float(torch.tensor(config.hidden_size**0.5).to(dtype))


_GEMMA3 = Family(
    "gemma3",
    "Gemma3",
    text_prefix="Gemma3Text",
    windows="by layer type",
    embedding_multiplier=_root_of_width,
    logits_softcap=lambda config: config.final_logit_softcapping,
)

# By the `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "gemma2": replace(_GEMMA3, module="gemma2", prefix="Gemma2", text_prefix=""),
    "gemma3": replace(
        _GEMMA3,
        multimodal=True,
        renames=(
            (r"^language_model\.model\.", "model."),
            (r"^model\.language_model\.", "model."),
            (r"^language_model\.lm_head\.", "lm_head."),
        ),
    ),
    "gemma3_text": _GEMMA3,
    "granite": Family(
        "granite",
        "Granite",
        embedding_multiplier=lambda config, _dtype: float(config.embedding_multiplier),
        logits_divisor=lambda config: float(config.logits_scaling),
    ),
    "llama": Family("llama", "Llama", dense=True),
    "mistral": Family("mistral", "Mistral", dense=True, windows="every layer"),
    "mixtral": Family(
        "mixtral",
        "Mixtral",
        windows="every layer",
        renames=(
            (r"\.block_sparse_moe\.", ".mlp."),
            (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
            (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
            (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
        ),
    ),
    "phi3": Family("phi3", "Phi3", windows="every layer"),
    "qwen2": Family("qwen2", "Qwen2", dense=True, windows="by layer type"),
    "qwen3": Family("qwen3", "Qwen3", dense=True, windows="by layer type"),
    "qwen3_moe": Family("qwen3_moe", "Qwen3Moe", windows="every layer"),
    "smollm3": Family("smollm3", "SmolLM3", windows="by layer type"),
}


def family_of(model_type: str) -> Family:
    family = FAMILIES.get(model_type)
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model type {model_type!r} is not supported; supported types: {supported}")
    return family
