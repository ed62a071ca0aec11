"""The differences between the decoder layers of the supported families, read from a loaded layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from torch import nn
from torch.nn import functional

from flowedge.models.exact.aligned_activation import AlignedActivation
from flowedge.models.files.families import FAMILIES, Family

Activation = Literal["silu", "gelu_tanh", "gelu"]

_PLUS_ONE = ("Gemma2", "Gemma3")  # class prefixes of families whose norms multiply by 1 + weight
_SOFT_CAPPED = ("Gemma2",)  # class prefixes of families whose attention applies its soft cap

_NORMS = {"input_layernorm", "post_attention_layernorm"}
_SANDWICH_NORMS = _NORMS | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
_DROPOUTS = {"resid_attn_dropout", "resid_mlp_dropout"}
_HEAD_NORMS = {"q_norm", "k_norm"}
# The modules of attention and MLP, by whether their projections are stored fused.
_ATTENTION = ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"})
_MLP = ({"gate_proj", "up_proj", "down_proj", "act_fn"}, {"gate_up_proj", "down_proj", "activation_fn"})
_MIXTURE = {"gate", "experts"}

# Attributes whose effect is known. A layer with another attribute may compute something else.
_LAYER_ATTRIBUTES = {"config", "hidden_size", "layer_idx", "residual_multiplier"}
_ATTENTION_ATTRIBUTES = {
    "attention_dropout",
    "attn_logit_softcapping",
    "config",
    "head_dim",
    "is_causal",
    "is_sliding",
    "layer_idx",
    "layer_type",
    "num_key_value_groups",
    "num_key_value_heads",
    "scaling",
    "sliding_window",
    "use_rope",
}
_MLP_ATTRIBUTES = {"config", "hidden_size", "intermediate_size", "jitter_noise", "top_k"}
_NORM_ATTRIBUTES = {"eps", "variance_epsilon"}


@dataclass(frozen=True)
class LayerForm:
    """What a decoder layer computes around its weights.

    The window of a layer is not part of its form, since the mask holds the window. Biases are attributes of
    the linear layers.

    Attributes:
        hidden: the width of hidden rows.
        head_size: the width of an attention head.
        rotates: whether queries and keys are rotated. The rotated size is the last dimension of the cosines.
        scaling: the factor on the products of queries and keys.
        softcap: the bound that tanh keeps the scores within; None for no bound.
        norm_plus_one: whether norms multiply by 1 + weight, in float32 before the result is rounded. Other
            norms round to the dtype of the rows first and multiply then.
        sandwich: whether a norm follows the attention and the MLP too. The four norms then are input,
            post_attention, pre_feedforward and post_feedforward.
        query_key_norms: whether queries and keys have a norm of each head's width.
        residual_multiplier: the factor on the results of attention and MLP before they are added.
        experts: whether the MLP is a mixture of experts, which is called as a module.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    rotates: bool
    scaling: float
    softcap: float | None
    norm_eps: float
    norm_plus_one: bool
    sandwich: bool
    query_key_norms: bool
    residual_multiplier: float
    activation: Activation
    experts: bool


def layer_form(layer: nn.Module, config: Any) -> LayerForm | str:
    """Return the form of a transformers layer that is in evaluation mode, or why the layer is odd.

    A layer is odd when it has a class, a module or an attribute that is not known here, so that its form
    might leave out a part of its computation. Linear layers may be quantised.

    Args:
        config: the transformers config that the layer was made with.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        return f"the model type {config.model_type!r} is not known"
    if type(layer) is not family.decoder_layer:
        family = family.in_transformers
    for reason in _oddities(layer, family):
        return reason
    return _form(layer, config, family)


def activation_name(activation: nn.Module) -> Activation | None:
    """Return the name of an activation, which may be aligned; None for an unknown activation."""
    while isinstance(activation, AlignedActivation):
        activation = activation.activation
    own, function = type(activation).__name__, getattr(activation, "act", None)
    if own in ("SiLUActivation", "SiLU"):
        return "silu"
    if own == "GELUActivation" and function is functional.gelu:
        return "gelu"
    if own == "GELUTanh" and isinstance(function, partial):
        is_tanh = function.func is functional.gelu and function.keywords == {"approximate": "tanh"}
        return "gelu_tanh" if is_tanh and not function.args else None
    return None


def mlp_activation(mlp: nn.Module) -> nn.Module:
    """Return the activation of an MLP whose form is known."""
    holder = mlp.experts if "experts" in mlp._modules else mlp
    name = "activation_fn" if "activation_fn" in cast(nn.Module, holder)._modules else "act_fn"
    return cast(nn.Module, getattr(holder, name))


def _form(layer: Any, config: Any, family: Family) -> LayerForm:
    attention, norm = layer.self_attn, layer.input_layernorm
    capped = family.prefix in _SOFT_CAPPED
    activation = activation_name(mlp_activation(layer.mlp))
    assert activation is not None, "an unknown activation makes a layer odd"
    return LayerForm(
        hidden=int(config.hidden_size),
        heads=int(config.num_attention_heads),
        kv_heads=int(config.num_key_value_heads),
        head_size=int(attention.head_dim),
        rotates=bool(getattr(attention, "use_rope", True)),
        scaling=float(attention.scaling),
        softcap=_optional(attention.attn_logit_softcapping) if capped else None,
        norm_eps=_epsilon(norm),
        norm_plus_one=family.prefix in _PLUS_ONE,
        sandwich="pre_feedforward_layernorm" in layer._modules,
        query_key_norms="q_norm" in attention._modules,
        residual_multiplier=float(getattr(layer, "residual_multiplier", 1.0)),
        activation=activation,
        experts="experts" in layer.mlp._modules,
    )


def _oddities(layer: Any, family: Family) -> Iterator[str]:
    """Yield what is not known about a layer. Later checks rely on earlier checks."""
    if type(layer) is not family.decoder_layer:
        yield f"it is a {type(layer).__name__}, not transformers' {family.prefix}DecoderLayer"
        return
    yield from _unknown("the layer", layer, _layer_modules(layer), _LAYER_ATTRIBUTES)
    attention, mlp = layer.self_attn, layer.mlp
    yield from _other_class(attention, family, "Attention")
    yield from _other_class(mlp, family, "MLP", "SparseMoeBlock")
    own = {*attention._modules} - _HEAD_NORMS
    wanted = next((names for names in _ATTENTION if names == own), _ATTENTION[0])
    head_norms = _HEAD_NORMS if _HEAD_NORMS & {*attention._modules} else set()
    yield from _unknown("the attention", attention, wanted | head_norms, _ATTENTION_ATTRIBUTES)
    if family.prefix not in _SOFT_CAPPED and getattr(attention, "attn_logit_softcapping", None) is not None:
        yield "its attention has a soft cap that transformers does not apply"
    mixture = "experts" in mlp._modules
    wanted = _MIXTURE if mixture else next((names for names in _MLP if names == {*mlp._modules}), _MLP[0])
    yield from _unknown("the MLP", mlp, wanted, _MLP_ATTRIBUTES)
    activation = mlp_activation(mlp)
    if activation_name(activation) is None:
        yield f"the activation {type(activation).__name__} is not known"
    yield from _odd_norms(layer, family)
    yield from _dropouts(layer)


def _layer_modules(layer: nn.Module) -> set[str]:
    """The names of modules that a layer with this layer's norms and dropouts has."""
    own = {*layer._modules}
    norms = _SANDWICH_NORMS if "pre_feedforward_layernorm" in own else _NORMS
    return {"self_attn", "mlp"} | norms | (_DROPOUTS if own & _DROPOUTS else set())


def _unknown(title: str, module: nn.Module, modules: set[str], attributes: set[str]) -> Iterator[str]:
    """Yield the differences between a module's own names and the names that are known."""
    found = {name for name, child in module._modules.items() if child is not None}
    if missing := modules - found:
        yield f"{title} has no module {', '.join(sorted(missing))}"
    if unknown := found - modules:
        yield f"{title} has the unknown module {', '.join(sorted(unknown))}"
    own = {name for name in vars(module) if not name.startswith("_")} - {"training"}
    weights = {*module._parameters, *module._buffers}
    if unknown := (own | weights) - attributes:
        yield f"{title} has the unknown attribute {', '.join(sorted(unknown))}"


def _other_class(module: nn.Module, family: Family, *kinds: str) -> Iterator[str]:
    known = [f"{'Dense' if family.dense else family.prefix}{kind}" for kind in kinds]
    own = type(module)
    if own.__name__ not in known or own.__module__ != family.decoder_layer.__module__:
        yield f"it has a {own.__name__}, not transformers' {' or '.join(known)}"


def _odd_norms(layer: Any, family: Family) -> Iterator[str]:
    norms = {name: child for name, child in layer.named_modules() if name.endswith("norm")}
    for name, norm in norms.items():
        if type(norm) is not family.norm:
            yield f"its {name} is a {type(norm).__name__}, not transformers' {family.prefix}RMSNorm"
        elif {*norm._parameters, *norm._buffers} != {"weight"}:
            yield f"its {name} has other weights than one"
        elif unknown := {name for name in vars(norm) if name[0] != "_"} - {"training", *_NORM_ATTRIBUTES}:
            yield f"its {name} has the unknown attribute {', '.join(sorted(unknown))}"
        elif _epsilon(norm) != _epsilon(layer.input_layernorm):
            yield f"its {name} has another epsilon than its input_layernorm"


def _dropouts(layer: Any) -> Iterator[str]:
    """Yield the dropouts that have an effect, which they have in training alone."""
    rates = [getattr(layer.self_attn, "attention_dropout", 0.0)]
    rates += [module.p for module in layer.modules() if isinstance(module, nn.Dropout)]
    if any(rates) and any(module.training for module in layer.modules()):
        yield "it is in training mode, in which its dropout has an effect"


def _epsilon(norm: Any) -> float:
    return float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)


def _optional(value: float | None) -> float | None:
    return None if value is None else float(value)
